"""Failures are reported, cost nothing that was acknowledged, and are repaired where possible."""

import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from store.exhaustive import nearest
from waiting import until

from nnclr_hub import EmbeddedStore
from nnclr_hub.errors import DiskFull, StoreCorrupt, StoreError, StoreReadOnly
from nnclr_hub.store import failpoints, open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.spec import Compared
from nnclr_hub.store.sqlite import BUSY_SECONDS

DIM = 16
GRAPH = StoreSettings(flat_below=100)  # whose snapshots are files
EAGER = StoreSettings(memory=1 << 30, idle_recent=1, min_recent=1, max_recent=1, idle_seconds=0.05, pause_seconds=0.05)


def vectors(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, DIM)).astype(np.float32)


def one(id: str, seed: int = 0) -> Item:
    return Item(id, vectors(1, seed)[0])


def filled(folder, n: int = 300, settings: StoreSettings = GRAPH, compared: Compared = "raw"):
    """A store with one collection."""
    store = EmbeddedStore(folder, settings=settings)
    index = "hnsw" if settings is GRAPH else "auto"
    collection = store.create("c", CollectionSpec(DIM, index=index, vectors=compared))
    collection.upsert([Item(f"i{i:03}", v, {"n": i}, b"\xff\xd8\xffjpeg") for i, v in enumerate(vectors(n))])
    return store, collection


def raiser(error: BaseException):
    """Return a function that raises the error."""

    def fail() -> None:
        raise error

    return fail


def disk_error() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    return error


# ------------------------------------------------------------------------------ the writer


def test_requests_of_one_commit_share_it_and_the_error_of_one_harms_no_other(tmp_path):
    """While the first commit is held up, the other requests queue. Some fail when their first row is written."""
    store, collection = filled(tmp_path, 1)
    release, commits, refused = threading.Event(), [], []
    (file,) = tmp_path.glob("collections/*.sqlite")
    with closing(sqlite3.connect(file)) as other, other:
        trouble = "CREATE TRIGGER trouble BEFORE INSERT ON thumbnails WHEN NEW.jpeg = x'FFD8FF00'"
        other.execute(f"{trouble} BEGIN SELECT RAISE(ABORT, 'trouble'); END")

    def held() -> None:
        commits.append(1)
        assert release.wait(60)

    def write(i: int) -> None:
        try:
            collection.upsert(
                [replace(one(f"t{i}", i), thumbnail=b"\xff\xd8\xff\0" if i % 16 == 5 else b"\xff\xd8\xffjpeg")]
            )
        except StoreError:
            refused.append(i)

    with store:
        threads = [threading.Thread(target=write, args=[i]) for i in range(64)]
        with failpoints.at("write.begun", held):
            for thread in threads:
                thread.start()
            release.set()
            for thread in threads:
                thread.join()
        assert sorted(refused) == [5, 21, 37, 53]
        assert {item.id for item in collection.scroll().items} == {
            "i000",
            *(f"t{i}" for i in range(64) if i not in refused),
        }
        assert len(commits) < 64
        assert collection.info().state == "ready"
        with closing(sqlite3.connect(file)) as other, other:
            other.execute("DROP TRIGGER trouble")
        assert collection.verify().ok


@pytest.mark.parametrize(
    ("step", "error", "what"),
    [
        ("write.begun", SystemExit, "upsert"),
        ("write.applied", disk_error, "upsert"),
        ("write.applied", disk_error, "snapshot"),
    ],
)
def test_a_failed_disk_makes_the_collection_read_only(tmp_path, step, error, what):
    """Nobody knows what is on the disk then. The writer's thread must not end: all later writes would wait forever."""
    store, collection = filled(tmp_path)
    with store:
        collection.compact()
        write = collection.snapshot if what == "snapshot" else lambda: collection.upsert([one("new")])
        with (
            failpoints.at(step, raiser(error())),
            pytest.raises(StoreReadOnly),
        ):
            write()
        for again in (lambda: collection.upsert([one("new")]), collection.snapshot, collection.compact):
            with pytest.raises(StoreReadOnly):
                again()
        assert collection.info().state.startswith("read-only: ")
        assert len(collection.search(vectors(1)[0], 5)) == 5
        assert collection.verify().ok
    with open_store(str(tmp_path)) as again:
        assert again.get("c").count() == 300
        again.get("c").upsert([one("new")])


def test_a_commit_that_fails_leaves_nothing_in_the_index(tmp_path):
    """The disk is full at the COMMIT; the next commit has the same numbers of rows and changes."""
    store, collection = filled(tmp_path, 40)
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    with store:
        before = collection.info().durable_seq
        with failpoints.at("write.applied", raiser(full)), pytest.raises(DiskFull):
            collection.upsert([one("lost", 7), one("i003", 7)])
        assert (collection.count(), collection.info().durable_seq) == (40, before)
        collection.upsert([one("new", 8)])
        found = [match.id for match in collection.search(vectors(1, 7)[0], 50)]
        assert sorted(found) == sorted(["new", *(f"i{i:03}" for i in range(40))])
        assert collection.search(vectors(300)[3], 1)[0].id == "i003"
        assert collection.verify().ok


# ------------------------------------------------------------------------------ the index


def test_an_index_that_cannot_follow_is_never_asked_and_is_reloaded(tmp_path):
    """The write is acknowledged, because it is durable, and what was deleted is not found."""
    store, collection = filled(tmp_path, 40)
    with store:
        with failpoints.at("write.indexing", raiser(MemoryError())):
            seq = collection.upsert([one("new", 5)])
            collection.delete([f"i{i:03}" for i in range(0, 40, 2)])
            assert collection.info().durable_seq == seq + 20
            found = collection.search(vectors(1, 5)[0], 40)
            assert {match.id for match in found} == {"new", *(f"i{i:03}" for i in range(1, 40, 2))}
            assert found[0].id == "new"
        collection.upsert([one("last", 6)])
        until(lambda: collection.info().state == "ready" and collection.info().indexed_seq == seq + 21)
        assert collection.search(vectors(1, 6)[0], 1)[0].id == "last"
        assert collection.verify().ok


def test_maintenance_survives_every_error_reports_it_and_tries_again(tmp_path):
    store, collection = filled(tmp_path, settings=EAGER)
    with store:
        for error in (OverflowError(), KeyError("x"), MemoryError(), RecursionError()):
            with failpoints.at("fold.built", raiser(error)):
                collection.upsert([Item(f"n{i}", v) for i, v in enumerate(vectors(50, 1))])
                until(lambda: collection.info().state.startswith("degraded"))
                assert store.statistics()["c"].state.startswith("degraded")
            until(lambda: collection.info().state == "ready")


@pytest.mark.parametrize("compared", ["raw", "center"])
def test_writes_during_a_fold_are_in_the_new_index(tmp_path, compared):
    """Rows that are added, replaced and deleted, of the main part and of the recent rows, while it is built.

    They are compared after the transform that the fold fits.
    """
    store, collection = filled(tmp_path, compared=compared)
    truth = {f"i{i:03}": v for i, v in enumerate(vectors(300))}
    with store:
        collection.compact()
        some = {f"m{i}": v for i, v in enumerate(vectors(30, 1))}
        collection.upsert([Item(id, v) for id, v in some.items()])
        late = {"late": vectors(1, 3)[0], "i007": vectors(1, 4)[0], "m7": vectors(1, 5)[0]}
        gone = ["i000", "m0", "i299", "m29"]
        folds = []

        def write() -> None:
            if not folds:
                collection.upsert([Item(*pair) for pair in late.items()])
                collection.delete(gone)
            folds.append(1)

        truth = {id: v for id, v in (truth | some | late).items() if id not in gone}
        with failpoints.at("fold.built", write):
            collection.compact()
        assert folds
        moved = dict(zip(truth, collection.compared(np.stack(list(truth.values()))), strict=True))
        for query in [*late.values(), *vectors(5, 9)]:
            found = [match.id for match in collection.search(query, len(truth))]
            assert found == [id for id, _ in nearest("cosine", moved, collection.compared(query[None])[0])]
        assert collection.verify().ok


# ------------------------------------------------------------------------------ snapshots and files


def test_a_compaction_next_to_a_long_read_keeps_no_write_waiting(tmp_path):
    """The checkpoint that shortens the log takes the lock of writers, and would wait for the reader."""
    store, collection = filled(tmp_path)
    [file] = (tmp_path / "collections").glob("*.sqlite")
    with store, closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN")
        assert other.execute("SELECT count(*) FROM items").fetchone() == (300,)
        collection.delete([f"i{n:03}" for n in range(100)])
        compaction, waits = threading.Thread(target=collection.compact), []
        compaction.start()
        while compaction.is_alive():
            began = time.monotonic()
            collection.upsert([one("new")])
            waits.append(time.monotonic() - began)
        assert max(waits) < BUSY_SECONDS / 2
        assert collection.count() == 201


@pytest.mark.parametrize("step", ["snapshot.written", "snapshot.synced"])
def test_a_snapshot_that_fails_or_was_changed_by_the_disk_keeps_the_one_before(tmp_path, step):
    """The recorded hash is that of the written bytes, so reading back other bytes is noticed."""
    store, collection = filled(tmp_path)

    def change() -> None:
        (file,) = tmp_path.glob("collections/*/*.part")
        file.write_bytes(bytes(file.stat().st_size))

    with store:
        collection.compact()
        collection.snapshot()
        (before,) = tmp_path.glob("collections/*/index*")
        collection.upsert([one("new", 9)])
        collection.compact()
        fault = raiser(OSError(5, "Input/output error")) if step == "snapshot.written" else change
        with failpoints.at(step, fault), pytest.raises(StoreError):
            collection.snapshot()
        assert list(tmp_path.glob("collections/*/index*")) == [before]
        collection.snapshot()
    with open_store(str(tmp_path)) as again:
        assert again.get("c").search(vectors(1, 9)[0], 1)[0].id == "new"


def test_one_snapshot_is_kept_and_the_log_is_trimmed(tmp_path):
    settings = replace(GRAPH, kept_changes=8, idle_seconds=0.05, flat_below=2)
    with EmbeddedStore(tmp_path, settings=settings) as store:
        collection = store.create("c", CollectionSpec(DIM, index="hnsw"))
        for i in range(20):
            collection.upsert([one(f"i{i}", i)])
            collection.compact()
            collection.snapshot()
        assert len(list((tmp_path / "collections").glob("*/index-*"))) == 1

        def is_trimmed() -> bool:
            try:
                return not collection.changes(10)
            except StoreError as error:
                return error.code == "changes_unavailable"

        until(is_trimmed)
        assert [change.id for change in collection.changes(12).changes] == [f"i{i}" for i in range(12, 20)]


@pytest.mark.parametrize("damaged", ['{"n": 5', "7", '{"n": 1}, {"n": 2}'])
def test_facets_name_the_item_whose_metadata_are_damaged(tmp_path, damaged):
    with open_store(str(tmp_path)) as store:
        store.create("c", CollectionSpec(DIM, indexed=())).upsert([one(f"i{n}", n) for n in range(3)])
    (file,) = tmp_path.glob("collections/*.sqlite")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE items SET metadata = ? WHERE id = 'i1'", [damaged])
        connection.commit()
    with open_store(str(tmp_path)) as store:
        collection = store.get("c")
        assert collection.count() == 3
        with pytest.raises(StoreCorrupt, match="i1"):
            collection.facets(["n"])


def test_a_compaction_after_a_bulk_load_builds_the_final_kind(tmp_path):
    """Before it, an inverted file, which takes a tenth of the time, makes searches fast."""
    settings = StoreSettings(flat_below=100, coarse_from=200, idle_seconds=3600.0)
    with EmbeddedStore(tmp_path, settings=settings) as store:
        collection = store.create("c", CollectionSpec(DIM))
        rows = vectors(600)
        collection.upsert([Item(f"i{i}", row) for i, row in enumerate(rows)])
        until(lambda: collection.info().index == "ivf_sq8")
        assert collection.info().state.startswith("building")
        collection.compact()
        assert (collection.info().index, collection.info().state) == ("hnsw", "ready")
        assert collection.search(rows[7], 1)[0].id == "i7"
