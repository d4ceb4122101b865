"""Files are imported by REST, by both clients and by the command line, whole, in parts, and after lost connections."""

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from rest_requests import finished, held_up, is_problem, talk
from waiting import until

from nnclr_hub import Client
from nnclr_hub.client import uploads
from nnclr_hub.errors import CollectionNotFound, Overloaded
from nnclr_hub.workbench.file_import import ImportRequest

NDJSON = "application/x-ndjson"
DIM = 4
VECTORS = np.random.default_rng(0).normal(size=(3000, DIM)).astype(np.float32)
LINES = [json.dumps({"id": f"i{i}", "vector": v.tolist(), "metadata": {"n": i}}) + "\n" for i, v in enumerate(VECTORS)]
BODY = "".join(LINES).encode()


@pytest.fixture
def points(client):
    """Create a collection of vectors, and delete it afterwards."""
    path = "/api/v1/collections/points"
    assert client.put(path, json={"dim": DIM, "metric": "l2"}).status_code == 201
    yield path
    client.delete(path)


def stored(client, points) -> dict[str, int]:
    """Return the metadata `n` of all items by id."""
    body = client.get(f"{points}/items", params={"limit": 10_000}).json()
    return {item["id"]: item["metadata"]["n"] for item in body["items"]}


ALL = {f"i{i}": i for i in range(len(LINES))}


def test_a_body_is_imported_by_a_job_and_the_same_key_gives_the_same_job(client, points):
    headers = {"Content-Type": NDJSON, "Idempotency-Key": "once"}
    body = BODY + b"broken\n"
    response = client.post(
        f"{points}/imports", content=(body[i : i + 9999] for i in range(0, len(body), 9999)), headers=headers
    )
    assert response.status_code == 202
    job = response.json()["job"]
    assert response.headers["location"] == f"/api/v1/jobs/{job['id']}"
    done = finished(client, f"/api/v1/jobs/{job['id']}")
    assert (done["kind"], done["state"]) == ("import", "done")
    assert done["result"]["added"] == len(LINES)
    assert [error["name"] for error in done["result"]["errors"]] == [f"row {len(LINES) + 1}"]
    assert stored(client, points) == ALL
    again = client.post(f"{points}/imports", content=body, headers=headers)
    assert again.json()["job"]["id"] == job["id"]
    assert client.get(f"{points}/imports/once").json()["job"]["id"] == job["id"]
    other = client.post(f"{points}/imports", content=body, headers={**headers, "Idempotency-Key": "twice"})
    assert finished(client, f"/api/v1/jobs/{other.json()['job']['id']}")["result"]["unchanged"] == len(LINES)


def cut(server, points: str, body: bytes, sent: int, headers: dict[str, str]) -> None:
    """Send a part of a body, and close the connection."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection((httpx.URL(server.url).host, httpx.URL(server.url).port)) as connection:
        head = f"POST {points}/imports HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n{lines}\r\n"
        connection.sendall(head.encode() + body[:sent])
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


def test_a_cut_connection_continues_where_it_stopped(server, client, points):
    headers = {"Content-Type": NDJSON, "Idempotency-Key": "cut"}
    received = 0
    for stop in (70_000, 150_001):
        cut(server, points, BODY[received:], stop - received, {**headers, "Upload-Offset": str(received)})
        # the connection closes before the handler has written the bytes that it had read
        until(lambda stop=stop: client.get(f"{points}/imports/cut").json() == {"received": stop, "job": None})
        received = stop
    refused = client.post(f"{points}/imports", content=b"x", headers={**headers, "Upload-Offset": "150002"})
    is_problem(refused, 422, "invalid_request")
    # an earlier offset replaces what is behind it: an answer may have been lost
    rest = client.post(f"{points}/imports", content=BODY[100_000:], headers={**headers, "Upload-Offset": "100000"})
    assert finished(client, f"/api/v1/jobs/{rest.json()['job']['id']}")["result"]["added"] == len(LINES)
    assert stored(client, points) == ALL


def test_what_has_arrived_of_a_silent_upload_is_kept(serve, model, tmp_path):
    def slowly() -> Iterator[bytes]:
        head = f"POST /api/v1/collections/c/imports HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {NDJSON}\r\n"
        yield f"{head}Idempotency-Key: silent\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
        yield BODY[:70_000]

    for server in serve(model, tmp_path / "store", body_idle_s=1):
        path = f"{server.url}/api/v1/collections/c"
        assert httpx.put(path, json={"dim": DIM}, timeout=60).status_code == 201
        assert talk(server.url, slowly(), whole=False).startswith(b"HTTP/1.1 408")
        until(
            lambda path=path: httpx.get(f"{path}/imports/silent", timeout=60).json()["received"] == 70_000,
            patience_s=20,
        )


@pytest.fixture(scope="module")
def limited(serve, model, tmp_path_factory):
    """Run a server that imports as many bytes as BODY has, and takes 1000 bytes in other requests."""
    folder = tmp_path_factory.mktemp("limited") / "store"
    yield from serve(model, folder, max_bytes=1000, bodies_bytes=1000, import_bytes=len(BODY))


@pytest.fixture
def limited_client(limited):
    with httpx.Client(base_url=limited.url, timeout=60) as client:
        client.put("/api/v1/collections/points", json={"dim": DIM})
        yield client
        client.delete("/api/v1/collections/points")


def test_a_body_may_exceed_the_limit_of_other_requests_but_not_that_of_imports(limited_client):
    client, path, typed = limited_client, "/api/v1/collections/points/imports", {"Content-Type": NDJSON}
    job = client.post(path, content=BODY, headers=typed).json()["job"]
    assert finished(client, f"/api/v1/jobs/{job['id']}")["result"]["added"] == len(LINES)
    for body in (BODY + b"\n", iter([BODY, b"\n"])):  # with and without a Content-Length
        is_problem(client.post(path, content=body, headers=typed), 413, "request_too_large")
    # in parts, too
    keyed = {**typed, "Idempotency-Key": "large"}
    part = client.post(path, content=BODY, headers={**keyed, "Upload-Complete": "?0"})
    assert part.json()["received"] == len(BODY)
    last = client.post(path, content=b"\n", headers={**keyed, "Upload-Offset": str(len(BODY))})
    is_problem(last, 413, "request_too_large")


def test_clients_upload_in_parts_and_continue_after_they_were_killed(server, client, points, tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "PART", 50_000)
    path = tmp_path / "items.ndjson"
    path.write_bytes(BODY)
    seen: list[int] = []

    def killed(done: int, total: int) -> None:
        seen.append(done)
        if done >= 100_000:
            raise KeyboardInterrupt

    with Client(server.url) as opened:
        with pytest.raises(KeyboardInterrupt):
            opened.start("import", ImportRequest("points", str(path)), killed)
        assert seen == [0, 50_000, 100_000]
        seen.clear()
        request = ImportRequest("points", str(path))
        job = opened.start("import", request, lambda done, total: seen.append(done))
        assert seen[0] == 100_000
        assert opened.jobs.wait(job.id).result["added"] == len(LINES)
        assert stored(client, points) == ALL
        with pytest.raises(CollectionNotFound):
            opened.start("import", ImportRequest("none", str(path)))


def test_an_interrupted_upload_is_deleted_on_request(server, client, points, tmp_path):
    body = "".join(LINES[:500]).encode()  # unlike the files of the other tests, whose content names their uploads
    path, key = tmp_path / "points.ndjson", hashlib.sha256(body).hexdigest()
    path.write_bytes(body)
    part = {"Content-Type": NDJSON, "Upload-Complete": "?0"}
    state = f"{points}/imports/{key}"

    sent = client.post(f"{points}/imports", content=body[:9000], headers={**part, "Idempotency-Key": key})
    assert (sent.json(), client.get(state).json()["received"]) == ({"received": 9000, "job": None}, 9000)
    for _ in range(2):
        assert client.delete(state).status_code == 204
        assert client.get(state).json() == {"received": 0, "job": None}
    with Client(server.url) as opened:  # nothing hinders another attempt
        opened.run("import", ImportRequest("points", str(path)))
    assert stored(client, points) == {f"i{i}": i for i in range(500)}


def test_messages_name_the_file_of_the_user(client, collection):
    for header, name in (
        ("attachment; filename*=UTF-8''m%C3%A4rz.zip", "märz.zip"),
        ("x; filename=../a/b", "b.zip"),
        ("attachment; filename*;filename*0*=x", "upload.zip"),  # `email` raises TypeError
    ):
        headers = {"Content-Type": "application/zip", "Content-Disposition": header}
        job = client.post(f"{collection}/imports", content=b"not a zip", headers=headers).json()["job"]
        ended = finished(client, f"/api/v1/jobs/{job['id']}")
        assert (ended["params"]["file"], name in ended["error"]["detail"]) == (name, True)


def test_requests_that_end_an_upload_at_once_get_the_same_job(server, client, points, monkeypatch):
    headers = {"Content-Type": NDJSON, "Idempotency-Key": "same"}
    client.post(f"{points}/imports", content=BODY, headers={**headers, "Upload-Complete": "?0"})

    def end(_: int) -> httpx.Response:
        return client.post(f"{points}/imports", content=b"", headers={**headers, "Upload-Offset": str(len(BODY))})

    with ThreadPoolExecutor(8) as pool, held_up(monkeypatch, server.app.state.jobs, "submit") as begun:
        sent = [pool.submit(end, number) for number in range(8)]
        assert begun.acquire(timeout=120)
    answers = [one.result() for one in sent]
    assert {answer.status_code for answer in answers} == {202}
    [job] = {answer.json()["job"]["id"] for answer in answers}
    assert finished(client, f"/api/v1/jobs/{job}")["result"]["added"] == len(LINES)


def test_a_lost_connection_does_not_write_when_its_upload_was_continued(client, points, monkeypatch):
    monkeypatch.setattr("serving.routes.imports.WRITTEN", 1)  # bytes that wait to be written
    headers, replaced = {"Content-Type": NDJSON, "Idempotency-Key": "lost"}, threading.Event()

    def slowly() -> Iterator[bytes]:
        yield BODY[:70_000]
        assert replaced.wait(120)
        yield BODY[:30_000]

    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(client.post, f"{points}/imports", content=slowly(), headers=headers)
        until(lambda: client.get(f"{points}/imports/lost").json()["received"] == 70_000)
        client.post(f"{points}/imports", content=BODY[:90_000], headers={**headers, "Upload-Complete": "?0"})
        replaced.set()
        is_problem(lost.result(), 422, "invalid_request")
    rest = client.post(f"{points}/imports", content=BODY[90_000:], headers={**headers, "Upload-Offset": "90000"})
    assert finished(client, f"/api/v1/jobs/{rest.json()['job']['id']}")["result"]["added"] == len(LINES)
    assert stored(client, points) == ALL


def test_an_upload_continues_if_its_job_could_not_be_submitted(server, client, points, monkeypatch):
    headers = {"Content-Type": NDJSON, "Idempotency-Key": "full"}

    def full(*arguments, **options):
        raise Overloaded("too many jobs wait")

    with monkeypatch.context() as patch:
        patch.setattr(server.app.state.jobs, "submit", full)
        is_problem(client.post(f"{points}/imports", content=BODY, headers=headers), 429, "overloaded")
    assert client.get(f"{points}/imports/full").json() == {"received": len(BODY), "job": None}
    last = {**headers, "Upload-Offset": str(len(BODY))}
    job = client.post(f"{points}/imports", content=b"", headers=last).json()["job"]
    assert finished(client, f"/api/v1/jobs/{job['id']}")["result"]["added"] == len(LINES)


def test_files_that_nobody_can_continue_are_deleted(limited, limited_client, tmp_path, monkeypatch):
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "cache"))
    path, typed = "/api/v1/collections/points/imports", {"Content-Type": NDJSON}
    cut(limited, path, BODY, 70_000, typed)
    for headers in (typed, {**typed, "Idempotency-Key": "large"}):
        body = iter([BODY, b"\n"])
        is_problem(limited_client.post(path, content=body, headers=headers), 413, "request_too_large")
    until(lambda: not list((tmp_path / "cache" / "adding").iterdir()))
