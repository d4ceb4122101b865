"""Collections and their aliases over REST."""

from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import numpy as np
import pytest
from rest_requests import as_text, is_problem, upload

from nnclr_hub import Client, Item
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.workbench.inspection.findings import InspectionRequest


def test_concurrent_equal_requests_create_one_collection(client):
    """One request creates the collection, and the others find it."""
    with ThreadPoolExecutor(16) as pool:
        for number in range(4):
            path = f"/api/v1/collections/many-{number}"
            codes = [
                answer.status_code for answer in pool.map(lambda path: client.put(path, json={"dim": 4}), [path] * 16)
            ]
            assert sorted(codes) == [200] * 15 + [201]
            client.delete(path)


def test_a_name_of_any_script_works_over_rest_and_in_the_client(client, server, image_files):
    name = "Früh ling 春"
    path = f"/api/v1/collections/{quote(name)}"
    with Client(server.url) as opened:
        assert opened.create_collection(name).name == name
        assert client.post(f"{path}/items", files=upload(image_files[:3])).status_code == 200
        found = opened.collection(name).search(id=opened.collection(name).scroll().items[0].id, k=3)
        assert len(found) == 2  # all but the example
        opened.store.alias("ü", name)
        assert client.get("/api/v1/collections/%C3%BC").json()["name"] == name
        assert opened.run("inspection", InspectionRequest(name))["collection"] == name
        assert opened.collection(name).inspections() == [1]
        assert client.patch(path, json={"name": "春"}).json()["name"] == "春"
        assert opened.collection("春").inspections() == [1]
        assert opened.collection("ü").info().name == "春"
        is_problem(client.patch("/api/v1/collections/%E6%98%A5", json={"name": "ü"}), 409, "collection_exists")
        opened.store.drop("春")


@pytest.mark.parametrize("is_served", [False, True])
def test_a_collection_of_another_encoder_is_a_conflict(client, server, image_files, is_served):
    """The error names the model of the collection and the next step, also if that model has new weights."""
    model = server.engines.default if is_served else "elsewhere"
    server.bench.store.create("alien", CollectionSpec(32, fingerprint="f" * 32, model=model))
    for response in (
        client.post("/api/v1/collections/alien/search", json={"image": as_text(image_files[0])}),
        client.post("/api/v1/collections/alien/items", files=upload(image_files[:1])),
    ):
        detail = is_problem(response, 409, "fingerprint_mismatch")
        assert "nnclr store reembed alien" in detail
        assert is_served or "elsewhere" in detail
    server.bench.store.drop("alien")


def test_selections_of_channels_are_limited_by_those_in_use(client, model, monkeypatch):
    monkeypatch.setattr("serving.routes.router.MAX_READINGS", 2)
    refused = (422, "invalid_request")

    def create(name: str, channels: str, source: str = "default") -> tuple[int, str | None]:
        answer = client.put(f"/api/v1/collections/{name}", json={"model": f"{source}?channels={channels}"})
        return answer.status_code, answer.json().get("code")

    assert create("wrong", "0,1") == refused  # the model takes three
    assert [create(f"odd{i}", channels) for i, channels in enumerate(("2,1,0", "1,1,1"))] == [(201, None)] * 2
    assert create("again", "2,1,0", model.name) == (201, None)
    assert create("third", "0,0,0") == refused
    client.delete("/api/v1/collections/odd1")
    assert create("third", "0,0,0") == (201, None)
    for name in ("odd0", "again", "third"):
        assert client.delete(f"/api/v1/collections/{name}").status_code == 204


def test_items_are_copied_or_moved_with_all_that_they_have(client, server, collection, image_files):
    client.post(f"{collection}/items", files=upload(image_files[:3]))
    items = client.get(f"{collection}/items", params={"with_vector": True}).json()["items"]
    ids = [item["id"] for item in items]
    client.put("/api/v1/collections/copies", json={})
    server.bench.store.create("alien", CollectionSpec(32, fingerprint="f" * 32))
    assert client.post(f"{collection}/copy", json={"to": "copies", "ids": [*ids[:2], "none"]}).json() == {"copied": 2}
    assert client.post(f"{collection}/copy", json={"to": "copies", "ids": ids, "move": True}).json() == {"copied": 3}
    there = "/api/v1/collections/copies/items"
    assert client.get(there, params={"with_vector": True}).json()["items"] == items
    assert client.get(f"{there}/{ids[0]}/thumbnail").status_code == 200
    assert client.get(f"{collection}/count").json()["count"] == 0
    answer = client.post("/api/v1/collections/copies/copy", json={"to": "alien", "ids": ids, "move": True})
    is_problem(answer, 409, "fingerprint_mismatch")
    assert client.get("/api/v1/collections/copies/count").json()["count"] == 3
    for name in ("copies", "alien"):
        client.delete(f"/api/v1/collections/{name}")


def test_a_move_loses_no_edit_that_arrives_meanwhile(client, server, collection, monkeypatch):
    client.put(f"{collection}/items", json=[{"id": id, "vector": [1.0] * 32} for id in "abc"])
    client.put("/api/v1/collections/moved", json={})
    upsert, edits = server.bench.upsert, iter([{"label": "cat"}, {"label": "dog"}])

    def upsert_while_somebody_edits(name, items, **options):
        stored = upsert(name, items, **options)
        if name == "moved" and (edit := next(edits, None)) is not None:
            answer = client.patch(f"{collection}/items", json={"ids": ["b"], "metadata": edit})
            assert answer.json() == {"updated": 1}
            client.put(f"{collection}/items", json=[{"id": "c", "vector": [2.0] + [1.0] * 31}])
        return stored

    monkeypatch.setattr(server.bench, "upsert", upsert_while_somebody_edits)
    move = {"to": "moved", "ids": ["a", "b", "c"], "move": True}
    assert client.post(f"{collection}/copy", json=move).json() == {"copied": 3}
    items = client.get("/api/v1/collections/moved/items", params={"with_vector": True}).json()["items"]
    assert [item["metadata"] for item in items] == [{}, {"label": "dog"}, {}]
    assert items[2]["vector"][0] > items[2]["vector"][1]
    assert client.get(f"{collection}/count").json()["count"] == 0
    client.delete("/api/v1/collections/moved")


def test_a_move_during_a_promotion_mixes_no_encoders(client, server, collection, monkeypatch):
    """The name means a collection of another encoder before the moved items are deleted from the first one."""
    store, name = server.bench.store, collection.rpartition("/")[2]
    client.put(f"{collection}/items", json=[{"id": id, "vector": [1.0] * 32} for id in "ab"])
    client.put("/api/v1/collections/moved", json={})
    other = store.create("other", CollectionSpec(32, fingerprint="f" * 32))
    other.upsert([Item(id, np.eye(32, dtype=np.float32)[0]) for id in "ab"])
    upsert = server.bench.upsert

    def upsert_while_somebody_promotes(to, items, **options):
        stored = upsert(to, items, **options)
        if "other" in store.names():
            store.promote("other", name)
        return stored

    monkeypatch.setattr(server.bench, "upsert", upsert_while_somebody_promotes)
    move = {"to": "moved", "ids": ["a", "b"], "move": True}
    is_problem(client.post(f"{collection}/copy", json=move), 409, "fingerprint_mismatch")
    vectors = [item.vector for item in store.get("moved").get(["a", "b"])]
    np.testing.assert_allclose(vectors, np.full((2, 32), 32**-0.5), rtol=1e-5)
    assert store.get(name).count() == 2
    for one in ("moved", f"{name}.old"):
        client.delete(f"/api/v1/collections/{one}")
