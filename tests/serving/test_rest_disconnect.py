"""Work for a disconnected client is dropped, and many waiting requests do not block other ones."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from rest_requests import as_text, in_flight, upload
from waiting import until

COUNT = 40


@pytest.fixture(scope="module")
def probe(server) -> Iterator[str]:
    """Fit a probe for the server's model, and return the path of its predictions."""
    with httpx.Client(base_url=server.url, timeout=120) as client:
        items = [{"vector": [1.0 * (i % 2), 1.0, *[0.1 * i] * 30], "label": "ab"[i % 2]} for i in range(12)]
        body = {"name": "letters", "items": items, "model": "default", "l2": 0.1}
        job = client.post("/api/v1/probes", json=body).json()["id"]
        until(lambda: client.get(f"/api/v1/jobs/{job}").json()["state"] == "done")
        yield "/api/v1/probes/letters/predict"
        client.delete("/api/v1/probes/letters")


@contextmanager
def held_up(server, monkeypatch) -> Iterator[threading.Event]:
    """Block decoding until the context ends; yield an event that is set at the first attempt."""
    begun, release = threading.Event(), threading.Event()
    engine = server.engine
    real = engine.encoder.prepare_each

    def prepare_each(images):
        begun.set()
        assert release.wait(120)
        return real(images)

    with monkeypatch.context() as patched:
        patched.setattr(engine.encoder, "prepare_each", prepare_each)
        try:
            yield begun
        finally:
            release.set()
            until(lambda: engine.in_work == 0)


def images_by(server, outcome: str) -> float:
    labels = {"model": "resnet18", "outcome": outcome}
    return server.engines.metrics.registry.get_sample_value("nnclr_images_total", labels) or 0.0


@pytest.mark.parametrize("route", ["embed", "openai", "predict"])
def test_images_of_a_disconnected_client_are_not_embedded(server, client, probe, image_files, monkeypatch, route):
    asked = {
        "embed": lambda: client.build_request("POST", "/api/v1/embed", files=upload(image_files[:COUNT])),
        "openai": lambda: client.build_request(
            "POST", "/v1/embeddings", json={"model": "default", "input": [as_text(one) for one in image_files[:COUNT]]}
        ),
        "predict": lambda: client.build_request("POST", probe, files=upload(image_files[:COUNT])),
    }[route]()
    embedded, cancelled = images_by(server, "embedded"), images_by(server, "cancelled")
    with held_up(server, monkeypatch) as begun:
        with in_flight(asked):
            assert begun.wait(120)
        until(lambda: images_by(server, "cancelled") > cancelled)  # those that no thread has taken yet
    assert images_by(server, "embedded") == embedded
    assert images_by(server, "cancelled") - cancelled == COUNT
    assert client.post("/api/v1/embed", files=upload(image_files[:2])).status_code == 200


def test_predictions_do_not_block_other_requests(server, client, collection, probe, image_files, monkeypatch):
    def predict(path):
        return client.post(probe, files=upload([path])).status_code

    with ThreadPoolExecutor(50) as pool:
        with held_up(server, monkeypatch):
            asked = [pool.submit(predict, path) for path in image_files[:50]]
            until(lambda: server.engines.in_work == 50)
            for path in ("/readyz", "/metrics", f"{collection}/items"):
                assert client.get(path, timeout=60).status_code == 200
            assert not any(one.done() for one in asked)
        assert {one.result() for one in asked} == {200}


def test_health_checks_do_not_wait_for_other_requests(server, client, collection, monkeypatch):
    release, waiting = threading.Event(), threading.Semaphore(0)
    real = server.bench.collection

    def slow(name):
        waiting.release()
        assert release.wait(120)
        return real(name)

    with ThreadPoolExecutor(50) as pool, monkeypatch.context() as patched:
        patched.setattr(server.bench, "collection", slow)
        try:
            asked = [pool.submit(client.get, f"{collection}/items") for _ in range(50)]
            for _ in range(40):  # as many threads as the framework has
                assert waiting.acquire(timeout=60)
            for path in ("/healthz", "/readyz", "/metrics"):
                assert client.get(path, timeout=60).status_code == 200
        finally:
            release.set()
        assert {one.result().status_code for one in asked} == {200}


@pytest.mark.parametrize("what", ["verify", "snapshot"])
def test_work_on_a_whole_collection_does_not_block_other_requests(server, client, collection, monkeypatch, what):
    release, begun = threading.Event(), threading.Event()
    kind = type(server.bench.collection("photos"))
    real = getattr(kind, what)

    def slow(self, *progress):
        begun.set()
        assert release.wait(120)
        return real(self, *progress)

    with ThreadPoolExecutor(50) as pool, monkeypatch.context() as patched:
        patched.setattr(kind, what, slow)
        try:
            asked = [pool.submit(client.post, f"{collection}/{what}") for _ in range(50)]
            assert begun.wait(120)
            time.sleep(0.5)  # until the others have arrived; nothing reports requests that wait
            assert client.get(f"{collection}/items", timeout=60).status_code == 200
        finally:
            release.set()
        assert {one.result().is_success for one in asked} == {True}
