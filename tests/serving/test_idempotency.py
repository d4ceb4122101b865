"""Idempotency keys: a request runs once; its response is stored for a day, within limits per caller."""

import asyncio
import threading
import time
from contextlib import closing

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from nnclr_hub.errors import DiskFull, RequestTooLarge
from nnclr_hub.store.records import RECORDS, Records
from serving.idempotency import MAX_STORED, Idempotency
from serving.replies import LIFETIME_S, Replies
from serving.routes import ROUTERS
from serving.security.access import AccessRules


class World:
    """An app that counts what it does, behind the layer."""

    def __init__(self, records, most: int = 100, most_bytes: int = 10**9) -> None:
        self.done: list[bytes] = []
        self.marks: list[str] = []
        self.status = 200
        self.answer = b"it is done"
        self.gate: asyncio.Event | None = None
        self.begun = asyncio.Event()
        app = Starlette(routes=[Route("/{path:path}", self._do, methods=["GET", "POST", "PUT"])])
        self.app = Idempotency(app, Replies(records, most, most_bytes), AccessRules(ROUTERS))

    async def _do(self, request: Request) -> Response:
        self.done.append(await request.body())
        self.marks.append(getattr(request.state, "idempotent_request", ""))
        self.begun.set()
        if self.gate is not None:
            await self.gate.wait()
        headers = {"X-Number": str(len(self.done)), "Location": "/api/v1/jobs/7", "X-Request-ID": "first"}
        return PlainTextResponse(self.answer, self.status, headers)

    async def send(self, key="k", content=b"body", path="/api/v1/x", method="POST", **headers) -> httpx.Response:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            headers["Idempotency-Key"] = key
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://x") as client:
            return await client.request(method, path, content=content, headers=headers)


def run(coroutine):
    return asyncio.run(coroutine)


@pytest.fixture
def records(tmp_path):
    with closing(Records(tmp_path / RECORDS, read_only=False)) as opened:
        yield opened


@pytest.fixture
def world(records):
    return World(records)


def test_a_repeated_request_gets_the_stored_response(world):
    first, second = run(world.send()), run(world.send())
    assert world.done == [b"body"]
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert (second.status_code, second.content) == (200, b"it is done")
    assert second.headers["location"] == "/api/v1/jobs/7"
    assert second.headers["x-number"] == "1"
    assert "x-request-id" not in second.headers  # of the first request
    assert run(world.send("other")).headers["x-number"] == "2"


def test_only_post_requests_with_a_key_are_stored(world):
    for _ in range(2):
        run(world.send(None))
        run(world.send(method="PUT"))
        run(world.send(path="/docs"))
    assert len(world.done) == 6


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/v1/embed", "/api/v1/collections/c/search"])
def test_routes_that_change_nothing_ignore_the_key(world, records, path):
    for _ in range(2):
        assert run(world.send(path=path)).status_code == 200
    assert len(world.done) == 2
    assert records.list("reply") == []


@pytest.mark.parametrize(
    "other",
    [
        {"content": b"another"},
        {"path": "/api/v1/y"},
        {"path": "/api/v1/x?a=1"},
        {"accept": "application/x-npy"},
        {"content_type": "text/plain"},
    ],
)
def test_the_same_key_with_another_request_is_refused(world, other):
    run(world.send())
    answer = run(world.send(**other))
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_mismatch")
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(world.done) == 1
    assert run(world.send()).headers["idempotency-replayed"] == "true"


def test_a_key_belongs_to_one_caller(world):
    run(world.send(authorization="Bearer one"))
    assert run(world.send(authorization="Bearer two", content=b"another")).headers["x-number"] == "2"
    assert run(world.send(authorization="Bearer one")).headers["x-number"] == "1"


def test_a_form_with_a_new_boundary_is_the_same_request(world):
    async def upload(data: bytes) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(world.app), base_url="http://x") as client:
            files = [("files", ("a.jpg", data))]
            return await client.post("/api/v1/x", files=files, headers={"Idempotency-Key": "k"})

    assert run(upload(b"picture")).status_code == 200
    assert run(upload(b"picture")).headers["idempotency-replayed"] == "true"
    assert run(upload(b"other")).status_code == 422
    assert len(world.done) == 1


@pytest.mark.parametrize("status", [429, 500, 503, 504, 507])
def test_a_response_that_asks_for_a_retry_is_not_stored(world, status):
    world.status = status
    run(world.send())
    world.status = 200
    answer = run(world.send())
    assert (answer.status_code, len(world.done)) == (200, 2)
    assert run(world.send()).headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("status", [201, 202, 204, 404, 409, 413, 422])
def test_a_final_response_is_stored(world, status):
    world.status = status
    world.answer = b"" if status == 204 else b"no"
    assert run(world.send()).status_code == status
    again = run(world.send())
    assert (again.status_code, again.content, len(world.done)) == (status, world.answer, 1)


def test_a_second_request_waits_for_the_first(world):
    async def both() -> tuple[httpx.Response, httpx.Response]:
        world.gate = asyncio.Event()
        first = asyncio.create_task(world.send())
        await world.begun.wait()
        second = await world.send()
        world.gate.set()
        return await first, second

    first, second = run(both())
    assert first.status_code == 200
    assert (second.status_code, second.json()["code"]) == (409, "idempotency_in_flight")
    assert second.headers["retry-after"] == "1"
    assert len(world.done) == 1
    assert run(world.send()).headers["idempotency-replayed"] == "true"


def test_a_failed_request_is_not_stored(world):
    class Broken(Exception):
        pass

    async def fails(scope, receive, send):
        raise Broken

    inner, world.app._app = world.app._app, fails
    with pytest.raises(Broken):
        run(world.send())
    world.app._app = inner
    assert run(world.send()).status_code == 200


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "\t"])
def test_an_invalid_key_is_refused(world, key):
    answer = run(world.send(key))
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_invalid")
    assert not world.done


def test_errors_under_v1_have_the_openai_envelope(world):
    run(world.send(path="/v1/files"))
    for answer in (run(world.send(path="/v1/files", content=b"another")), run(world.send("a b", path="/v1/x"))):
        assert answer.status_code == 400
        assert answer.json()["error"]["code"].startswith("idempotency_")


def test_a_body_above_the_limit_is_a_problem(world):
    async def too_much() -> list[dict]:
        sent: list[dict] = []

        async def receive():
            raise RequestTooLarge("The request is above the limit.")

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/api/v1/x", "query_string": b""}
        await world.app({**scope, "headers": [(b"idempotency-key", b"k")]}, receive, send)
        return sent

    assert run(too_much())[0]["status"] == 413


def test_a_job_is_started_once_per_key(client, collection):
    body, key = {"kind": "verify", "collection": "photos"}, {"Idempotency-Key": "once"}
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: answers.append(client.post("/api/v1/jobs", json=body, headers=key)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} <= {202, 409}
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 202}) == 1
    again = client.post("/api/v1/jobs", json=body, headers=key)
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == f"/api/v1/jobs/{again.json()['id']}"
    assert len([job for job in client.get("/api/v1/jobs").json()["jobs"] if job["kind"] == "verify"]) == 1
    other = client.post("/api/v1/jobs", json={**body, "kind": "compact"}, headers=key)
    assert other.json()["code"] == "idempotency_mismatch"


def test_a_server_without_stored_responses_writes_none(model, tmp_path, serve):
    for running in serve(model, tmp_path / "store", replies_kept=0):
        key = {"Idempotency-Key": "k"}
        assert httpx.put(f"{running.url}/api/v1/collections/photos", json={}, timeout=60).status_code == 201
        answers = [
            httpx.post(
                f"{running.url}/api/v1/jobs", json={"kind": "verify", "collection": "photos"}, headers=key, timeout=60
            )
            for _ in range(2)
        ]
        assert len({answer.json()["id"] for answer in answers}) == 2
        assert running.bench.store.records.list("reply") == []


def test_stored_responses_survive_a_restart(tmp_path):
    for replayed in (None, "true"):
        with closing(Records(tmp_path / RECORDS, read_only=False)) as records:
            world = World(records)
            answer = run(world.send())
            assert answer.headers.get("idempotency-replayed") == replayed
            assert answer.headers["x-number"] == "1"
            assert len(world.done) == (0 if replayed else 1)


def test_different_requests_have_different_ids(world):
    run(world.send("a"))
    run(world.send("b"))
    run(world.send("c", content=b"another"))
    run(world.send(None))
    assert len(set(world.marks)) == 4
    assert world.marks[3] == ""


def test_stored_responses_are_limited_in_number_and_bytes(records):
    world = World(records, most=3)
    for key in "abcd":
        run(world.send(key))
    assert len(records.list("reply")) == 3
    assert run(world.send("d")).headers["x-number"] == "4"
    assert run(world.send("a")).headers["x-number"] == "5"  # forgotten
    world = World(records, most_bytes=5000)  # another process counts the stored ones
    world.answer = b"x" * 2000
    for key in "efg":
        run(world.send(key))
    assert sum(one.content["size"] for one in records.list("reply")) <= 5000
    assert run(world.send("g")).headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("limits", [{"most": 4}, {"most_bytes": 9000}])
def test_a_caller_cannot_push_out_the_responses_of_another(records, limits):
    for restarted in (False, True):
        world = World(records, **limits)
        world.answer = b"x" * 2000
        if not restarted:
            run(world.send("mine", authorization="Bearer one"))
        for number in range(9):
            run(world.send(f"{restarted}{number}", authorization="Bearer two"))
        again = run(world.send("mine", authorization="Bearer one"))
        assert again.headers.get("idempotency-replayed") == "true"
    assert len(records.list("reply")) == 4


def test_a_huge_response_is_sent_but_not_stored(world):
    world.answer = b"x" * (MAX_STORED + 1)
    for number in ("1", "2"):
        answer = run(world.send())
        assert (answer.headers["x-number"], len(answer.content)) == (number, MAX_STORED + 1)


def test_a_key_expires_after_a_day(world, monkeypatch):
    run(world.send())
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + LIFETIME_S + 1)
    assert run(world.send(content=b"another")).headers["x-number"] == "2"


def test_a_response_that_cannot_be_stored_is_still_sent(world, records, monkeypatch):
    def full(*_):
        raise DiskFull("The disk is full.")

    monkeypatch.setattr(records, "put", full)
    assert run(world.send()).status_code == 200
    assert run(world.send()).headers["x-number"] == "2"
