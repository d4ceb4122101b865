"""Aliases over REST."""

from rest_requests import is_problem

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
