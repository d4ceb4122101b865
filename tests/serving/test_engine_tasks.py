"""What is asked of a network beside vectors: in the engine's threads, with its limits, and image by image."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from nnclr_hub import ImageError, load_encoder
from nnclr_hub.errors import InvalidRequest, NotReady, Overloaded, ServiceError
from serving.engine import Engine, Task
from serving.settings import Settings

WORDS = Task(bytes.decode, str.upper)


@pytest.fixture
def make() -> Iterator:
    made = []

    def start(encoder, **settings) -> Engine:
        made.append(Engine(encoder, Settings(decode_threads=2, max_batch=8, stall_s=5, **settings)))
        return made[-1]

    yield start
    for engine in made:
        engine.close(0.2)


def test_feature_maps_are_the_encoders_own(make, model, pictures):
    encoder = load_encoder(model, device="cpu")
    engine = make(encoder)
    np.testing.assert_allclose(engine.tokens(pictures[:2]), encoder.tokens(pictures[:2]), atol=1e-4)
    assert engine.in_work == 0
    with pytest.raises(ImageError):
        engine.tokens([pictures[0], b"bad"])
    with pytest.raises(InvalidRequest, match="at least one"):
        engine.tokens([])


def test_the_network_is_run_by_one_thread_whatever_is_asked_of_it(make):
    """A network that two threads use at once may give either of them anything."""
    encoder, threads = FakeEncoder(), set()

    def seen(*_):
        threads.add(threading.current_thread().name)

    encoder.before = seen
    engine = make(encoder, capacity=100)
    errand = Task(encoder.prepare, seen)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(engine.each, [b"1", b"2"], errand) for _ in range(10)]
        asked += [pool.submit(engine.embed_each, [b"3"]) for _ in range(10)]
        for one in asked:
            one.result()
    assert threads == {"the device thread"}


def test_every_image_has_its_own_answer_beside_vectors_that_are_asked_for_meanwhile(make):
    engine = make(FakeEncoder())

    async def both():
        return await asyncio.gather(engine.each_async([b"a", b"b"], WORDS), engine.embed_each_async([b"7"]))

    words, vectors = asyncio.run(both())
    assert words == ["A", "B"]
    assert vectors[0][0] == 7


def test_what_fails_is_the_error_of_its_image_or_of_its_request(make):
    def broken(image):
        raise ImageError("It is no image.")

    def wrong(image):
        raise InvalidRequest("There is nothing to be asked.")

    engine = make(FakeEncoder())
    [result] = engine.each([b"a"], Task(broken, str))
    assert isinstance(result, ImageError)
    for errand in (Task(wrong, str), Task(bytes, wrong)):
        with pytest.raises(InvalidRequest, match="nothing to be asked"):
            engine.each([b"a"], errand)
    with pytest.raises(ServiceError, match="ZeroDivisionError"):
        engine.each([b"a"], Task(bytes, lambda _: 1 / 0))
    assert engine.healthy
    assert engine.each([b"a"], WORDS) == ["A"]


def test_it_holds_permits_and_can_be_given_up(make):
    release = threading.Event()
    engine = make(FakeEncoder(), capacity=2)
    slow = Task(bytes, lambda _: release.wait(10))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(engine.each, [b"a", b"b"], slow)
        while engine.in_work < 2:
            pass
        with pytest.raises(Overloaded):
            engine.each([b"c"], WORDS)
        release.set()
        assert first.result() == [True, True]
    engine.close()
    with pytest.raises(NotReady):
        engine.each([b"c"], WORDS)
