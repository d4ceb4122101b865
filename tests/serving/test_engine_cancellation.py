"""Work that is given up: past its deadline, cancelled, or left by an engine that closes."""

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from engine_work import busy, first_column, numbers, sample
from fake_encoder import FakeEncoder
from waiting import until

from nnclr_hub.errors import DeadlineExceeded, InvalidRequest, NotReady


@pytest.fixture
def make(make_engine):
    return make_engine


def test_work_past_its_deadline_is_dropped_and_its_request_told_so_in_time(make):
    encoder, release = FakeEncoder(), threading.Event()
    encoder.before = lambda: release.wait(120)
    engine = make(encoder, deadline_s=0.3, max_batch=1)
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        engine.embed_each(numbers(*range(1, 9)))
    assert time.monotonic() - begun < 5
    release.set()
    until(lambda: engine.in_work == 0)
    assert encoder.batches == [1]
    assert sample(engine, "nnclr_images_total", model="fake", outcome="expired") == 7  # the eighth was with the device


def test_a_caller_may_have_less_patience_than_the_server(make):
    encoder, release = FakeEncoder(), threading.Event()
    encoder.before = lambda: release.wait(120)
    engine = make(encoder)
    with pytest.raises(DeadlineExceeded):
        engine.embed_each(numbers(1), deadline_s=0.1)
    with pytest.raises(DeadlineExceeded):
        asyncio.run(engine.embed_each_async(numbers(1), deadline_s=0.1))
    for impossible in (0, -1, float("nan")):
        with pytest.raises(InvalidRequest, match="deadline"):
            engine.embed_each(numbers(1), deadline_s=impossible)
    release.set()


def test_cancelled_work_leaves_the_lines_and_is_not_computed(make):
    encoder, release, begun = FakeEncoder(), threading.Event(), threading.Event()
    encoder.decoding["slow"] = lambda: (begun.set(), release.wait(120))
    engine = make(encoder, decode_threads=1)

    async def give_up():
        task = asyncio.create_task(engine.embed_each_async([b"slow", *numbers(*range(1, 30))]))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    assert engine.in_work == 30  # the bytes are still there: one of them is being decoded
    assert len(engine._decoding.line) == 0
    release.set()
    until(lambda: engine.in_work == 0)
    assert first_column(engine.embed_each(numbers(1, 2))) == [1, 2]
    assert sum(encoder.batches) == 2
    assert sample(engine, "nnclr_images_total", model="fake", outcome="cancelled") == 30


def test_what_is_given_up_while_it_is_decoded_does_not_wait_for_the_device(make):
    """It stands in no line then; its permits come back all the same, though the device is busy for long."""
    decoding, decoded, release = threading.Event(), threading.Event(), threading.Event()
    encoder = FakeEncoder(decoding={"slow": lambda: (decoding.set(), decoded.wait(120))})
    engine = make(encoder)

    async def give_up() -> None:
        task = asyncio.create_task(engine.embed_each_async([b"slow"]))
        assert await asyncio.to_thread(decoding.wait, 120)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with busy(engine, encoder, release):
        asyncio.run(give_up())
        assert engine.in_work == 2
        decoded.set()
        until(lambda: engine.in_work == 1)
        release.set()


def test_a_closed_engine_finishes_its_work_and_takes_no_more(make):
    encoder, release = FakeEncoder(), threading.Event()
    engine = make(encoder, max_batch=2)
    with ThreadPoolExecutor(2) as pool:
        encoder.before = lambda: release.wait(120)
        asked = pool.submit(engine.embed_each, numbers(*range(1, 30)))
        until(lambda: encoder.batches)
        engine.drain()
        with pytest.raises(NotReady, match="shutting down"):
            engine.embed_each(numbers(1))
        closing = pool.submit(engine.close)
        assert not asked.done()
        assert not closing.done()
        release.set()
        closing.result(10)
        assert engine.in_work == 0
        assert first_column(asked.result(10)) == list(range(1, 30))
    with pytest.raises(NotReady):
        engine.embed_each(numbers(1))


def test_an_engine_that_was_closed_cannot_be_warmed_up_and_says_so(make):
    engine = make(FakeEncoder())
    engine.close()
    told: Future[None] = Future()

    def warm_up():
        try:
            engine.warm_up()
        except NotReady as error:
            told.set_exception(error)

    threading.Thread(target=warm_up, daemon=True).start()
    with pytest.raises(NotReady, match="shut down"):
        told.result(5)


def test_an_engine_that_must_close_now_answers_what_it_leaves_undone(make):
    encoder, release = FakeEncoder(), threading.Event()
    encoder.before = lambda: release.wait(120)
    engine = make(encoder, max_batch=1)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(engine.embed_each, numbers(1, 2, 3))
        until(lambda: encoder.batches == [1])
        engine.close(0.1)
        with pytest.raises(NotReady, match="shut down"):
            asked.result(5)
    release.set()
