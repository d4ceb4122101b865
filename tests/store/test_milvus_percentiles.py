"""What percentiles cost in Milvus: the requests, and what happens if it does not answer."""

import numpy as np
import pytest

from nnclr_hub.errors import StoreUnreachable
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.cancellation import cancellable
from nnclr_hub.store.milvus import collection as collections
from nnclr_hub.store.milvus.client import Connection

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
VECTORS = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)


@pytest.fixture
def store(tmp_path):
    with open_store(str(tmp_path / "x.milvus.db")) as store:
        yield store


def items(n):
    return [Item(f"i{i}", VECTORS[i]) for i in range(n)]


@pytest.fixture
def requests(monkeypatch):
    """The options of each query, and errors to raise instead of answers."""
    sent, errors, call = [], [], Connection.call

    def listening(self, method, *args, **options):
        if method == "query":
            sent.append(options)
            if errors:
                raise errors[0]
        return call(self, method, *args, **options)

    monkeypatch.setattr(Connection, "call", listening)
    return sent, errors


def test_a_sample_of_some_items_lasts_until_a_tenth_of_all_changed(store, requests, monkeypatch):
    monkeypatch.setattr(collections, "SAMPLED", 20)
    monkeypatch.setattr(collections, "IDS", 10)
    collection = store.create("c", CollectionSpec(4))
    collection.upsert(items(300))
    before = collection.percentiles([0.1, 0.9])
    requests[0].clear()
    for n in range(20):
        collection.upsert([Item(f"i{n}", VECTORS[-n - 1])])
        assert collection.percentiles([0.1, 0.9]) == before
    assert all(query["output_fields"] == ["count(*)"] for query in requests[0])
    assert len(requests[0]) <= 1
    collection.upsert([Item(f"i{n}", VECTORS[-n - 1]) for n in range(40)])
    assert collection.percentiles([0.1, 0.9]) != before


def test_searches_count_the_items_once_in_a_while(store, requests):
    collection = store.create("c", CollectionSpec(4))
    collection.upsert(items(300))
    collection.search(VECTORS[0], with_percentile=True)
    requests[0].clear()
    for vector in VECTORS[:64]:
        assert collection.search(vector, with_percentile=True)[0].percentile is not None
    assert len(requests[0]) <= 1


def test_other_clients_change_the_number_of_items(store, tmp_path, monkeypatch):
    monkeypatch.setattr(collections, "COUNT_SECONDS", 0.0)
    collection = store.create("c", CollectionSpec(4))
    collection.upsert(items(100))
    before = collection.percentiles([0.1, 0.9])
    with open_store(str(tmp_path / "x.milvus.db")) as other:
        other.get("c").upsert(items(300))
    assert collection.percentiles([0.1, 0.9]) != before


def test_a_search_without_an_answer_to_further_requests_has_no_percentiles(store, requests):
    collection = store.create("c", CollectionSpec(4))
    collection.upsert(items(300))
    expected = collection.search(VECTORS[0], k=5)
    requests[1].append(StoreUnreachable("no answer"))
    assert collection.search(VECTORS[0], k=5, with_percentile=True) == expected


def test_sampling_is_cancelled_between_requests(store, requests):
    collection = store.create("c", CollectionSpec(4))
    collection.upsert(items(300))
    requests[0].clear()

    def cancelled() -> None:
        if len(requests[0]) > 1:
            raise TimeoutError

    with cancellable(cancelled), pytest.raises(TimeoutError):
        collection.percentiles([0.1])
    assert len(requests[0]) == 2
