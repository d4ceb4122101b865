"""The deadline of every route, and what a request holds until it is over."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from model_shelf import KB, Shelf
from rest_requests import ended, in_flight, is_problem
from rest_rows import Row
from starlette.responses import Response
from waiting import until

from nnclr_hub import Encoder, load_encoder
from nnclr_hub.errors import Overloaded
from nnclr_hub.store.base import Item
from nnclr_hub.store.cancellation import check_cancelled
from serving.access import Access
from serving.keys import READ, WRITE
from serving.limits import Budget, RequestLimits, dropped_if_disconnected
from serving.routes import collections as changes
from serving.settings import Settings

DEADLINES_S = (0.3, 3.0, 30.0)  # one after the other: on a busy machine, work may not begin before the first


@pytest.fixture(scope="module")
def hurried(model, tmp_path_factory, serve):
    """Run a server with a small limit of answers, and 300 items of 1 kB."""
    options = {"deadline_s": 60, "answer_bytes": 200_000, "answers_bytes": 300_000, "search_capacity": 8}
    for server in serve(model, tmp_path_factory.mktemp("hurried") / "store", **options):
        httpx.put(f"{server.url}/api/v1/collections/c", json={"dim": 2}, timeout=60)
        vectors = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
        server.bench.collection("c").upsert(
            [Item(f"i{i:03}", row, {"text": "x" * 900}) for i, row in enumerate(vectors)]
        )
        yield server


@pytest.fixture
def hurried_client(hurried):
    with httpx.Client(base_url=hurried.url, timeout=60) as client:
        yield client


@pytest.fixture
def stuck(hurried, monkeypatch):
    """Let every read of the collection work until it is cancelled; return how many have begun and what ended them."""
    work_of = SimpleNamespace(begun=0, ended=[])
    kind = type(hurried.bench.collection("c"))

    def work(self, *args, **options):
        work_of.begun += 1
        try:
            while True:
                check_cancelled()
                time.sleep(0.01)
        except Exception as error:
            work_of.ended.append(type(error).__name__)
            raise

    for name in ("search_each", "count", "get"):
        monkeypatch.setattr(kind, name, work)
    return work_of


LATE = (504, "deadline_exceeded")
ROUTES = {
    "search": Row("POST c/c/search", {"vector": [1.0, 2.0]}, *LATE),
    "batch": Row("POST c/c/search/batch", {"queries": [{"vector": [1.0, 2.0]}] * 4}, *LATE),
    "count": Row("GET c/c/count", None, *LATE),
    "item": Row("GET c/c/items/i001", None, *LATE),
}


def until_hurried(monkeypatch, ask: Callable[[], httpx.Response], begun: Callable[[], object]) -> None:
    """Ask with one deadline after the other, until the work begins before it; each answer is 504."""
    for seconds in DEADLINES_S:
        monkeypatch.setattr("serving.limits.Budget", lambda _, seconds=seconds: Budget(seconds))
        is_problem(ask(), *LATE)
        if begun():
            return


@pytest.mark.parametrize("name", ROUTES)
def test_work_stops_at_the_deadline(hurried, hurried_client, stuck, monkeypatch, name):
    until_hurried(monkeypatch, lambda: ROUTES[name].send(hurried_client), lambda: stuck.begun)
    until(lambda: gauge(hurried, "nnclr_searches_in_work") == 0 and len(stuck.ended) == stuck.begun > 0)
    assert set(stuck.ended) == {"DeadlineExceeded"}


def test_the_client_does_not_wait_for_work_that_cannot_stop(hurried, hurried_client, monkeypatch):
    begun, release = [], threading.Event()
    monkeypatch.setattr(
        type(hurried.bench.collection("c")), "count", lambda self, where: begun.append(1) or release.wait(120)
    )
    try:
        until_hurried(monkeypatch, lambda: ROUTES["count"].send(hurried_client), lambda: begun)
        assert not release.is_set()
        until(lambda: gauge(hurried, "nnclr_searches_in_work") == len(begun) > 0)  # its memory is still in use
    finally:
        release.set()
    until(lambda: gauge(hurried, "nnclr_searches_in_work") == 0)


@pytest.mark.parametrize(("method", "name"), [("POST", "search"), ("GET", "count")])
def test_a_read_stops_when_its_client_disconnects(hurried, hurried_client, stuck, method, name):
    with in_flight(hurried_client.build_request(method, f"/api/v1/collections/c/{name}", json=ROUTES[name].body)):
        until(lambda: gauge(hurried, "nnclr_searches_in_work") == 1)
        assert stuck.ended == []
    until(lambda: gauge(hurried, "nnclr_searches_in_work") == 0)
    assert set(stuck.ended) <= {"ClientDisconnect"}  # none if it had not begun


@pytest.mark.parametrize(
    ("needed", "fails", "finished"), [(READ, False, False), (WRITE, False, True), (WRITE, True, True)]
)
def test_a_write_is_finished_when_its_client_disconnects(needed, fails, finished):
    """Also when work before it, which could be dropped, has failed."""
    done = []

    async def route(scope, receive, send) -> None:
        if fails:
            with suppress(Overloaded), dropped_if_disconnected():
                raise Overloaded("busy")
        await asyncio.sleep(0.5)
        done.append(1)

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "http_version": "1.1", "path": "/", "headers": [], "state": {"required": Access(needed)}}
    asyncio.run(RequestLimits(route, Settings())(scope, receive, receive))  # type: ignore[arg-type]
    assert bool(done) == finished


def test_the_time_of_an_upload_does_not_count(hurried, monkeypatch):
    uploaded = threading.Event()

    class Uploading(Budget):
        """Has one second until the client begins to send the last part."""

        def start(self):
            self.seconds = 60.0 if uploaded.is_set() else 1.0
            super().start()

    def slowly():
        yield b'{"vector": '
        time.sleep(1.5)
        uploaded.set()
        yield b"[1.0, 2.0]}"

    monkeypatch.setattr("serving.limits.Budget", Uploading)
    headers = {"Content-Type": "application/json"}
    url = f"{hurried.url}/api/v1/collections/c/search"
    assert httpx.post(url, content=slowly(), headers=headers, timeout=60).status_code == 200


@pytest.mark.parametrize(("work_s", "status"), [(0, 200), (20, 504)])
def test_the_time_of_loading_a_model_does_not_count(make_engines, work_s, status):
    async def ask(seconds: float) -> int:
        shelf = Shelf(a=KB)
        engines = make_engines(shelf)
        shelf.wait.clear()

        async def app(scope, receive, send) -> None:
            asyncio.get_running_loop().call_later(1.5 * seconds, shelf.wait.set)
            await engines.get_async("a")
            await asyncio.sleep(work_s)
            await Response()(scope, receive, send)

        transport = httpx.ASGITransport(RequestLimits(app, Settings(deadline_s=seconds)))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return (await client.get("/")).status_code

    answers = (asyncio.run(ask(seconds)) for seconds in (0.3, 3.0))
    assert status in answers


def test_the_first_attention_map_has_the_deadline_of_every_request(hurried, hurried_client, image_files, monkeypatch):
    """What it loads continues to load, once, for the next request."""
    extractor = load_encoder("random:resnet18", device="cpu").attention_extractor
    begun, release = [], threading.Event()

    def slow(self):
        begun.append(1)
        assert release.wait(120)
        return extractor

    def ask() -> httpx.Response:
        files = {"image": ("a.jpg", image_files[0].read_bytes())}
        return hurried_client.post("/api/v1/attention", files=files)

    monkeypatch.setattr(Encoder, "attention_extractor", cached_property(slow))
    Encoder.attention_extractor.__set_name__(Encoder, "attention_extractor")
    try:
        until_hurried(monkeypatch, ask, lambda: begun)
        is_problem(ask(), *LATE)
        assert len(begun) == 1
    finally:
        release.set()
    monkeypatch.setattr("serving.limits.Budget", Budget)
    assert ask().status_code == 200
    assert len(begun) == 1


def test_searches_above_the_capacity_are_refused_with_429(hurried, hurried_client, stuck, monkeypatch):
    budgets: list[Budget] = []
    monkeypatch.setattr("serving.limits.Budget", lambda seconds: budgets.append(Budget(seconds)) or budgets[-1])
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(ROUTES["batch"].send, hurried_client) for _ in range(2)]
        until(lambda: gauge(hurried, "nnclr_searches_in_work") == 8)
        for name in ("search", "count"):
            refused = ROUTES[name].send(hurried_client)
            is_problem(refused, 429, "overloaded")
            assert int(refused.headers["Retry-After"]) > 0
        for budget in budgets:
            budget.seconds = 0.0
            budget.start()
        assert {one.result().status_code for one in waiting} == {504}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "search", {"vector": [1.0, 2.0], "k": 250}),
        ("POST", "search/batch", {"queries": [{"vector": [1.0, 2.0], "k": 50}] * 5}),
        ("GET", "items?limit=250", None),
    ],
)
def test_an_answer_above_the_limit_is_refused(hurried, hurried_client, method, path, body):
    url = f"/api/v1/collections/c/{path}"
    is_problem(hurried_client.request(method, url, json=body), 413, "answer_too_large")
    until(lambda: gauge(hurried, "nnclr_answer_bytes_in_work") == 0)
    if body is not None:
        body |= {"k": 150} if "k" in body else {"queries": body["queries"][:3]}
    smaller = hurried_client.request(method, url.replace("250", "150"), json=body)
    assert smaller.status_code == 200
    assert smaller.headers["content-length"] == str(len(smaller.content))


def test_findings_that_are_too_long_are_cut_and_say_what_is_missing(hurried, hurried_client, monkeypatch):
    path = "/api/v1/collections/c/inspections"
    assert ended(hurried_client, hurried_client.post(path, json={}))["state"] == "done"
    whole = hurried_client.get(f"{path}/latest").json()
    monkeypatch.setattr(hurried.app.state.settings, "answer_bytes", 8000)
    cut = hurried_client.get(f"{path}/latest").json()
    assert whole["truncated"] == ""
    assert cut["findings"].keys() == whole["findings"].keys()
    kept, there = (len(one["findings"]["outliers"]) for one in (cut, whole))
    assert f"{there - kept} of the {there} entries of `outliers`" in cut["truncated"]
    assert cut["findings"]["outliers"] == whole["findings"]["outliers"][:kept]


def gauge(server, name: str) -> float:
    return server.engines.metrics.registry.get_sample_value(name) or 0.0


def test_a_wait_for_changes_ends_with_the_first_change(hurried, hurried_client):
    path = "/api/v1/collections/c/changes"
    first = hurried_client.get(path, params={"limit": 1}).json()
    params = {"since": first["last"], "log": first["log"], "wait": 30}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(hurried_client.get, path, params=params)
        until(lambda: hurried.app.state.waiting_for_changes)
        hurried.bench.collection("c").upsert([Item("late", np.ones(2, np.float32))])
        assert [change["id"] for change in answer.result().json()["changes"]] == ["late"]


def test_a_wait_for_changes_ends_before_the_deadline(hurried_client, monkeypatch):
    assert changes.WAIT_SHARE < 1
    monkeypatch.setattr(changes, "WAIT_SHARE", 0.005)  # of 60 s
    path = "/api/v1/collections/c/changes"
    first = hurried_client.get(path, params={"limit": 1}).json()
    since = {"since": first["last"], "log": first["log"]}
    answer = hurried_client.get(path, params={**since, "wait": 30})
    assert answer.json() == {"changes": [], "next": first["last"], "last": first["last"], "log": first["log"]}
    is_problem(hurried_client.get(path, params={**since, "log": "another", "wait": 30}), 410, "changes_unavailable")


def test_many_clients_that_wait_poll_less_often(hurried, hurried_client, monkeypatch):
    monkeypatch.setattr(changes, "POLLS_PER_SECOND", 20)
    others, waiting = set(range(19)), hurried.app.state.waiting_for_changes
    waiting |= others
    path = "/api/v1/collections/c/changes"
    first = hurried_client.get(path, params={"limit": 1}).json()
    kind, polls = type(hurried.bench.collection("c")), []
    read = kind.changes
    monkeypatch.setattr(kind, "changes", lambda *args, **named: polls.append(1) or read(*args, **named))
    params = {"since": first["last"], "log": first["log"], "wait": 0.8}
    try:
        assert hurried_client.get(path, params=params).status_code == 200
    finally:
        waiting -= others
    assert len(polls) <= 3  # 8 without the limit, and the answer
