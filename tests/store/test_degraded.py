"""Failures are reported, cost nothing that was acknowledged, and are repaired where possible."""

import shutil
import sqlite3

import numpy as np
import pytest
from waiting import until

from nnclr_hub.errors import CollectionNotFound, DiskFull, StoreCorrupt, StoreError, StoreReadOnly
from nnclr_hub.store import failpoints, open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.embedded import EmbeddedStore
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.sqlite import LOW_WATER

DIM = 16


def vectors(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, DIM)).astype(np.float32)


def filled(folder, n: int = 300, settings: StoreSettings | None = None):
    """A store with one collection; without settings, it has a graph, whose snapshots are files."""
    store = EmbeddedStore(folder, settings=settings or StoreSettings(flat_below=100))
    collection = store.create("c", CollectionSpec(DIM, index="auto" if settings else "hnsw"))
    collection.upsert([Item(f"i{i:03}", v, {"n": i}, b"jpeg") for i, v in enumerate(vectors(n))])
    return store, collection


def raiser(error: Exception):
    """Return a function that raises the error."""

    def fail() -> None:
        raise error

    return fail


def test_an_index_that_cannot_follow_is_degraded_and_reloaded(tmp_path):
    """The write is acknowledged, because it is durable; maintenance reloads the index."""
    store, collection = filled(tmp_path)
    with store:
        with failpoints.at("write.indexing", raiser(MemoryError())):
            seq = collection.upsert([Item("new", vectors(1, 5)[0])])
            assert [item.id for item in collection.get(["new"])] == ["new"]
            assert collection.info().durable_seq == seq
        until(lambda: collection.info().state == "ready" and collection.info().indexed_seq == seq)
        assert collection.search(vectors(1, 5)[0], 1)[0].id == "new"


def test_maintenance_survives_every_error_and_reports_it(tmp_path):
    store, collection = filled(tmp_path, settings=StoreSettings(idle_delta=10, idle_seconds=0.05, pause_seconds=0.05))
    with store:
        for error in (OverflowError(), KeyError("x"), AssertionError(), RecursionError()):
            with failpoints.at("fold.built", raiser(error)):
                collection.upsert([Item(f"n{i}", v) for i, v in enumerate(vectors(50, 1))])
                until(lambda: collection.info().state.startswith("degraded"))
                assert store.statistics()["c"].state.startswith("degraded")
            until(lambda: collection.info().state == "ready")


def test_the_writer_survives_an_error_after_a_commit_and_reports_it(tmp_path):
    """The thread must not end: all later writes would wait forever."""
    store, collection = filled(tmp_path)
    with store:
        with failpoints.at("write.begun", raiser(SystemExit())), pytest.raises(StoreReadOnly):
            collection.upsert([Item("a", vectors(1)[0])])
        with pytest.raises(StoreReadOnly):
            collection.upsert([Item("b", vectors(1)[0])])
        assert collection.info().state.startswith("read-only")
        assert len(collection.search(vectors(1)[0], 3)) == 3


def test_a_nearly_full_disk_refuses_writes_and_snapshots_and_keeps_reading(tmp_path, monkeypatch):
    store, collection = filled(tmp_path)
    with store:
        collection.compact()
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=LOW_WATER - 1))
        with pytest.raises(DiskFull):
            collection.upsert([Item("new", vectors(1)[0])])
        with pytest.raises(DiskFull):
            collection.snapshot()
        assert collection.count() == 300
        assert collection.info().state.startswith("degraded: ")
        assert collection.delete([collection.scroll(limit=1).items[0].id]) == 1
        monkeypatch.undo()
        collection.upsert([Item(f"new{n}", vectors(1)[0]) for n in range(2)])
        assert collection.info().state == "ready"
        assert collection.count() == 301


def test_a_snapshot_that_fails_keeps_the_one_before(tmp_path):
    store, collection = filled(tmp_path)
    with store:
        collection.compact()
        collection.snapshot()
        collection.upsert([Item("new", vectors(1, 9)[0])])
        collection.compact()
        with failpoints.at("snapshot.written", raiser(OSError(5, "Input/output error"))), pytest.raises(StoreError):
            collection.snapshot()
        assert [file.name for file in tmp_path.glob("collections/*/index*")] == ["index-1.faiss"]
    with open_store(str(tmp_path)) as again:
        assert again.get("c").search(vectors(1, 9)[0], 1)[0].id == "new"


def test_maintenance_that_fails_shows_in_the_state_and_is_retried(tmp_path):
    settings = StoreSettings(
        memory=1 << 30, idle_delta=1, min_delta=1, max_delta=1, idle_seconds=0.05, pause_seconds=0.05
    )
    store, collection = filled(tmp_path, settings=settings)
    with store:
        with failpoints.at("fold.built", raiser(MemoryError())):
            collection.upsert([Item("a", vectors(1)[0])])
            until(lambda: collection.info().state.startswith("degraded: "))
        until(lambda: collection.info().state == "ready")


def test_a_flat_index_is_folded_late_and_never_saved(tmp_path):
    settings = StoreSettings(
        memory=1 << 30, flat_below=48, min_delta=4, max_delta=16, snapshot_after=16, idle_seconds=3600.0
    )
    written, folded, saved = 0, [], []
    with (
        EmbeddedStore(tmp_path, settings=settings) as store,
        failpoints.at("fold.built", lambda: folded.append(written)),
        failpoints.at("snapshot.taken", lambda: saved.append(written)),
    ):
        collection = store.create("c", CollectionSpec(DIM, index="flat"))
        while written < 60:
            written += 1
            collection.upsert([Item(f"w{written}", vectors(1, written)[0])])
        until(lambda: folded)
    assert folded[0] >= 48
    assert not saved


def test_a_failed_disk_makes_the_collection_read_only(tmp_path):
    store, collection = filled(tmp_path)
    with store:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        with failpoints.at("write.applied", raiser(error)), pytest.raises(StoreReadOnly):
            collection.upsert([Item("new", vectors(1)[0])])
        with pytest.raises(StoreReadOnly):  # nobody knows what is on the disk
            collection.upsert([Item("new", vectors(1)[0])])
        assert not collection.suspend()  # files that are opened again would allow writes
        assert collection.info().state.startswith("read-only: ")
        assert len(collection.search(vectors(1)[0], 5)) == 5


def test_a_missing_file_is_not_created_again(tmp_path):
    store, _ = filled(tmp_path)
    store.close()
    next(tmp_path.glob("collections/*.sqlite")).unlink()
    with open_store(str(tmp_path)) as store:
        with pytest.raises(StoreError):
            store.get("c")
        store.drop("c")
        with pytest.raises(CollectionNotFound):
            store.get("c")


@pytest.mark.parametrize("content", [b"", b"not a database" * 3000], ids=["empty", "text"])
def test_a_file_that_is_not_a_database_is_reported(tmp_path, content):
    store, _ = filled(tmp_path)
    store.close()
    next(tmp_path.glob("collections/*.sqlite")).write_bytes(content)
    with open_store(str(tmp_path)) as store:
        for call in (store.get, store.salvage):
            with pytest.raises(StoreCorrupt):
                call("c")


def test_a_small_delta_is_folded_when_nothing_is_written(tmp_path):
    """Every search scans the rows of the delta one by one, so they should not stay there."""
    folded = []
    settings = StoreSettings(memory=1 << 30, idle_seconds=0.1)
    with failpoints.at("fold.swapped", lambda: folded.append(True)):
        store, collection = filled(tmp_path, 600, settings)
        with store:
            until(lambda: folded)
            assert collection.verify().ok


def test_a_fold_that_is_overtaken_by_a_reload_changes_nothing(tmp_path):
    store, collection = filled(tmp_path)
    with store:

        def reload() -> None:
            with failpoints.at("write.indexing", raiser(MemoryError())):
                collection.upsert([Item("late", vectors(1, 3)[0])])

        with failpoints.at("fold.built", reload):
            collection.compact()
        collection.upsert([Item("new", vectors(1, 4)[0])])
        collection.delete(["i000"])
        until(lambda: collection.info().state == "ready")
        assert collection.verify().ok
