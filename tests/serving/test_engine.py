"""The engine answers every request exactly once, whatever happens around it."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from engine_work import busy, first_column, numbers, sample
from fake_encoder import FakeEncoder
from waiting import until

from nnclr_hub import ImageError, load_encoder
from nnclr_hub.errors import Overloaded, RequestTooLarge, ServiceError
from serving.engine import Engine
from serving.settings import Settings
from serving.telemetry import Timings, current


@pytest.fixture(scope="module")
def real(model):
    made = Engine(load_encoder(model, device="cpu"), Settings(capacity=200, max_batch=8))
    made.warm_up()
    yield made
    made.close()


@pytest.fixture
def make(make_engine):
    return make_engine


# ---- vectors


def test_it_gives_the_encoders_own_vectors(real, model, pictures):
    np.testing.assert_allclose(real.embed(pictures), load_encoder(model, device="cpu").embed(pictures), atol=1e-5)
    assert real.embed([]).shape == (0, 32)
    assert real.embed_each([]) == []


def test_a_image_has_the_same_vector_alone_and_in_a_full_batch(real, pictures):
    together = real.embed(pictures[:16])
    alone = np.concatenate([real.embed([picture]) for picture in pictures[:16]])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_many_callers_with_bad_images_among_them_all_get_their_own(real, pictures):
    want = real.embed(pictures)
    with ThreadPoolExecutor(60) as pool:
        asked = pool.map(lambda i: real.embed_each([pictures[i], b"garbage", pictures[(i + 1) % 60]]), range(60))
        for i, results in enumerate(asked):
            np.testing.assert_allclose(results[0], want[i], atol=1e-5)
            assert isinstance(results[1], ImageError)
            np.testing.assert_allclose(results[2], want[(i + 1) % 60], atol=1e-5)


# ---- batches


def test_an_idle_device_begins_at_once_and_a_busy_one_fills_its_batches(make):
    encoder, release = FakeEncoder(), threading.Event()
    engine = make(encoder)
    with busy(engine, encoder, release), ThreadPoolExecutor(1) as pool:
        late = pool.submit(engine.embed_each, numbers(*range(2, 22)))
        until(lambda: sample(engine, "nnclr_queued_images", model="fake") == 20)
        release.set()
        assert first_column(late.result()) == list(range(2, 22))
    assert encoder.batches == [1, 8, 8, 4]


def test_batches_are_no_larger_than_the_largest_that_the_backend_is_compiled_for(make):
    encoder, release = FakeEncoder(), threading.Event()
    encoder.backend.buckets = (1, 2, 4)
    engine = make(encoder)
    engine.warm_up()
    assert encoder.batches == [1, 2, 4, 1]
    with busy(engine, encoder, release), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(engine.embed_each, numbers(*range(1, 8)))
        until(lambda: sample(engine, "nnclr_queued_images", model="fake") == 7)
        release.set()
        assert first_column(asked.result()) == list(range(1, 8))
    assert encoder.batches[4:] == [1, 4, 3]


def test_only_the_culprits_request_fails_when_a_batch_fails(make):
    encoder, release = FakeEncoder(), threading.Event()

    def fail():
        raise RuntimeError("device-side assert")

    encoder.forwarding["poison"] = fail
    engine = make(encoder)
    with busy(engine, encoder, release), ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(engine.embed_each, numbers(i)) for i in range(1, 7)]
        poisoned = pool.submit(engine.embed_each, [b"poison", *numbers(9)])
        until(lambda: sample(engine, "nnclr_queued_images", model="fake") == 8)
        release.set()
        assert [first_column(one.result()) for one in asked] == [[float(i)] for i in range(1, 7)]
        with pytest.raises(ServiceError, match="RuntimeError"):
            poisoned.result()
    assert engine.healthy
    until(lambda: engine.in_work == 0)


def test_a_batch_that_does_not_fit_into_memory_is_halved_from_then_on(make):
    encoder, release = FakeEncoder(), threading.Event()

    def only_three():
        if encoder.batches[-1] > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")

    encoder.forwarding["3"] = only_three
    engine = make(encoder)
    with busy(engine, encoder, release), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(engine.embed_each, numbers(*[3] * 8))
        until(lambda: sample(engine, "nnclr_queued_images", model="fake") == 8)
        release.set()
        assert first_column(asked.result()) == [3] * 8
    assert encoder.batches == [1, 8, 4, 2, 2, 4, 2, 2]
    assert first_column(engine.embed_each(numbers(*[3] * 9))) == [3] * 9
    assert max(encoder.batches[8:]) <= 2


def test_a_vector_that_is_not_finite_is_never_given_out(make):
    encoder = FakeEncoder()
    encoder.forward_crops = lambda crops: np.full((len(crops), 2), np.nan, np.float32)
    with pytest.raises(ServiceError, match="no finite vector"):
        make(encoder).embed_each(numbers(1))


# ---- admission


def test_too_much_at_once_is_refused_whole_and_the_permits_come_back(make):
    encoder, release = FakeEncoder(), threading.Event()
    encoder.before = lambda: release.wait(120)
    engine = make(encoder, capacity=20, capacity_bytes=100)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(engine.embed_each, numbers(*range(1, 19)))
        until(lambda: engine.in_work == 18)
        with pytest.raises(Overloaded) as refused:
            engine.embed(numbers(1, 2, 3))
        assert refused.value.retry_after > 0
        with pytest.raises(Overloaded):
            engine.embed([b"1" + b" " * 80])
        assert engine.in_work == 18
        release.set()
        assert len(first.result()) == 18
    assert engine.in_work == 0
    assert len(engine.embed(numbers(*range(1, 21)))) == 20
    with pytest.raises(RequestTooLarge, match="at most 20, and 100 bytes"):
        engine.embed_each(numbers(*range(21)))
    with pytest.raises(RequestTooLarge):
        engine.embed_each([b"1" + b" " * 100])


# ---- telling


def test_a_request_is_told_how_long_each_stage_took(make):
    encoder = FakeEncoder(decoding={"slow": lambda: time.sleep(0.05)})
    encoder.before = lambda: time.sleep(0.1)
    engine = make(encoder)

    async def ask() -> Timings:
        timings = Timings()
        current.set(timings)
        await engine.embed_each_async([b"slow", *numbers(1)])
        return timings

    seconds = asyncio.run(ask()).seconds
    assert list(seconds) == ["decode", "queue", "forward", "embed"]
    assert seconds["decode"] >= 0.05
    assert seconds["forward"] >= 0.1
    assert seconds["embed"] >= 0.15


def test_metrics_count_every_image_once(make):
    engine = make(FakeEncoder())
    engine.embed_each([b"bad", *numbers(1, 2), b"bad", b"bad"])
    for outcome, count in (("embedded", 2), ("broken", 3), ("failed", 0), ("expired", 0), ("cancelled", 0)):
        assert sample(engine, "nnclr_images_total", model="fake", outcome=outcome) == count
    assert sample(engine, "nnclr_stage_seconds_count", stage="decode") == 5
    assert sample(engine, "nnclr_stage_seconds_count", stage="queue") == 2
    assert sample(engine, "nnclr_batch_images_sum", model="fake") == 2
    for gauge in ("nnclr_images_in_work", "nnclr_bytes_in_work"):
        assert sample(engine, gauge) == 0
    assert sample(engine, "nnclr_queued_images", model="fake") == 0
