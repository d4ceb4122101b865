"""Opening, locking, listing and closing: one collection or process does not block the others."""

import os
import sqlite3
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnclr_hub import EmbeddedStore
from nnclr_hub.errors import (
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreReadOnly,
    StoreTooNew,
)
from nnclr_hub.store import failpoints, open_store
from nnclr_hub.store import sqlite as files
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.folder.catalog import rebuild_catalog
from nnclr_hub.store.settings import StoreSettings

ONE = np.array([1.0, 0.0], np.float32)


@pytest.fixture
def folder(tmp_path) -> Path:
    """With the closed collections a, which has an index on disk, and b."""
    with EmbeddedStore(tmp_path, settings=StoreSettings(flat_below=1)) as store:
        for name, index in (("a", "hnsw"), ("b", "flat")):
            collection = store.create(name, CollectionSpec(2, index=index))
            collection.upsert([Item(name, ONE)])
            collection.compact()
            collection.snapshot()
    return tmp_path


def file_of(folder: Path, name: str) -> Path:
    with closing(sqlite3.connect(folder / "catalog.sqlite")) as root:
        (key,) = root.execute("SELECT uuid FROM collections WHERE name = ?", [name]).fetchone()
    return folder / "collections" / f"{key}.sqlite"


class Slow:
    """Holds up the first collection that is opened, until the test releases it."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self) -> None:
        if not self.begun.is_set():
            self.begun.set()
            assert self.go_on.wait(20)


@pytest.fixture
def slow():
    held = Slow()
    with failpoints.at("recover.loaded", held):
        yield held
        held.go_on.set()


def started(target, *arguments) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments)
    thread.start()
    return thread


# ------------------------------------------------------------------------------ while one is opened


def test_a_collection_that_opens_slowly_holds_up_no_other(folder, slow):
    with open_store(str(folder)) as store:
        got: list[object] = []
        threads = [started(lambda: got.append(store.get("a"))) for _ in range(2)]
        assert slow.begun.wait(20)
        assert store.get("b").count() == 1
        store.alias("photos", "b")
        assert [info.name for info in store.list()] == ["a", "b"]
        slow.go_on.set()
        for thread in threads:
            thread.join()
        assert got[0] is got[1] is store.get("a")


def test_a_store_that_is_closed_while_a_collection_is_opened_leaves_nothing_open(folder, slow):
    store = open_store(str(folder))
    got: list[Any] = []
    opening = started(lambda: got.append(store.get("a")))
    assert slow.begun.wait(20)
    closing_ = started(store.close)
    slow.go_on.set()
    opening.join()
    closing_.join()
    with pytest.raises(StoreClosed):
        got[0].count()
    open_store(str(folder)).close()


def test_list_opens_no_collection(folder, slow):
    with open_store(str(folder), read_only=True) as store:
        assert [(info.name, info.count, info.durable_seq) for info in store.list()] == [("a", 1, 1), ("b", 1, 1)]
        assert not slow.begun.is_set()
        assert store.statistics() == {}


def test_a_collection_reports_the_bytes_of_its_files_open_and_closed(folder):
    with open_store(str(folder)) as store:
        store.get("a").upsert([Item("large", ONE, {"text": "x" * 50_000})])
        file = store.files()["a"]
        sizes = [path.stat().st_size for path in file.parent.glob(f"{file.name}*") if not path.name.endswith("-shm")]
        assert store.get("a").info().bytes == sum(sizes) > 50_000
    with open_store(str(folder), read_only=True) as store:
        assert [info.bytes for info in store.list()] == [path.stat().st_size for path in store.files().values()]


# ------------------------------------------------------------------------------ who may open


def test_a_second_writer_is_refused_and_a_reader_follows_the_first(folder):
    with open_store(str(folder)) as store, open_store(str(folder), read_only=True) as reader:
        with pytest.raises(StoreLocked):
            open_store(str(folder))
        seen, collection = reader.get("a"), store.get("a")
        for i in range(4):  # the reader's place falls out of the trimmed log
            collection.upsert([Item(f"x{i}", ONE)])
            collection.snapshot()
            assert {match.id for match in seen.search(ONE, 9)} == {"a", *(f"x{n}" for n in range(i + 1))}
        collection.delete(["a"])
        assert {match.id for match in seen.search(ONE, 9)} == {f"x{n}" for n in range(4)}
        store.promote("b", "a")
        assert [item.id for item in reader.get("a").scroll().items] == ["b"]
        store.drop("a")
        assert [info.name for info in reader.list()] == ["a.old"]
    open_store(str(folder)).close()


def test_a_forked_child_does_not_keep_the_lock(folder):
    store = open_store(str(folder))
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(sending)
        os.read(receiving, 1)  # until the parent is done
        os._exit(0)
    try:
        with pytest.raises(StoreLocked):
            open_store(str(folder))
        store.close()
        open_store(str(folder)).close()
    finally:
        os.close(sending)
        os.waitpid(child, 0)
        os.close(receiving)


@pytest.mark.parametrize("files", ["*.sqlite", "collections/*.sqlite", "**/*.sqlite"])
@pytest.mark.parametrize("format", [3, 999])
def test_a_store_of_another_format_is_refused_and_not_changed(folder, files, format):
    for path in folder.glob(files):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA user_version = {format}")
    before = {path: path.read_bytes() for path in folder.glob(files)}
    for read_only in (False, True):
        with pytest.raises(StoreTooNew), ExitStack() as stack:
            stack.enter_context(open_store(str(folder), read_only=read_only)).get("a")
    if files.startswith("**"):
        with pytest.raises(StoreTooNew):
            rebuild_catalog(folder)
    assert before == {path: path.read_bytes() for path in before}


def test_the_files_have_the_promised_settings(folder):
    with closing(sqlite3.connect(file_of(folder, "a"))) as connection:
        found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "page_size")]
    assert found == ["wal", 16384]
    with open_store(str(folder)) as store:
        store.drop("a")
        store.drop("b")
        assert list((folder / "collections").iterdir()) == []
        store.create("Ferien 写真", CollectionSpec(2))
    assert all(path.name.isascii() and " " not in path.name for path in folder.rglob("*"))  # safe on every disk


@pytest.mark.parametrize("damage", ["empty", "garbage", "missing", "no specification"])
def test_a_collection_that_cannot_be_read_hides_no_other(folder, damage):
    file, spec = file_of(folder, "a"), CollectionSpec(2, index="hnsw")
    if damage == "no specification":
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("DELETE FROM meta WHERE key = 'spec'")
    elif damage == "missing":
        file.unlink()
    else:
        file.write_bytes(b"" if damage == "empty" else b"no database" * 1000)
    for read_only in (True, False):
        with open_store(str(folder), read_only=read_only) as store:
            a, b = store.list()
            assert (a.name, a.count, a.index, a.spec) == ("a", 0, "none", spec)
            assert a.state.startswith("damaged: ")
            assert (b.name, b.count, b.state, b.index) == ("b", 1, "ready", "closed")
            assert store.get("b").count() == 1
            assert store.list()[1].index == "flat"
            with pytest.raises(StoreError) as refusal:
                store.get("a")
            assert damage == "missing" or isinstance(refusal.value, StoreCorrupt)
            if not read_only:
                assert store.promote("a", "b") == "b.old"  # its name changes all the same


# ------------------------------------------------------------------------------ without the right to write


@pytest.fixture
def nobody_writes(folder, monkeypatch):
    """Simulate a user without the right to write."""
    monkeypatch.setattr(files.os, "access", lambda path, mode: mode != os.W_OK)
    return folder


def test_a_store_is_read_where_nothing_can_be_written(nobody_writes):
    before = sorted(nobody_writes.rglob("*"))
    with open_store(str(nobody_writes), read_only=True) as store:
        assert store.list()[0].state == "ready"
        assert [match.id for match in store.get("a").search(ONE, 1)] == ["a"]
        assert sorted(nobody_writes.rglob("*")) == before  # not even the index of a log
    with open_store(str(nobody_writes)) as writer:
        writer.get("a")
        with open_store(str(nobody_writes), read_only=True) as store:  # and followed if it is open for writing
            assert store.get("a").count() == 1
            writer.get("a").upsert([Item("new", ONE)])
            assert store.get("a").count() == 2
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY_CANTINIT
    with pytest.raises(StoreReadOnly), files.translated(nobody_writes):  # is not called a failing disk
        raise error
