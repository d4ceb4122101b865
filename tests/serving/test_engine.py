"""The engine answers every picture exactly once, whatever happens around it."""

import asyncio
import threading
import time

import numpy as np
import pytest

from nnclr_hub import ImageError, load_encoder
from nnclr_hub.errors import DeadlineExceeded, InvalidRequest, NotReady, Overloaded, ServiceError
from serving.engine import Engine
from serving.settings import Settings


@pytest.fixture
def engine(model):
    made = Engine(load_encoder(model, device="cpu"), Settings(capacity=200, max_batch=8))
    yield made
    made.close()


def test_it_gives_the_encoders_own_vectors(engine, model, pictures):
    np.testing.assert_allclose(engine.embed(pictures), load_encoder(model, device="cpu").embed(pictures), atol=1e-5)
    assert engine.embed([]).shape == (0, 32)


def test_many_callers_with_bad_pictures_among_them_all_get_their_own(engine, pictures):
    want = engine.embed(pictures)
    outcomes: dict[int, object] = {}

    def ask(i):
        mixed = [pictures[i], b"garbage", pictures[(i + 1) % 60]]
        outcomes[i] = engine.embed_each(mixed)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, results in outcomes.items():
        np.testing.assert_allclose(results[0], want[i], atol=1e-5)
        assert isinstance(results[1], ImageError)
        np.testing.assert_allclose(results[2], want[(i + 1) % 60], atol=1e-5)


def test_a_busy_engine_fills_its_batches(engine, pictures, monkeypatch):
    """While the device works, what arrives is collected, up to max_batch."""
    sizes, original = [], engine.encoder.forward_crops

    def slow(crops):
        sizes.append(len(crops))
        time.sleep(0.05)
        return original(crops)

    monkeypatch.setattr(engine.encoder, "forward_crops", slow)
    engine.embed(pictures)
    assert max(sizes) == 8
    assert sum(sizes) == 60


def test_only_the_poison_fails_when_a_batch_fails(engine, pictures, monkeypatch):
    original = engine.encoder.forward_crops
    poison = engine.encoder.prepare(pictures[5])

    def fragile(crops):
        if any(np.array_equal(crop, poison) for crop in crops):
            raise RuntimeError("CUDA error")
        return original(crops)

    monkeypatch.setattr(engine.encoder, "forward_crops", fragile)
    answers = engine._admit(pictures[:12])
    for i, answer in enumerate(answers):
        if i == 5:
            with pytest.raises(ServiceError, match="RuntimeError"):
                answer.result(10)
        else:
            assert isinstance(answer.result(10), np.ndarray)
    assert engine.healthy


def test_too_much_at_once_is_refused_whole_and_the_permits_come_back(engine, pictures, monkeypatch):
    release = threading.Event()
    original = engine.encoder.forward_crops
    monkeypatch.setattr(engine.encoder, "forward_crops", lambda crops: (release.wait(10), original(crops))[1])
    first = engine._admit(pictures * 3)
    with pytest.raises(Overloaded) as refused:
        engine.embed(pictures[:21])
    assert refused.value.retry_after > 0
    release.set()
    assert len([answer.result(20) for answer in first]) == 180
    assert len(engine.embed(pictures * 3)) == 180
    with pytest.raises(InvalidRequest, match="at most 200"):
        engine.embed([pictures[0]] * 201)


def test_work_past_its_deadline_is_dropped(model, pictures, monkeypatch):
    engine = Engine(load_encoder(model, device="cpu"), Settings(deadline_s=0.2, max_batch=1))
    original, ran = engine.encoder.forward_crops, []
    monkeypatch.setattr(
        engine.encoder, "forward_crops", lambda crops: (ran.append(1), time.sleep(0.15), original(crops))[2]
    )
    answers = engine._admit(pictures[:8])
    outcomes = [answer.exception(10) for answer in answers]
    assert any(isinstance(outcome, DeadlineExceeded) for outcome in outcomes)
    assert len(ran) < 8
    engine.close()


def test_cancelled_work_is_not_computed(engine, pictures, monkeypatch):
    release, original, ran = threading.Event(), engine.encoder.forward_crops, []

    def held(crops):
        ran.append(len(crops))
        release.wait(10)
        return original(crops)

    monkeypatch.setattr(engine.encoder, "forward_crops", held)

    async def give_up():
        first = asyncio.create_task(engine.embed_each_async(pictures[:1]))
        await asyncio.sleep(0.2)
        second = asyncio.create_task(engine.embed_each_async(pictures[:30]))
        await asyncio.sleep(0.2)
        second.cancel()
        await asyncio.sleep(0.1)
        release.set()
        return await first

    assert isinstance(asyncio.run(give_up())[0], np.ndarray)
    assert len(engine.embed(pictures[:2])) == 2
    assert sum(ran) < 10


def test_a_closed_engine_finishes_its_work_and_takes_no_more(model, pictures):
    engine = Engine(load_encoder(model, device="cpu"), Settings())
    answers = engine._admit(pictures)
    engine.close()
    assert all(isinstance(answer.result(0), np.ndarray) for answer in answers)
    with pytest.raises(NotReady):
        engine.embed(pictures[:1])


def test_an_overdue_batch_shows_as_ill(model, pictures, monkeypatch):
    engine = Engine(load_encoder(model, device="cpu"), Settings(stall_s=0.05))
    original = engine.encoder.forward_crops
    monkeypatch.setattr(engine.encoder, "forward_crops", lambda crops: (time.sleep(0.5), original(crops))[1])
    answers = engine._admit(pictures[:1])
    time.sleep(0.25)
    assert not engine.healthy
    answers[0].result(10)
    engine.close()
