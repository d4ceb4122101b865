"""A write that is sent again, as after a lost answer, has the effect of one."""

import threading
from dataclasses import replace

import pytest
from rest_requests import ended
from rest_rows import rows, sent

EYE = [[float(i == j) for j in range(32)] for i in range(32)]
C = "/api/v1/collections/photos"
LABELED = {"must": [{"key": "label", "exists": True}]}
WRITES = {
    "PUT c/photos": [{}],
    "PUT c/photos/items": [[{"id": "a", "vector": EYE[0]}]],
    "PATCH c/photos/items": [{"ids": ["a"], "metadata": {"label": "cat"}}, {"each": {"a": {"n": 1}}}],
    "POST c/photos/labels": [sent(content=b"id,label\na,dog\n", headers={"Content-Type": "text/csv"})],
    "PUT c/photos/indexed": [{"keys": ["label"]}],
    "PUT /api/v1/aliases/live": [{"collection": "photos"}],
    **{f"POST c/photos/{kind}": [None] for kind in ("snapshot", "verify")},
    "POST c/photos/delete": [{"ids": ["a"]}],
    "DELETE c/photos/items/b": [None],
    "DELETE /api/v1/aliases/live": [None],
}


@pytest.fixture
def state(client, collection, server):
    """Return what a client can read of the collection."""
    client.put(f"{C}/items", json=[{"id": id, "vector": EYE[i], "metadata": {"n": 0}} for i, id in enumerate("abc")])
    client.put("/api/v1/aliases/live", json={"collection": "photos"})

    def read() -> list:
        items = client.get(f"{C}/items", params={"with_vector": True}).json()["items"]
        return [items, client.get("/api/v1/aliases").json(), client.get(C).json()["indexed"]]

    yield read
    client.delete("/api/v1/aliases/live")


@pytest.mark.parametrize("write", rows(WRITES))
def test_a_repeated_write_has_the_effect_of_one(client, state, write):
    first = write.send(client)
    assert first.is_success, first.text
    once = state()
    again = write.send(client)
    assert again.is_success or again.status_code == 404  # deleted already
    assert state() == once


# task -> the request that submits it
JOBS = {
    "verify": (f"{C}/verify", None),
    "compact": (f"{C}/compact", None),
    "duplicates": (f"{C}/duplicates", {}),
    "probe_fit": ("/api/v1/probes", {"name": "ab", "collection": "photos", "field": "label", "where": LABELED}),
}


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_that_is_submitted_again_while_it_waits_or_runs_is_one_job(client, server, collection, monkeypatch, kind):
    items = [{"id": f"i{i}", "vector": EYE[i], "metadata": {"label": "ab"[i % 2]}} for i in range(20)]
    client.put(f"{C}/items", json=items)
    (path, body), tasks, go_on = JOBS[kind], server.app.state.jobs.tasks, threading.Event()
    run = tasks[kind].run
    monkeypatch.setitem(tasks, kind, replace(tasks[kind], run=lambda *given: go_on.wait(120) and run(*given)))
    found = [client.post(path, json=body) for _ in range(3)]
    go_on.set()
    assert len({one.json()["id"] for one in found}) == 1
    assert [ended(client, one)["state"] for one in found] == ["done"] * 3
    client.delete("/api/v1/probes/ab")
