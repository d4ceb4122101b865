"""The store against a dict and numpy."""

import threading

import numpy as np
import pytest
from store.exhaustive import DIM, brute_force, vectors

from nnclr_hub import EmbeddedStore
from nnclr_hub.errors import (
    ItemNotFound,
)
from nnclr_hub.store import failpoints, open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.settings import StoreSettings


@pytest.fixture
def store(tmp_path):
    with open_store(str(tmp_path / "store")) as opened:
        yield opened


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_random_operations_agree_with_a_dict_and_brute_force(tmp_path, metric):
    """Upserts, replacements, deletions, snapshots and reopenings; the delta is small, so it is folded often."""
    settings = StoreSettings(memory=1 << 30, min_delta=32)
    rng = np.random.default_rng(1)
    truth: dict[str, np.ndarray] = {}
    store = EmbeddedStore(tmp_path, settings=settings)
    collection = store.create("c", CollectionSpec(DIM, metric=metric))
    for step in range(120):
        ids = [f"i{n}" for n in rng.integers(0, 200, rng.integers(1, 12))]
        action = rng.random()
        if action < 0.6:
            batch = dict(zip(ids, vectors(len(ids), step), strict=True))
            collection.upsert([Item(id, vector, {"n": step}) for id, vector in batch.items()])
            truth |= batch
        elif action < 0.85:
            assert collection.delete(ids) == len(truth.keys() & set(ids))
            truth = {id: vector for id, vector in truth.items() if id not in ids}
        elif action < 0.92:
            collection.snapshot()
        else:
            store.close()
            store = EmbeddedStore(tmp_path, settings=settings)
            collection = store.get("c")
        query = vectors(1, 1000 + step)[0]
        found = collection.search(query, 7)
        want = brute_force(truth, query, 7, metric)
        assert [match.id for match in found] == [id for id, _ in want]
        assert [match.score for match in found] == pytest.approx([score for _, score in want], abs=1e-5)
        assert collection.count() == len(truth)
    assert collection.verify().ok
    store.close()


def test_items_come_back_as_they_were_stored(store):
    collection = store.create("c", CollectionSpec(DIM))
    metadata = {"label": "chat noir", "n": 3, "x": 0.5, "none": None, "deep": {"a": [1, "é猫"]}, "ok": True}
    collection.upsert([Item("a.b~c_D-9", vectors(1)[0] * 5, metadata, b"jpeg"), Item("b", vectors(2)[1])])
    found = collection.get(["b", "missing", "a.b~c_D-9"])
    assert [item.id for item in found] == ["b", "a.b~c_D-9"]
    assert found[1].metadata == metadata
    assert found[1].thumbnail == b"jpeg"
    np.testing.assert_allclose(found[1].vector, vectors(1)[0], atol=1e-6)  # cosine: kept normalized
    assert collection.thumbnail("b") is None
    with pytest.raises(ItemNotFound, match="'zz'"):
        collection.thumbnail("zz")


def test_the_last_of_two_items_with_one_id_in_one_request_wins(store):
    collection = store.create("c", CollectionSpec(DIM))
    first, second = vectors(2)
    collection.upsert([Item("a", first), Item("a", second)])
    assert collection.count() == 1
    assert [match.id for match in collection.search(first, 5)] == ["a"]
    np.testing.assert_allclose(collection.get(["a"])[0].vector, second, atol=1e-6)


def test_pages_cover_everything_once_while_others_write(store):
    collection = store.create("c", CollectionSpec(DIM))
    collection.upsert([Item(f"k{i:03}", v) for i, v in enumerate(vectors(95))])
    seen, cursor = [], None
    while True:
        page = collection.scroll(cursor, 10)
        seen += [item.id for item in page.items]
        collection.upsert([Item(f"k{len(seen) - 1:03}", vectors(1)[0])])  # replaced behind the cursor
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == [f"k{i:03}" for i in range(95)]


def test_a_score_threshold_cuts_and_vectors_come_on_request(store):
    collection = store.create("c", CollectionSpec(DIM))
    collection.upsert([Item(f"i{i}", v) for i, v in enumerate(vectors(50))])
    query = vectors(1)[0]
    every = collection.search(query, 50)
    some = collection.search(query, 50, score_threshold=0.2, with_vector=True)
    assert [m.id for m in some] == [m.id for m in every if m.score >= 0.2]
    np.testing.assert_allclose([m.vector @ query for m in some], [m.score for m in some], atol=1e-6)


def test_concurrent_requests_share_commits_and_none_is_lost(store):
    collection = store.create("c", CollectionSpec(DIM))
    release, commits = threading.Event(), []

    def held() -> None:
        commits.append(1)
        release.wait(120)  # while the first commit is held up, the other requests queue

    threads = [
        threading.Thread(target=lambda i=i: collection.upsert([Item(f"t{i}", vectors(1, i)[0])])) for i in range(64)
    ]
    with failpoints.at("write.begun", held):
        for thread in threads:
            thread.start()
        release.set()
        for thread in threads:
            thread.join()
    assert collection.count() == 64
    assert len(commits) < 64
