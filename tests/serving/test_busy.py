"""Requests that wait do not block others, and work for disconnected clients is dropped."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import pytest
from rest_requests import as_text, held_up, in_flight, upload
from waiting import until

from serving.limits import Budget

VECTOR = [1.0] * 32
HEALTH = ("/healthz", "/readyz", "/metrics")


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


class Waiting(NamedTuple):
    """Requests that wait, and those that are answered while they wait.

    held: what blocks them: the owner of a method, and its name.
    begun: how many of them get there; None: all of them are in the engine.
    """

    request: Callable[[int, Any], dict[str, Any]]
    count: int
    held: Callable[[Any], tuple[Any, str]]
    begun: int | None
    answered: tuple[str, ...]


def uploads(number: int, images: list) -> dict[str, Any]:
    return {"method": "POST", "url": "c/items", "files": upload([images[number]])}


def of_collection(method: str, path: str) -> Callable[[int, Any], dict[str, Any]]:
    return lambda number, images: {"method": method, "url": f"c/{path}"}


def predictions(number: int, images: list) -> dict[str, Any]:
    return {"method": "POST", "url": "/api/v1/probes/letters/predict", "files": upload([images[number]])}


def kind(server) -> type:
    return type(server.bench.collection("photos"))


READS = ("c/items", "search", "batch", "by id")
WAITING = {
    # more than there are threads to decode, so all of them are in the engine at once
    "uploads that are embedded": Waiting(uploads, 12, lambda s: (s.engine.encoder, "forward_crops"), None, READS),
    "predictions": Waiting(predictions, 50, lambda s: (s.engine.encoder, "prepare_each"), None, (*HEALTH, "c/items")),
    # more than the framework has threads, which are 40
    "uploads that are written": Waiting(uploads, 45, lambda s: (kind(s), "upsert"), 8, READS),
    "lists": Waiting(of_collection("GET", "items"), 50, lambda s: (s.bench, "collection"), 40, HEALTH),
    "verifications": Waiting(of_collection("POST", "verify"), 50, lambda s: (kind(s), "verify"), 1, READS),
    "snapshots": Waiting(of_collection("POST", "snapshot"), 50, lambda s: (kind(s), "snapshot"), 1, READS),
}


@pytest.mark.parametrize("name", WAITING)
def test_other_requests_are_answered_while_many_wait(server, client, collection, probe, image_files, monkeypatch, name):
    waiting = WAITING[name]
    client.put(f"{collection}/items", json=[{"id": "there", "vector": VECTOR}])
    search = {
        "search": ("search", {"vector": VECTOR, "k": 1}),
        "batch": ("search/batch", {"queries": [{"vector": VECTOR}, {"id": "there"}]}),
        "by id": ("search", {"id": "there"}),
    }
    limits = httpx.Limits(max_connections=waiting.count)
    each = httpx.Client(base_url=server.url, timeout=120, limits=limits)

    def send(number: int) -> httpx.Response:
        options = waiting.request(number, image_files)
        return each.request(**{**options, "url": options["url"].replace("c/", f"{collection}/", 1)})

    with each, ThreadPoolExecutor(waiting.count) as pool:
        with held_up(monkeypatch, *waiting.held(server)) as begun:
            sent = [pool.submit(send, number) for number in range(waiting.count)]
            if waiting.begun is None:
                until(lambda: server.engines.in_work == waiting.count)
            for _ in range(waiting.begun or 0):
                assert begun.acquire(timeout=60)
            while begun.acquire(timeout=0.5):
                pass  # until no other request gets there; nothing reports those that wait elsewhere
            for what in waiting.answered:
                if what in search:
                    path, body = search[what]
                    answer = client.post(f"{collection}/{path}", json=body)
                else:
                    answer = client.get(what.replace("c/", f"{collection}/", 1))
                assert answer.status_code == 200, answer.text
            assert not [one for one in sent if one.done() and one.result().status_code != 202]  # a job is accepted
        assert all(one.result().is_success for one in sent)
    expected = waiting.count + 1 if waiting.request is uploads else 1
    assert client.get(f"{collection}/count").json() == {"count": expected}


# ---- disconnects


def images_by(server, outcome: str) -> float:
    labels = {"model": "resnet18", "outcome": outcome}
    return server.engines.metrics.registry.get_sample_value("nnclr_images_total", labels) or 0.0


COUNT = 40
OF_IMAGES = {
    "embed": lambda path, files, texts: ("/api/v1/embed", {"files": files}),
    "openai": lambda path, files, texts: ("/v1/embeddings", {"json": {"model": "default", "input": texts}}),
    "predict": lambda path, files, texts: ("/api/v1/probes/letters/predict", {"files": files}),
    "upload": lambda path, files, texts: (f"{path}/items", {"files": files}),
    "search": lambda path, files, texts: (
        f"{path}/search/batch",
        {"json": {"queries": [{"image": text} for text in texts]}},
    ),
}


@pytest.mark.parametrize("route", OF_IMAGES)
def test_images_of_a_disconnected_client_are_not_embedded(
    server, client, collection, probe, image_files, monkeypatch, route
):
    monkeypatch.setattr("serving.limits.Budget", lambda seconds: Budget(600))  # or the deadline would cancel them
    images = image_files[:COUNT]
    url, options = OF_IMAGES[route](collection, upload(images), [as_text(one) for one in images])
    embedded, cancelled = images_by(server, "embedded"), images_by(server, "cancelled")
    with held_up(monkeypatch, server.engine.encoder, "prepare_each") as begun:
        with in_flight(client.build_request("POST", url, **options)):
            assert begun.acquire(timeout=120)
        until(lambda: images_by(server, "cancelled") > cancelled)  # those that no thread has taken yet
    until(lambda: server.engine.in_work == 0)
    assert images_by(server, "embedded") == embedded
    assert images_by(server, "cancelled") - cancelled == COUNT
    assert client.get(f"{collection}/count").json() == {"count": 0}
    assert client.post("/api/v1/embed", files=upload(image_files[:2])).status_code == 200
