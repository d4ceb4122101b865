"""What goes wrong is said, costs nothing that was acknowledged, and is mended where it can be."""

import shutil
import sqlite3
import time

import numpy as np
import pytest

from nnclr_hub.errors import CollectionNotFound, DiskFull, InvalidRequest, StoreCorrupt, StoreError, StoreReadOnly
from nnclr_hub.store import open_store
from nnclr_hub.store.ann import fold
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.embedded import maintenance, recovery, snapshots
from nnclr_hub.store.sqlite import LOW_WATER

DIM = 16


def vectors(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, DIM)).astype(np.float32)


def filled(folder, n: int = 300):
    store = open_store(str(folder))
    collection = store.create("c", CollectionSpec(DIM))
    collection.upsert([Item(f"i{i:03}", v, {"n": i}, b"jpeg") for i, v in enumerate(vectors(n))])
    return store, collection


def wait_until(condition, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    assert condition()


def test_an_index_that_cannot_follow_degrades_the_collection_and_is_loaded_anew(tmp_path, monkeypatch):
    """The write is acknowledged, for it is durable; the state says so; the next start of maintenance mends it."""
    store, collection = filled(tmp_path)
    with store:
        held = collection._care._folding
        with held:  # maintenance has to wait, so that the state in between can be seen
            monkeypatch.setattr(collection._index, "apply", lambda *_: (_ for _ in ()).throw(MemoryError()))
            seq = collection.upsert([Item("new", vectors(1, 5)[0])])
            info = collection.info()
            assert info.state.startswith("degraded: ")
            assert info.durable_seq == seq > info.indexed_seq
            assert [item.id for item in collection.get(["new"])] == ["new"]
            monkeypatch.undo()
        wait_until(lambda: collection.info().state == "ready")
        assert collection.search(vectors(1, 5)[0], 1)[0].id == "new"
        assert collection.info().indexed_seq == seq


def test_too_little_room_refuses_writes_and_snapshots_and_keeps_reading(tmp_path, monkeypatch):
    store, collection = filled(tmp_path)
    with store:
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=LOW_WATER - 1))
        with pytest.raises(DiskFull, match="free some space"):
            collection.upsert([Item("new", vectors(1)[0])])
        with pytest.raises(DiskFull, match="free some space"):
            collection.snapshot()
        assert collection.count() == 300
        assert collection.info().state == "ready"
        monkeypatch.undo()
        collection.upsert([Item("new", vectors(1)[0])])
        assert collection.count() == 301


def test_a_snapshot_that_fails_keeps_the_one_before(tmp_path, monkeypatch):
    store, collection = filled(tmp_path)
    with store:
        collection.snapshot()
        collection.upsert([Item("new", vectors(1, 9)[0])])
        monkeypatch.setattr(snapshots.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(StoreError, match="the one before it stays"):
            collection.snapshot()
        monkeypatch.undo()
        assert [file.name for file in tmp_path.glob("collections/*/*")] == ["index-1.faiss"]
    with open_store(str(tmp_path)) as again:
        assert again.get("c").search(vectors(1, 9)[0], 1)[0].id == "new"


def test_maintenance_that_fails_shows_in_the_state_and_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(maintenance, "PAUSE_SECONDS", 0.05)
    store, collection = filled(tmp_path)
    with store:
        monkeypatch.setattr("nnclr_hub.store.embedded.care.due", lambda *_: (_ for _ in ()).throw(MemoryError()))
        collection.upsert([Item("a", vectors(1)[0])])
        wait_until(lambda: collection.info().state.startswith("degraded: "))
        monkeypatch.undo()
        collection.upsert([Item("b", vectors(1)[0])])
        wait_until(lambda: collection.info().state == "ready")


def test_a_failed_disk_makes_the_collection_read_only(tmp_path, monkeypatch):
    store, collection = filled(tmp_path)
    with store:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        monkeypatch.setattr(collection._writer, "_transact", lambda _: (_ for _ in ()).throw(error))
        with pytest.raises(StoreReadOnly, match="disk failed"):
            collection.upsert([Item("new", vectors(1)[0])])
        monkeypatch.undo()
        with pytest.raises(StoreReadOnly, match="open the store again"):  # nobody knows what is on the disk
            collection.upsert([Item("new", vectors(1)[0])])
        assert collection.info().state.startswith("read-only: ")
        assert len(collection.search(vectors(1)[0], 5)) == 5


def test_verify_names_items_that_the_index_lacks(tmp_path):
    store, collection = filled(tmp_path)
    with store:
        original = collection._index.apply
        collection._index.apply = lambda seq, died, came, rows: original(seq, died, came[:0], rows[:0])
        collection.upsert([Item("unheard", vectors(1, 3)[0])])
        assert collection.verify().missing == ("unheard",)
        collection._index.apply = original
        collection.repair()
        assert collection.verify().ok


def test_a_file_that_is_gone_is_not_made_anew(tmp_path):
    store, _ = filled(tmp_path)
    store.close()
    next(tmp_path.glob("collections/*.sqlite")).unlink()
    with open_store(str(tmp_path)) as store:
        with pytest.raises(StoreError, match="cannot be opened"):
            store.get("c")
        store.drop("c")
        with pytest.raises(CollectionNotFound):
            store.get("c")


def test_an_empty_file_is_damaged_beyond_reading(tmp_path):
    store, _ = filled(tmp_path)
    store.close()
    next(tmp_path.glob("collections/*.sqlite")).write_bytes(b"")
    with open_store(str(tmp_path)) as store:
        for ask in (store.get, store.salvage):
            with pytest.raises(StoreCorrupt, match="lost its specification"):
                ask("c")


def test_a_file_that_is_no_database_is_named(tmp_path):
    store, _ = filled(tmp_path)
    store.close()
    next(tmp_path.glob("collections/*.sqlite")).write_bytes(b"no database at all, but quite a few bytes" * 1000)
    with open_store(str(tmp_path)) as store:
        with pytest.raises(StoreCorrupt, match="damaged"):
            store.get("c")
        with pytest.raises(StoreCorrupt, match="beyond reading"):
            store.salvage("c")


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        (Item("a", np.ones(DIM), {"x": "y" * 65_536}), "at most 65536"),
        (Item("a", np.ones(DIM), {}, b"x" * 32_769), "at most 32768"),
        (Item("a", np.ones(DIM), {}, "text"), "JPEG bytes"),
        (Item("a", np.ones(DIM), {"x": {1, 2}}), "not JSON"),
        (Item("a", np.ones(DIM), {"x": float("nan")}), "not JSON"),
        (Item("a", np.ones(DIM), ["x"]), "object of keys"),
        (Item("a", np.full(DIM, np.inf)), "NaN or infinity"),
        (Item("a", np.zeros(DIM)), "is zero"),
        (Item("a", np.ones(DIM + 1)), "shape"),
        (Item("a", ["x"] * DIM), "no list of numbers"),
        (Item("../a", np.ones(DIM)), "not possible"),
        (Item("", np.ones(DIM)), "not possible"),
    ],
)
def test_a_bad_item_refuses_its_request_by_name_and_nothing_is_written(tmp_path, item, sentence):
    store, collection = filled(tmp_path, 3)
    with store:
        with pytest.raises(InvalidRequest, match=sentence):
            collection.upsert([Item("good", np.ones(DIM)), item, Item("good2", np.ones(DIM))])
        assert collection.count() == 3


def test_what_an_earlier_item_of_the_same_id_gets_wrong_is_refused_too(tmp_path):
    store, collection = filled(tmp_path, 3)
    with store:
        with pytest.raises(InvalidRequest, match="is zero"):
            collection.upsert([Item("a", np.zeros(DIM)), Item("a", np.ones(DIM))])
        assert collection.count() == 3


def test_a_small_delta_is_folded_when_nothing_is_written(tmp_path, monkeypatch):
    """Rows of the delta are compared one by one, which every search would pay for."""
    monkeypatch.setattr(maintenance, "IDLE_SECONDS", 0.1)
    store, collection = filled(tmp_path, 600)
    with store:
        wait_until(lambda: len(collection._index.parts.rids) == 600)
        assert collection._index.parts.delta.count == 0


def test_a_fold_that_was_overtaken_by_loading_anew_changes_nothing(tmp_path, monkeypatch):
    store, collection = filled(tmp_path)
    with store:
        real = fold.build_main

        def overtaken(*arguments):
            main = real(*arguments)
            monkeypatch.setattr(fold, "build_main", real)
            with collection._connections.reader() as connection:
                recovery.rebuild(connection, collection._index)
            return main

        monkeypatch.setattr(fold, "build_main", overtaken)
        collection.compact()
        assert fold.build_main is real
        collection.upsert([Item("new", vectors(1, 4)[0])])
        collection.delete(["i000"])
        assert collection.verify().ok
