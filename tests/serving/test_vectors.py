"""Vectors over REST: refused during a re-embedding; searches take an effort."""

import pytest

from nnclr_hub.store.base import CollectionSpec

ITEMS = [{"id": f"i{n}", "vector": [1.0] * 31 + [n]} for n in range(9)]


def test_vectors_are_refused_while_the_collection_is_reembedded(client, collection, server):
    """A vector of one encoder cannot be converted to the other."""
    store = server.bench.store
    store.create("photos.next", CollectionSpec(40, fingerprint="f" * 64, model="another-encoder"))
    store.alias("photos~next", "photos.next")
    response = client.put(f"{collection}/items", json=ITEMS)
    assert (response.status_code, response.json()["code"]) == (422, "invalid_request")
    assert server.bench.collection("photos").count() == 0
    store.drop("photos.next")
    assert client.put(f"{collection}/items", json=ITEMS).json()["stored"] == 9
    assert server.bench.collection("photos").count() == 9


@pytest.mark.parametrize("query", [{"id": "i3"}, {"vector": [1.0] * 32}])
def test_a_search_accepts_an_effort(client, collection, query):
    client.put(f"{collection}/items", json=ITEMS)
    answer = client.post(f"{collection}/search", json={**query, "effort": 100})
    assert len(answer.json()["matches"]) >= 8


@pytest.mark.parametrize("effort", [0, -1, 10**9, "much"])
def test_an_invalid_effort_is_refused(client, collection, effort):
    client.put(f"{collection}/items", json=ITEMS)
    response = client.post(f"{collection}/search", json={"id": "i3", "effort": effort})
    assert response.status_code == 422
    assert "effort" in str(response.json())
