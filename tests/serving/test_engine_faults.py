"""Threads that die or stall, and encoders that always fail: requests fail, and the engine recovers."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from fake_encoder import FakeEncoder, sample
from waiting import until

from nnclr_hub.errors import NotReady, ServiceError

DIED = "device thread died and was replaced"


def exit_thread():
    raise SystemExit


def failed_images(engine) -> float:
    return sample(engine, "nnclr_images_total", model="fake", outcome="failed")


def test_a_thread_that_dies_is_replaced(make_engine):
    encoder = FakeEncoder(forwarding={"deadly": exit_thread})
    engine = make_engine(encoder, decode_threads=1, stall_s=30)
    for _ in range(3):
        with pytest.raises(NotReady):
            engine.run([b"deadly"])
        until(lambda: engine.fault is None)
        assert engine.run([b"7"])[0][0] == 7
    assert sample(engine, "nnclr_device_restarts_total", model="fake") == 3
    assert engine.in_work == 0


@pytest.fixture
def pass_seconds(monkeypatch) -> Callable[[float], None]:
    """Stop the clock by which threads stall, and return a function that advances it: a busy machine causes no fault."""
    now = [0.0]
    monkeypatch.setattr(
        "serving.stages.time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter)
    )

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def test_a_thread_that_stalls_is_replaced_and_its_late_result_is_ignored(make_engine, pass_seconds):
    release, returned = threading.Event(), threading.Event()

    def stall():
        pass_seconds(0.3)
        release.wait(120)
        returned.set()

    engine = make_engine(FakeEncoder(forwarding={"endless": stall}), decode_threads=1, stall_s=0.2)
    with pytest.raises(NotReady):
        engine.run([b"endless"])
    until(lambda: engine.fault is None)
    assert engine.run([b"7"])[0][0] == 7
    assert failed_images(engine) == 1
    release.set()
    assert returned.wait(120)
    assert engine.run([b"7"])[0][0] == 7
    assert (failed_images(engine), engine.in_work) == (1, 0)


def test_a_fault_is_reported_and_refuses_requests_until_a_test_image_passes(make_engine):
    recovered = threading.Event()
    encoder = FakeEncoder()

    def die_and_hold_the_test_image():
        encoder.before = lambda: recovered.wait(120)
        raise SystemExit

    encoder.forwarding["deadly"] = die_and_hold_the_test_image
    engine = make_engine(encoder, stall_s=120)
    with pytest.raises(NotReady):
        engine.run([b"deadly"])
    assert engine.fault == DIED
    with pytest.raises(NotReady, match=DIED):
        engine.run([b"7"])
    recovered.set()
    until(lambda: engine.fault is None)
    assert engine.run([b"7"])[0][0] == 7


@pytest.mark.usefixtures("pass_seconds")
def test_an_encoder_that_always_fails_is_a_fault_until_it_works_again(make_engine):
    broken = True

    def fail():
        if broken:
            raise RuntimeError("device lost")

    encoder = FakeEncoder()
    encoder.before = fail
    engine = make_engine(encoder, stall_s=0.2)
    for _ in range(3):
        with pytest.raises(ServiceError):
            engine.run([b"7"])
    until(lambda: engine.fault == "the encoder fails on every image")
    until(lambda: len(encoder.batches) > 5)  # failed test images
    assert engine.fault
    broken = False
    until(lambda: engine.fault is None)
    assert engine.run([b"7"])[0][0] == 7


def test_the_next_thread_embeds_what_waits_behind_a_dead_one(make_engine):
    begun, release = threading.Event(), threading.Event()

    def wait_then_die():
        begun.set()
        release.wait(120)
        raise SystemExit

    engine = make_engine(FakeEncoder(forwarding={"deadly": wait_then_die}), stall_s=120)
    with ThreadPoolExecutor(2) as pool:
        failing = pool.submit(engine.run, [b"deadly"])
        assert begun.wait(120)
        behind = pool.submit(engine.run, [b"1", b"2", b"3"])
        until(lambda: engine.in_work == 4)
        release.set()
        with pytest.raises(NotReady):
            failing.result()
        assert [result[0] for result in behind.result()] == [1, 2, 3]
    assert engine.in_work == 0


def test_a_stalled_engine_closes_anyway(make_engine):
    release = threading.Event()
    engine = make_engine(FakeEncoder(forwarding={"endless": lambda: release.wait(300)}), stall_s=300)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(engine.run, [b"endless", b"1"])
        until(lambda: engine.in_work == 2)
        engine.close(0.2)  # returns although the thread does not
        assert not release.is_set()
        with pytest.raises(NotReady):
            answer.result(120)
        release.set()


def test_readyz_reports_a_fault_until_it_is_over(server, client, image_files, monkeypatch):
    encoder = server.engine.encoder
    forward, calls, recovered = encoder.forward_crops, [], threading.Event()

    def die_once_and_then_wait(crops):
        calls.append(len(crops))
        if len(calls) == 1:
            raise SystemExit
        recovered.wait(120)
        return forward(crops)

    monkeypatch.setattr(encoder, "forward_crops", die_once_and_then_wait)
    files = {"files": ("a.jpg", image_files[0].read_bytes())}
    for _ in range(2):
        refused = client.post("/api/v1/embed", files=files)
        assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
        report = client.get("/readyz")
        assert report.status_code == 503
        assert (report.json()["status"], report.json()["detail"]) == ("ill", DIED)
    recovered.set()
    until(lambda: client.get("/readyz").status_code == 200)
    assert client.post("/api/v1/embed", files=files).status_code == 200
