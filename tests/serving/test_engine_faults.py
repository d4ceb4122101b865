"""Threads that die or stall, encoders that only fail: requests fail with a sentence, and the engine gets well."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_encoder import FakeEncoder
from waiting import until

from nnclr_hub.errors import NotReady, ServiceError
from serving.engine import Engine
from serving.settings import Settings
from serving.telemetry import Metrics


def exit_thread():
    raise SystemExit


@pytest.fixture
def make():
    made = []

    def start(encoder, **settings) -> Engine:
        settings = {"decode_threads": 2, "max_batch": 4, "stall_s": 0.2, **settings}
        made.append(Engine(encoder, Settings(**settings), Metrics()))
        return made[-1]

    yield start
    for engine in made:
        engine.close(0.2)


def restarts(engine: Engine) -> float | None:
    return engine._metrics.registry.get_sample_value("nnclr_device_restarts_total", {"model": "fake"})


@pytest.mark.parametrize("where", ["decoding", "forwarding"])
def test_a_thread_that_dies_fails_its_request_and_is_replaced(make, where):
    encoder = FakeEncoder(**{where: {"deadly": exit_thread}})
    engine = make(encoder, decode_threads=1, stall_s=30)
    for _ in range(3):
        with pytest.raises(NotReady, match="try again"):
            engine.embed_each([b"deadly"])
        until(lambda: engine.healthy)
        assert engine.embed_each([b"7"])[0][0] == 7
    assert restarts(engine) == (3 if where == "forwarding" else 0)
    assert engine.in_work == 0


@pytest.mark.parametrize("where", ["decoding", "forwarding"])
def test_a_thread_that_stalls_is_given_up_and_what_it_brings_back_is_ignored(make, where):
    release = threading.Event()
    encoder = FakeEncoder(**{where: {"endless": lambda: release.wait(120)}})
    engine = make(encoder, decode_threads=1)
    with pytest.raises(NotReady, match="try again"):
        engine.embed_each([b"endless"])
    until(lambda: engine.healthy)
    assert engine.embed_each([b"7"])[0][0] == 7
    before = engine._metrics.registry.get_sample_value("nnclr_images_total", {"model": "fake", "outcome": "failed"})
    release.set()
    time.sleep(0.1)
    counted = engine._metrics.registry.get_sample_value("nnclr_images_total", {"model": "fake", "outcome": "failed"})
    assert (before, counted) == (1, 1)
    assert engine.in_work == 0


def test_a_thread_that_comes_back_while_it_is_given_up_loses_nothing(make):
    release, begun = threading.Event(), threading.Event()
    encoder = FakeEncoder(forwarding={"slow": lambda: (begun.set(), release.wait(120))})
    engine = make(encoder, stall_s=30, deadline_s=3)
    [worker] = engine._device.crew._workers

    def comes_back(trouble: str) -> None:
        release.set()
        worker.join(1)

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(engine.embed_each, [b"slow"])
        assert begun.wait(120)
        assert engine._device.crew.mend(0, comes_back) == 1
        with pytest.raises(NotReady, match="try again"):
            asked.result(10)
    assert [engine.embed_each([b"7"])[0][0] for _ in range(3)] == [7, 7, 7]
    assert engine.in_work == 0


def test_an_idle_thread_that_was_given_up_answers_what_it_still_takes(make):
    engine = make(FakeEncoder(), stall_s=30, deadline_s=3)
    [worker] = engine._device.crew._workers
    worker.give_up(NotReady("The engine ends."))
    with pytest.raises(NotReady, match="shut down"):
        engine.embed_each([b"7"])
    assert engine.in_work == 0


def test_while_it_is_ill_it_says_so_and_takes_nothing(make):
    well = threading.Event()
    encoder = FakeEncoder()

    def die_and_hold_up_the_test_image():
        encoder.before = lambda: well.wait(120)
        raise SystemExit

    encoder.forwarding["deadly"] = die_and_hold_up_the_test_image
    engine = make(encoder, stall_s=30)
    with pytest.raises(NotReady):
        engine.embed_each([b"deadly"])
    assert engine.illness == "the device thread died and was replaced"
    with pytest.raises(NotReady, match="the device thread died and was replaced"):
        engine.embed_each([b"7"])
    well.set()
    until(lambda: engine.healthy)
    assert engine.illness is None
    assert engine.embed_each([b"7"])[0][0] == 7


def test_an_encoder_that_only_fails_shows_as_ill_until_it_works_again(make):
    broken = True

    def fail():
        if broken:
            raise RuntimeError("device lost")

    encoder = FakeEncoder()
    encoder.before = fail
    engine = make(encoder)
    for _ in range(3):
        with pytest.raises(ServiceError, match="RuntimeError"):
            engine.embed_each([b"7"])
    until(lambda: engine.illness == "the encoder fails on every image")
    until(lambda: len(encoder.batches) > 5)  # test images
    assert not engine.healthy
    broken = False
    until(lambda: engine.healthy)
    assert engine.embed_each([b"7"])[0][0] == 7


def test_what_waits_behind_a_dead_thread_is_embedded_by_the_next(make):
    begun, release = threading.Event(), threading.Event()

    def held_then_dead():
        begun.set()
        release.wait(120)
        raise SystemExit

    engine = make(FakeEncoder(forwarding={"deadly": held_then_dead}), stall_s=30)
    with ThreadPoolExecutor(2) as pool:
        doomed = pool.submit(engine.embed_each, [b"deadly"])
        assert begun.wait(120)
        behind = pool.submit(engine.embed_each, [b"1", b"2", b"3"])
        until(lambda: engine.in_work == 4)
        release.set()
        with pytest.raises(NotReady):
            doomed.result()
        assert [result[0] for result in behind.result()] == [1, 2, 3]
    assert engine.in_work == 0


def test_a_stalled_engine_closes_all_the_same(make):
    release = threading.Event()
    engine = make(FakeEncoder(forwarding={"endless": lambda: release.wait(120)}), stall_s=30)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(engine.embed_each, [b"endless", b"1"])
        until(lambda: engine.in_work == 2)
        begun = time.monotonic()
        engine.close(0.2)
        assert time.monotonic() - begun < 5
        with pytest.raises(NotReady, match="shut down"):
            asked.result(5)
    release.set()


def test_readyz_tells_of_a_dead_thread_until_it_is_well_again(server, client, pictures, monkeypatch):
    (engine,) = server.engines._memory.engines
    forward, calls, well = engine.encoder.forward_crops, [], threading.Event()

    def die_once_and_then_wait(crops):
        calls.append(len(crops))
        if len(calls) == 1:
            raise SystemExit
        well.wait(120)
        return forward(crops)

    monkeypatch.setattr(engine.encoder, "forward_crops", die_once_and_then_wait)
    files = {"files": ("a.jpg", pictures[0].read_bytes())}
    for _ in range(2):
        refused = client.post("/api/v1/embed", files=files)
        assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
        told = client.get("/readyz")
        assert told.status_code == 503
        assert told.json()["status"] == "ill"
        assert told.json()["detail"] == "the device thread died and was replaced"
    well.set()
    until(lambda: client.get("/readyz").status_code == 200)
    assert client.post("/api/v1/embed", files=files).status_code == 200
