"""REST with vectors instead of images: not while the collection changes its encoder, and looked for as asked."""

import pytest

from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.store.embedded.collection import EmbeddedCollection

ITEMS = [{"id": f"i{n}", "vector": [1.0] * 31 + [n]} for n in range(9)]


def test_vectors_are_refused_while_the_collection_is_reembedded(client, collection, server):
    """They could not go to both; afterwards they are welcome again."""
    store = server.bench.store
    store.create("photos.next", CollectionSpec(40, fingerprint="f" * 64, model="another-encoder"))
    store.alias("photos~next", "photos.next")
    response = client.put(f"{collection}/items", json=ITEMS)
    assert response.status_code == 422
    detail = response.json()["detail"]
    for part in ("is being re-embedded with another-encoder", "send images instead", "--abandon"):
        assert part in detail
    assert server.bench.collection("photos").count() == 0
    store.drop("photos.next")
    assert client.put(f"{collection}/items", json=ITEMS).json()["stored"] == 9
    assert server.bench.collection("photos").count() == 9


def test_a_search_takes_how_far_an_index_looks(client, collection, monkeypatch):
    client.put(f"{collection}/items", json=ITEMS)
    asked, search = [], EmbeddedCollection.search

    def listening(*arguments, **options):
        asked.append(options["effort"])
        return search(*arguments, **options)

    monkeypatch.setattr(EmbeddedCollection, "search", listening)
    for query in ({"id": "i3"}, {"vector": [1.0] * 32}):
        for effort in (None, 100):
            answer = client.post(f"{collection}/search", json={**query, "effort": effort})
            assert len(answer.json()["matches"]) >= 8
    assert asked == [None, 100, None, 100]


@pytest.mark.parametrize("effort", [0, -1, 10**9, "much"])
def test_an_effort_that_cannot_be_is_refused(client, collection, effort):
    client.put(f"{collection}/items", json=ITEMS)
    response = client.post(f"{collection}/search", json={"id": "i3", "effort": effort})
    assert response.status_code == 422
    assert "effort" in str(response.json())
