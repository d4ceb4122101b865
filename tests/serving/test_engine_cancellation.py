"""Requests that end early: past their deadline, cancelled, or overtaken by the engine's shutdown."""

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_encoder import FakeEncoder, busy, first_column, numbers, sample
from waiting import until

from nnclr_hub.errors import DeadlineExceeded, InvalidRequest, NotReady
from serving.stages import WorkItem


def cancel_when(engine, images: list[bytes], started: threading.Event) -> None:
    """Send a request from the event loop and cancel it once it has started."""

    async def cancel() -> None:
        task = asyncio.create_task(engine.run_async(images))
        assert await asyncio.to_thread(started.wait, 120)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())


def test_an_expired_request_is_dropped(make_engine):
    encoder, release = FakeEncoder(), threading.Event()
    encoder.before = lambda: release.wait(120)
    engine = make_engine(encoder, deadline_s=0.3, max_batch=1)
    with pytest.raises(DeadlineExceeded):  # although the device does not return
        engine.run(numbers(*range(1, 9)))
    release.set()
    until(lambda: engine.in_work == 0)
    assert len(encoder.batches) <= 1
    assert sample(engine, "nnclr_images_total", model="fake", outcome="expired") >= 7  # one may be on the device


def test_requests_are_freed_without_garbage_collection(make_engine):
    engine = make_engine(FakeEncoder(), decode_threads=1)

    async def embed(n: int) -> list:
        return await engine.run_async(numbers(n))

    def items() -> list[WorkItem]:
        return [one for one in gc.get_objects() if type(one) is WorkItem]

    others = items()  # cycles of other tests, which are not collected yet
    gc.disable()
    try:
        for n in range(20):
            engine.run(numbers(n))
            asyncio.run(embed(n))
        until(lambda: len(items()) <= len(others) + 3)  # variables of the threads that wait for the next one
    finally:
        gc.enable()


def test_a_caller_may_set_a_shorter_deadline(make_engine):
    encoder, release = FakeEncoder(), threading.Event()
    encoder.before = lambda: release.wait(120)
    engine = make_engine(encoder)
    with pytest.raises(DeadlineExceeded):
        engine.run(numbers(1), deadline_s=0.1)
    with pytest.raises(DeadlineExceeded):
        asyncio.run(engine.run_async(numbers(1), deadline_s=0.1))
    for deadline_s in (0, -1, float("nan")):
        with pytest.raises(InvalidRequest, match="deadline"):
            engine.run(numbers(1), deadline_s=deadline_s)
    release.set()


def test_cancelled_images_are_not_computed(make_engine):
    encoder, release, begun = FakeEncoder(), threading.Event(), threading.Event()
    encoder.decoding["slow"] = lambda: (begun.set(), release.wait(120))
    engine = make_engine(encoder, decode_threads=1)
    cancel_when(engine, [b"slow", *numbers(*range(1, 30))], begun)
    assert engine.in_work == 30  # permits come back together: one image is still being decoded
    release.set()
    until(lambda: engine.in_work == 0)
    assert first_column(engine.run(numbers(1, 2))) == [1, 2]
    assert sum(encoder.batches) == 2
    assert sample(engine, "nnclr_images_total", model="fake", outcome="cancelled") == 30


def test_an_image_cancelled_while_it_is_decoded_does_not_wait_for_the_device(make_engine):
    """It is in neither queue then. Its permits come back although the device is busy."""
    decoding, decoded, release = threading.Event(), threading.Event(), threading.Event()
    encoder = FakeEncoder(decoding={"slow": lambda: (decoding.set(), decoded.wait(120))})
    engine = make_engine(encoder)
    with busy(engine, encoder, release):
        cancel_when(engine, [b"slow"], decoding)
        assert engine.in_work == 2
        decoded.set()
        until(lambda: engine.in_work == 1)
        release.set()


def test_a_closed_engine_finishes_its_work_and_takes_no_more(make_engine):
    encoder, release = FakeEncoder(), threading.Event()
    engine = make_engine(encoder, max_batch=2)
    with ThreadPoolExecutor(2) as pool:
        encoder.before = lambda: release.wait(120)
        answer = pool.submit(engine.run, numbers(*range(1, 30)))
        until(lambda: encoder.batches)
        engine.drain()
        with pytest.raises(NotReady):
            engine.run(numbers(1))
        closing = pool.submit(engine.close)
        assert not answer.done()
        assert not closing.done()
        release.set()
        closing.result(120)
        assert engine.in_work == 0
        assert first_column(answer.result(120)) == list(range(1, 30))
    for call in (lambda: engine.run(numbers(1)), engine.warm_up):
        with pytest.raises(NotReady):
            call()


def test_an_engine_that_must_close_now_fails_unfinished_requests(make_engine):
    encoder, release = FakeEncoder(), threading.Event()
    encoder.before = lambda: release.wait(120)
    engine = make_engine(encoder, max_batch=1)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(engine.run, numbers(1, 2, 3))
        until(lambda: encoder.batches == [1])
        engine.close(0.1)
        with pytest.raises(NotReady):
            answer.result(120)
    release.set()
