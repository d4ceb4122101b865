"""A search sees the rows as they were at the change that its view of the catalog is up to, neither more nor fewer."""

import threading

import numpy as np
import pytest

from nnclr_hub import EmbeddedStore, open_store
from nnclr_hub.store import failpoints
from nnclr_hub.store.index.among import RowIds
from nnclr_hub.store.index.fold import fold, is_due
from nnclr_hub.store.index.index import AnnIndex, ViewTooOld
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.settings import StoreSettings

DIM = 4
NONE = np.zeros(0, np.int64)
NO_VECTORS = np.zeros((0, DIM), np.float32)


def at(x: float) -> np.ndarray:
    """(1, DIM): a vector that only x is nearest to."""
    return np.full((1, DIM), x, np.float32)


@pytest.fixture
def index():
    """Rows 1 to 8 in the main part and 9 to 12 in the delta, row x at place x since change x."""
    made = AnnIndex(CollectionSpec(DIM, "l2"), StoreSettings(memory=1 << 30))
    for row in range(1, 13):
        made.apply(row, NONE, np.array([row]), at(row))
        if row == 8:
            fold(made, lambda rids: NO_VECTORS)
    return made


def nearest(index: AnnIndex, x: float, view: int, **options) -> int:
    return int(index.search(at(x), 1, fetch=lambda rids: np.repeat(rids[:, None], DIM, 1), at=view, **options)[1][0, 0])


@pytest.mark.parametrize("row", [3, 10])
def test_what_died_after_a_view_still_lives_in_it(index, row):
    index.apply(20, np.array([row]), NONE, NO_VECTORS)
    assert nearest(index, row, 19) == row
    assert nearest(index, row, 20) != row


def test_a_filtered_search_of_the_delta_sees_its_view(index):
    index.apply(20, np.array([10]), NONE, NO_VECTORS)
    among = RowIds(np.array([2, 10, 12]))
    assert nearest(index, 10, 19, among=among) == 10
    assert nearest(index, 10, 20, among=among) == 12
    assert nearest(index, 10, 19, among=RowIds(np.array([2, 3]))) == 3


def test_deletions_during_a_fold_keep_their_order(index):
    """A row of the delta is deleted at 50 and one of the main part at 100, while the fold runs."""

    def delete() -> None:
        index.apply(50, np.array([9]), NONE, NO_VECTORS)
        index.apply(100, np.array([3]), NONE, NO_VECTORS)

    with failpoints.at("fold.built", delete):
        fold(index, lambda rids: NO_VECTORS)
    assert nearest(index, 3, 99) == 3
    assert nearest(index, 9, 49) == 9
    assert nearest(index, 9, 50) != 9
    assert nearest(index, 3, 100) != 3


def test_views_older_than_what_a_fold_forgot_are_refused(index):
    index.apply(20, np.array([3]), NONE, NO_VECTORS)
    fold(index, lambda rids: NO_VECTORS, rebuild=True)
    with pytest.raises(ViewTooOld):
        nearest(index, 3, 19)


def test_an_exact_search_of_compressed_vectors_sees_its_view_too():
    made = AnnIndex(CollectionSpec(DIM, "l2", index="ivf_pq"), StoreSettings(memory=1 << 30, flat_below=300))
    rows = np.arange(1, 401)
    made.apply(400, NONE, rows, np.repeat(rows[:, None], DIM, 1).astype(np.float32))
    fold(made, lambda rids: NO_VECTORS)
    assert made.kind.name == "ivf_pq"
    made.apply(500, np.array([7]), NONE, NO_VECTORS)
    assert nearest(made, 7, 499, exact=True) == 7
    assert nearest(made, 7, 500, exact=True) != 7


def test_two_readers_with_different_views_of_a_store_that_another_writes(tmp_path):
    """The item is replaced between the views; the reader with the older one must not find neither."""
    one = np.full(DIM, 100, np.float32)
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(DIM, "l2"))
        collection.upsert([Item(f"i{i}", np.full(DIM, i, np.float32)) for i in range(5)])
        with open_store(str(tmp_path), read_only=True) as other:
            reader = other.get("c")
            collection.upsert([Item("x", one, {"v": 1})])
            fixed, go_on, found = threading.Event(), threading.Event(), []
            follow = reader._files.connections._on_begin

            def begun(connection):
                if threading.current_thread().name == "older" and not fixed.is_set():
                    connection.execute("SELECT count(*) FROM items").fetchone()  # fixes the view
                    fixed.set()
                    go_on.wait()
                follow(connection)

            reader._files.connections._on_begin = begun
            thread = threading.Thread(name="older", target=lambda: found.extend(reader.search(one, 1)))
            thread.start()
            fixed.wait()
            collection.upsert([Item("x", one, {"v": 2})])
            assert reader.search(one, 1)[0].metadata == {"v": 2}
            go_on.set()
            thread.join()
            assert found[0].id == "x"


def test_many_deleted_neighbors_hide_no_live_one(tmp_path):
    """Few of all rows, but all of the nearest: they are dropped at first, and skipped at the second attempt."""
    rng = np.random.default_rng(0)
    far, near = rng.normal(size=(4000, DIM)) + 10, rng.normal(size=(150, DIM)) * 1e-3
    with EmbeddedStore(tmp_path, settings=StoreSettings(memory=1 << 30, flat_below=500)) as store:
        collection = store.create("c", CollectionSpec(DIM, "l2", index="hnsw"))
        collection.upsert([Item(f"far{i}", vector) for i, vector in enumerate(far)])
        collection.upsert([Item(f"near{i}", vector) for i, vector in enumerate(near)])
        collection.compact()
        collection.delete([f"near{i}" for i in range(149)])
        found = collection.search(np.zeros(DIM), 10)
        assert found[0].id == "near149"
        assert len(found) == 10


def test_a_search_that_meets_a_closing_index_finds_no_emptiness(index):
    index.clear()
    with pytest.raises(ViewTooOld):
        nearest(index, 3, index.seq)


def test_a_larger_index_is_folded_less_often():
    """While rows are written, copying the main part must not cost much more than adding the new rows."""
    settings = StoreSettings(memory=1 << 30, flat_below=300, min_delta=4, max_delta=16)
    for rows, limit in ((400, 4), (1280, 10), (4000, 16)):
        made = AnnIndex(CollectionSpec(DIM, "l2", index="hnsw"), settings)
        known = np.arange(1, rows + 1)
        made.apply(rows, NONE, known, np.repeat(known[:, None], DIM, 1).astype(np.float32))
        fold(made, lambda rids: NO_VECTORS)
        for more in range(1, limit + 1):
            assert not is_due(made, idle=False)
            made.apply(rows + more, NONE, np.array([rows + more]), at(rows + more))
        assert is_due(made, idle=False)
