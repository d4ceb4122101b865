"""The labels of the keys 1 to 9, which everybody who labels a collection shares."""


def test_everybody_sees_the_same_labels_of_the_keys(client, collection):
    place = f"{collection}/label-keys"
    assert client.get(place).json() == {"field": "label", "labels": []}
    kinds = {"field": "kind", "labels": ["cat", None, 3, True, 0.5]}
    assert client.put(place, json={"labels": ["cat"]}).json() == {"field": "label", "labels": ["cat"]}
    assert client.put(place, json=kinds).json() == kinds
    found = client.get(place).json()
    assert (found, list(map(type, found["labels"]))) == (kinds, [str, type(None), int, bool, float])
    assert client.get(place, params={"field": "label"}).json()["labels"] == ["cat"]
    late = client.put(place, json=kinds | {"labels": ["dog"], "expected": ["cat", None, 3, 1, 0.5]})  # true is not 1
    assert (late.status_code, late.json()["code"]) == (409, "metadata_conflict")
    assert client.get(place).json() == kinds
    assert client.put(place, json=kinds | {"labels": ["dog"], "expected": kinds["labels"]}).status_code == 200
    assert client.patch(collection, json={"name": "renamed"}).status_code == 200
    assert client.get("/api/v1/collections/renamed/label-keys").json() == {"field": "kind", "labels": ["dog"]}
    whole = {"field": "kind", "labels": [1.0, 2.5]}
    client.put("/api/v1/collections/renamed/label-keys", json=whole)
    later = client.put("/api/v1/collections/renamed/label-keys", json=whole | {"expected": [1, 2.5]})  # as JavaScript
    assert later.status_code == 200
    client.patch("/api/v1/collections/renamed", json={"name": "photos"})


def test_a_server_without_records_has_no_labels_of_keys_and_refuses_them(client, collection, server, monkeypatch):
    """A replica keeps no records, and neither does a server with --read-only. Pages keep the keys then."""
    monkeypatch.setattr(server.bench.store.records, "read_only", True)
    place = f"{collection}/label-keys"
    assert client.get(place).json() == {"field": "label", "labels": []}
    refused = client.put(place, json={"labels": ["cat"]})
    assert (refused.status_code, refused.json()["code"]) == (403, "read_only")
    assert client.get(place).json()["labels"] == []
