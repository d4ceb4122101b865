"""Collections and their aliases over REST."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from rest_requests import as_text, is_problem, upload

from nnclr_hub.store.base import CollectionSpec


def test_collections_are_created_once_and_described(client):
    path = "/api/v1/collections/plain"
    assert client.put(path, json={"dim": 4, "metric": "l2"}).status_code == 201
    assert client.put(path, json={"dim": 4, "metric": "l2"}).status_code == 200
    is_problem(client.put(path, json={"dim": 5}), 409, "collection_exists")
    assert "plain" in [one["name"] for one in client.get("/api/v1/collections").json()["collections"]]
    assert client.delete(path).status_code == 204
    is_problem(client.get(path), 404, "collection_not_found")


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


ALIASES = "/api/v1/aliases"


def test_an_alias_works_in_every_route(client, collection):
    client.put(f"{collection}/items", json=[{"id": "a", "vector": [1.0] * 32}])
    assert client.put(f"{ALIASES}/live", json={"collection": "photos"}).json() == {
        "alias": "live",
        "collection": "photos",
    }
    assert client.get(ALIASES).json() == {"aliases": [{"alias": "live", "collection": "photos"}]}
    assert client.get("/api/v1/collections/live").json()["name"] == "photos"
    assert client.get("/api/v1/collections/live/items/a").status_code == 200
    assert client.post("/api/v1/collections/live/search", json={"vector": [1.0] * 32}).json()["matches"][0]["id"] == "a"
    client.put("/api/v1/collections/other", json={"dim": 3})
    client.put(f"{ALIASES}/live", json={"collection": "other"})
    assert client.get("/api/v1/collections/live").json()["dim"] == 3
    assert client.delete(f"{ALIASES}/live").status_code == 204
    is_problem(client.get("/api/v1/collections/live"), 404, "collection_not_found")
    client.delete("/api/v1/collections/other")


def test_invalid_aliases_are_refused(client, collection):
    is_problem(client.put(f"{ALIASES}/photos", json={"collection": "photos"}), 409, "collection_exists")
    is_problem(client.put(f"{ALIASES}/x", json={"collection": "nothing"}), 404, "collection_not_found")
    is_problem(client.put(f"{ALIASES}/a b", json={"collection": "photos"}), 422, "invalid_request")
    is_problem(client.delete(f"{ALIASES}/nothing"), 404, "collection_not_found")
    for ending in ("~next", "~was"):  # reserved for re-embedding
        response = client.put(f"{ALIASES}/photos{ending}", json={"collection": "photos"})
        is_problem(response, 422, "invalid_request")
        is_problem(client.delete(f"{ALIASES}/photos{ending}"), 422, "invalid_request")


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
