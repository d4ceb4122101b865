"""Uploads next to searches: reads never wait for uploads, and work for disconnected clients is dropped."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from rest_requests import as_text, in_flight, upload
from waiting import until

from serving.models import WRITERS


class Hold:
    """Hold the network of the server until the test releases it."""

    def __init__(self, server, monkeypatch) -> None:
        self.engine = server.engine
        self.go, self.begun = threading.Event(), threading.Event()
        forward = self.engine.encoder.forward_crops

        def held(crops):
            self.begun.set()
            assert self.go.wait(120)
            return forward(crops)

        monkeypatch.setattr(self.engine.encoder, "forward_crops", held)


@pytest.fixture
def hold(server, monkeypatch):
    made = Hold(server, monkeypatch)
    yield made
    made.go.set()
    until(lambda: made.engine.in_work == 0)


@contextmanager
def uploads(server, collection, count, image_files):
    """Start `count` uploads of one image each at the same time."""

    def send(number: int) -> int:
        return each.post(f"{collection}/items", files=upload([image_files[number]])).status_code

    each = httpx.Client(base_url=server.url, timeout=60, limits=httpx.Limits(max_connections=count))
    with each, ThreadPoolExecutor(count) as pool:
        yield [pool.submit(send, number) for number in range(count)]


def reads(client, collection, vector) -> None:
    """Check that requests without embedding are answered."""
    assert client.post(f"{collection}/search", json={"vector": vector, "k": 1}).json()["matches"][0]["id"] == "there"
    queries = {"queries": [{"vector": vector}, {"id": "there"}]}
    assert client.post(f"{collection}/search/batch", json=queries).status_code == 200
    assert client.post(f"{collection}/search", json={"id": "there"}).status_code == 200
    assert client.get(f"{collection}/items").json()["items"][0]["id"] == "there"


def test_searches_by_vector_are_answered_while_uploads_are_embedded(client, server, collection, image_files, hold):
    """Send more uploads than there are decode threads: all of them are in the engine at once."""
    vector = [1.0] * 32
    client.put(f"{collection}/items", json=[{"id": "there", "vector": vector}])
    many = server.app.state.settings.decode_threads + 4
    with uploads(server, collection, many, image_files) as sent:
        try:
            until(lambda: hold.engine.in_work == many)
            reads(client, collection, vector)
            assert not any(one.done() for one in sent)
        finally:
            hold.go.set()
    assert [one.result() for one in sent] == [200] * many
    assert client.get(f"{collection}/count").json() == {"count": many + 1}


def test_searches_by_vector_are_answered_while_uploads_wait_to_write(client, server, collection, image_files):
    """Send more uploads than the framework has threads."""
    vector = [1.0] * 32
    client.put(f"{collection}/items", json=[{"id": "there", "vector": vector}])
    held, go = threading.Event(), threading.Event()
    hold = server.bench.collection("photos").hold_writes
    holding = threading.Thread(target=hold, args=[lambda: (held.set(), go.wait(120))])
    holding.start()
    assert held.wait(120)
    with uploads(server, collection, 45, image_files) as sent:
        try:
            until(lambda: server.app.state.ingest.writers.statistics().tasks_waiting >= 45 - WRITERS)
            reads(client, collection, vector)
            assert not any(one.done() for one in sent)
        finally:
            go.set()
    holding.join()
    assert [one.result() for one in sent] == [200] * 45


@pytest.mark.parametrize("what", ["upload", "search"])
def test_queued_images_are_dropped_when_their_client_disconnects(client, server, collection, image_files, hold, what):
    """One image holds the device; queued images of another client are dropped when it disconnects."""
    with uploads(server, collection, 1, image_files) as sent:
        try:
            assert hold.begun.wait(120)
            if what == "upload":
                request = client.build_request("POST", f"{collection}/items", files=upload(image_files[1:4]))
            else:
                queries = [{"image": as_text(path)} for path in image_files[1:4]]
                request = client.build_request("POST", f"{collection}/search/batch", json={"queries": queries})
            with in_flight(request):
                until(lambda: hold.engine.in_work == 4)
            until(lambda: hold.engine.in_work == 1)
        finally:
            hold.go.set()
    assert sent[0].result() == 200
    assert client.get(f"{collection}/count").json() == {"count": 1}
