"""A write that is sent again, as after a lost answer, has the effect of one."""

import pytest
from rest_requests import ended

EYE = [[float(i == j) for j in range(32)] for i in range(32)]
C = "/api/v1/collections/photos"
WRITES = {
    "create": lambda client: client.put(C, json={}),
    "vectors": lambda client: client.put(f"{C}/items", json=[{"id": "a", "vector": EYE[0]}]),
    "patch": lambda client: client.patch(f"{C}/items", json={"ids": ["a"], "metadata": {"label": "cat"}}),
    "each": lambda client: client.patch(f"{C}/items", json={"each": {"a": {"n": 1}}}),
    "labels": lambda client: client.post(
        f"{C}/labels", content=b"id,label\na,dog\n", headers={"Content-Type": "text/csv"}
    ),
    "indexed": lambda client: client.put(f"{C}/indexed", json={"keys": ["label"]}),
    "alias": lambda client: client.put("/api/v1/aliases/live", json={"collection": "photos"}),
    "snapshot": lambda client: client.post(f"{C}/snapshot"),
    "verify": lambda client: client.post(f"{C}/verify"),
    "delete many": lambda client: client.post(f"{C}/delete", json={"ids": ["a"]}),
    "delete": lambda client: client.delete(f"{C}/items/b"),
    "unalias": lambda client: client.delete("/api/v1/aliases/live"),
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


@pytest.mark.parametrize("write", WRITES)
def test_a_repeated_write_has_the_effect_of_one(client, state, write):
    first = WRITES[write](client)
    assert first.is_success, first.text
    once = state()
    again = WRITES[write](client)
    assert again.is_success or again.status_code == 404  # deleted already
    assert state() == once


@pytest.mark.parametrize("kind", ["verify", "compact", "duplicates", "probe"])
def test_a_job_that_is_submitted_again_while_it_waits_or_runs_is_one_job(client, server, collection, monkeypatch, kind):
    client.put(
        f"{C}/items", json=[{"id": f"i{i}", "vector": EYE[i], "metadata": {"label": "ab"[i % 2]}} for i in range(20)]
    )
    path, body = {
        "duplicates": (f"{C}/duplicates", {}),
        "probe": ("/api/v1/probes", {"name": "ab", "collection": "photos", "field": "label"}),
    }.get(kind, (f"{C}/{kind}", None))
    jobs = server.app.state.jobs
    with monkeypatch.context() as patched:
        patched.setattr(jobs, "_enqueue", lambda active: None)  # it waits
        found = [client.post(path, json=body) for _ in range(3)]
    assert {one.status_code for one in found} == {202}
    assert len({one.json()["id"] for one in found}) == 1
    jobs._enqueue(jobs._active[found[0].json()["id"]])
    assert ended(client, found[0])["state"] == "done"
    if kind == "probe":
        client.delete("/api/v1/probes/ab")
