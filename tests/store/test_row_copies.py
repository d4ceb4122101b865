"""Vectors of rows that searches choose repeatedly are copied; results are those of a loop over everything."""

import numpy as np
import pytest

from nnclr_hub import EmbeddedStore
from nnclr_hub.store.index.among import Chosen
from nnclr_hub.store.index.row_copies import LEAST_BYTES, SHARE, RowCopies
from nnclr_hub.store.base import CollectionSpec, Item

DIM, ROWS, RED = 64, 12_000, 540
WHERE = {"must": [{"key": "label", "match": "red"}]}
rng = np.random.default_rng(0)


class Truth:
    """The items of a collection as plain values."""

    def __init__(self, collection):
        self.collection, self.items = collection, {}

    def upsert(self, items):
        self.collection.upsert([Item(id, vector, {"label": label}) for id, vector, label in items])
        self.items |= {id: (vector, label) for id, vector, label in items}

    def delete(self, ids):
        self.collection.delete(ids)
        for id in ids:
            del self.items[id]

    def relabel(self, ids, label):
        self.collection.update_metadata({"label": label}, ids=ids)
        self.items |= {id: (self.items[id][0], label) for id in ids}

    def check(self):
        for query in rng.normal(size=(4, DIM)).astype(np.float32):  # in place, copied, and twice from the copy
            far = {id: np.linalg.norm(vector - query) for id, (vector, label) in self.items.items() if label == "red"}
            nearest = sorted(far, key=far.__getitem__)[:10]
            found = self.collection.search(query, 10, WHERE)
            assert [match.id for match in found] == nearest
            assert [-match.score for match in found] == pytest.approx([far[id] for id in nearest], abs=1e-3)


@pytest.fixture
def reads(monkeypatch):
    """Return how many rows were copied each time."""
    counts, find = [], RowCopies.find

    def counted(self, chosen, dim, read):
        return find(self, chosen, dim, lambda: (counts.append(chosen.count), read())[1])

    monkeypatch.setattr(RowCopies, "find", counted)
    return counts


@pytest.mark.parametrize("index", ["flat", "hnsw"])
def test_filtered_searches_follow_each_change(tmp_path, index, reads):
    vectors = rng.normal(size=(ROWS, DIM)).astype(np.float32)
    with EmbeddedStore(tmp_path) as store:
        truth = Truth(store.create("c", CollectionSpec(DIM, "l2", index=index)))
        truth.upsert([(f"i{n}", one, "red" if n < RED else f"{n % 9}") for n, one in enumerate(vectors)])
        truth.collection.compact()
        truth.check()
        assert reads == [RED]
        truth.upsert([("new", vectors[1] / 2, "blue"), ("near", vectors[0] / 2, "red")])
        truth.check()
        assert reads == [RED]  # no row of the graph was changed
        truth.delete(["i3", "i5"])
        truth.check()
        truth.relabel(["i8"], "blue")
        truth.relabel(["i9000"], "red")
        truth.check()
        truth.upsert([("i11", vectors[0] / 3, "red"), ("i12", vectors[0] / 4, "green")])
        truth.check()
        truth.collection.compact()
        truth.check()
    assert reads == [RED, RED - 2, RED - 2, RED - 4, RED - 2]


def test_a_filter_that_many_rows_pass_finds_edited_ones_after_the_next_change(tmp_path):
    with EmbeddedStore(tmp_path) as store:
        collection = store.create("c", CollectionSpec(4))
        vectors = rng.normal(size=(100, 4)).astype(np.float32)
        collection.upsert([Item(str(n), one, {"label": "red"}) for n, one in enumerate(vectors)])
        collection.compact()
        known = {str(n) for n in range(100)}

        def check():
            assert {match.id for match in collection.search(vectors[0], 100, WHERE)} == known
            assert collection.count(WHERE) == len(known)

        check()
        for number in range(12):
            collection.update_metadata({"seen": number}, ids=[str(number + 50)])
            check()
        for change in (["3"], ["50"], ["4", "51"]):
            collection.delete(change)
            known -= set(change)
            check()
        collection.update_metadata({"label": "blue"}, ids=["52", "9"])
        known -= {"52", "9"}
        check()
        collection.update_metadata({"label": "red"}, ids=["52"])
        known.add("52")
        check()


def test_old_copies_are_dropped():
    rows = LEAST_BYTES // (4 * DIM)
    copies = RowCopies(3 * SHARE * rows * (4 * DIM + 8))
    chosen = [Chosen(10 * rows, rows=np.arange(rows) + n) for n in range(4)]
    vectors = np.zeros((rows, DIM), np.float32)

    def copied(one):
        return copies.find(one, DIM, lambda: vectors + 1) is not None

    assert [copied(one) for one in chosen] == [False] * 4
    assert [copied(one) for one in chosen] == [True] * 4

    def refuse():
        raise LookupError

    for one in (chosen[1], chosen[3], chosen[2]):
        assert copies.find(one, DIM, refuse) is not None
    with pytest.raises(LookupError):
        copies.find(chosen[0], DIM, refuse)


def test_few_rows_and_too_many_are_not_copied():
    copies = RowCopies(2 * SHARE * LEAST_BYTES)
    for count in (10, 3 * LEAST_BYTES // (4 * DIM)):
        chosen = Chosen(100_000, rows=np.arange(count))
        assert [copies.find(chosen, DIM, lambda: 1 / 0) for _ in range(3)] == [None] * 3
