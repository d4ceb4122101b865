"""The deadline of every route, and what a request holds until it is over."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from rest_requests import is_problem
from waiting import until

from nnclr_hub.store.base import Item
from nnclr_hub.store.cancellation import check_cancelled
from serving.deadline import Budget

DEADLINE_S = 1.0


@pytest.fixture(scope="module")
def hurried(model, tmp_path_factory, serve):
    """Run a server with a short deadline and a small limit of answers, and 300 items of 1 kB."""
    options = {"deadline_s": DEADLINE_S, "answer_bytes": 200_000, "answers_bytes": 300_000, "search_capacity": 4}
    for server in serve(model, tmp_path_factory.mktemp("hurried") / "store", **options):
        httpx.put(f"{server.url}/api/v1/collections/c", json={"dim": 2})
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
    """Let every read of the collection work until it is cancelled; yield what ended it."""
    ended: list[type] = []
    kind = type(hurried.bench.collection("c"))

    def work(self, *args, **options):
        try:
            while True:
                check_cancelled()
                time.sleep(0.01)
        except Exception as error:
            ended.append(type(error))
            raise

    for name in ("search_each", "count", "verify", "get"):
        monkeypatch.setattr(kind, name, work)
    return ended


ROUTES = {
    "search": ("POST", "/api/v1/collections/c/search", {"vector": [1.0, 2.0]}),
    "batch": ("POST", "/api/v1/collections/c/search/batch", {"queries": [{"vector": [1.0, 2.0]}] * 2}),
    "count": ("GET", "/api/v1/collections/c/count", None),
    "item": ("GET", "/api/v1/collections/c/items/i001", None),
    "verify": ("POST", "/api/v1/collections/c/verify", None),
}


@pytest.mark.parametrize("route", ROUTES)
def test_work_stops_at_the_deadline(hurried, hurried_client, stuck, route):
    method, path, body = ROUTES[route]
    is_problem(hurried_client.request(method, path, json=body), 504, "deadline_exceeded")
    until(lambda: [one.__name__ for one in stuck] == ["DeadlineExceeded"])
    until(lambda: gauge(hurried, "nnclr_searches_in_work") == 0)


def test_the_client_does_not_wait_for_work_that_cannot_stop(hurried, hurried_client, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(type(hurried.bench.collection("c")), "count", lambda self, where: release.wait(60))
    try:
        is_problem(hurried_client.get(ROUTES["count"][1]), 504, "deadline_exceeded")
        assert not release.is_set()
        assert gauge(hurried, "nnclr_searches_in_work") == 1  # its memory is still in use
    finally:
        release.set()
    until(lambda: gauge(hurried, "nnclr_searches_in_work") == 0)


def test_a_search_stops_when_its_client_disconnects(hurried, monkeypatch, stuck):
    monkeypatch.setattr("serving.deadline.Budget", lambda seconds: Budget(60.0))
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{hurried.url}{ROUTES['search'][1]}", json=ROUTES["search"][2], timeout=0.5)
    until(lambda: [one.__name__ for one in stuck] == ["ClientDisconnect"])


def test_the_time_of_an_upload_does_not_count(hurried):
    def slowly():
        for part in (b'{"vector": ', b"[1.0, ", b"2.0]}"):
            time.sleep(0.5 * DEADLINE_S)
            yield part

    headers = {"Content-Type": "application/json"}
    assert httpx.post(f"{hurried.url}{ROUTES['search'][1]}", content=slowly(), headers=headers).status_code == 200


def test_searches_above_the_capacity_are_refused_with_429(hurried, hurried_client, stuck):
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(httpx.post, f"{hurried.url}{ROUTES['batch'][1]}", json=ROUTES["batch"][2]) for _ in "ab"]
        until(lambda: gauge(hurried, "nnclr_searches_in_work") == 4)
        for name in ("search", "count"):
            method, path, body = ROUTES[name]
            refused = hurried_client.request(method, path, json=body)
            is_problem(refused, 429, "overloaded")
            assert int(refused.headers["Retry-After"]) > 0
        assert {one.result().status_code for one in waiting} == {504}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "search", {"vector": [1.0, 2.0], "k": 250}),
        ("POST", "search/batch", {"queries": [{"vector": [1.0, 2.0], "k": 50}] * 5}),
        ("GET", "items?limit=250", None),
    ],
)
def test_an_answer_above_the_limit_is_refused_before_the_work(hurried, hurried_client, monkeypatch, method, path, body):
    url = f"/api/v1/collections/c/{path}"
    with monkeypatch.context() as patch:
        patch.setattr(type(hurried.bench.collection("c")), "search_each", None)  # would raise
        is_problem(hurried_client.request(method, url, json=body), 413, "answer_too_large")
    smaller = hurried_client.request(method, url.replace("250", "150"), json=body and {**body, **_smaller(body)})
    assert smaller.status_code == 200
    assert smaller.headers["content-length"] == str(len(smaller.content))


def _smaller(body):
    return {"k": 150} if "k" in body else {"queries": body["queries"][:3]}


def test_an_answer_that_turns_out_too_large_is_refused(hurried, hurried_client):
    """The estimate is a mean over a few items; these 20 are larger than the others."""
    items = [Item(f"wide{i}", np.float32([100, 100 + i]), {"text": "x" * 20_000}) for i in range(20)]
    collection = hurried.bench.collection("c")
    collection.upsert(items)
    try:
        for k, status in ((5, 200), (15, 413)):
            body = {"vector": [1.0, 1.0], "k": k, "where": {"must": [{"key": "text", "prefix": "x" * 1000}]}}
            assert hurried_client.post(ROUTES["search"][1], json=body).status_code == status
    finally:
        collection.delete([item.id for item in items])


def gauge(server, name: str) -> float:
    return server.engines.metrics.registry.get_sample_value(name) or 0.0


def test_a_wait_for_changes_ends_before_the_deadline(hurried_client):
    path = "/api/v1/collections/c/changes"
    first = hurried_client.get(path, params={"limit": 1}).json()
    since = {"since": first["last"], "log": first["log"]}
    answer = hurried_client.get(path, params={**since, "wait": 30})
    assert answer.json() == {"changes": [], "next": first["last"], "last": first["last"], "log": first["log"]}
    is_problem(hurried_client.get(path, params={**since, "log": "another", "wait": 30}), 410, "changes_unavailable")


def test_many_clients_that_wait_poll_less_often(hurried, hurried_client, monkeypatch):
    monkeypatch.setattr("serving.routes.changes.POLLS_PER_SECOND", 20)
    path = "/api/v1/collections/c/changes"
    first = hurried_client.get(path, params={"limit": 1}).json()
    kind, polls = type(hurried.bench.collection("c")), []
    changes = kind.changes
    monkeypatch.setattr(kind, "changes", lambda *args, **named: polls.append(1) or changes(*args, **named))
    params = {"since": first["last"], "log": first["log"], "wait": 30}
    with ThreadPoolExecutor(20) as threads:
        found = list(threads.map(lambda _: hurried_client.get(path, params=params).status_code, range(20)))
    assert set(found) <= {200, 429}, "their answers come at once"
    assert len(polls) <= 20 * 4  # 8 each without the limit, and the answer


def test_a_list_of_changes_counts_as_an_answer(hurried, hurried_client):
    path = "/api/v1/collections/c/changes"
    is_problem(hurried_client.get(path, params={"limit": 10_000}), 413, "answer_too_large")
    listed = hurried_client.get(path, params={"limit": 1000}).json()
    expected = vars(hurried.bench.collection("c").changes(0, 1000))
    assert listed == {**expected, "changes": [vars(one) for one in expected["changes"]]}
