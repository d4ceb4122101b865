"""Opening, locking and listing: one collection or process does not block the others."""

import os
import sqlite3
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnclr_hub.errors import CollectionNotFound, StoreCorrupt, StoreLocked, StoreReadOnly
from nnclr_hub.store import open_store
from nnclr_hub.store import sqlite as files
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.embedded import store as store_module

ONE = np.array([1.0, 0.0], np.float32)


@pytest.fixture
def folder(tmp_path) -> Path:
    """With the closed collections a and b."""
    with open_store(str(tmp_path)) as store:
        for name in ("a", "b"):
            store.create(name, CollectionSpec(2)).upsert([Item(name, ONE)])
    return tmp_path


def file_of(folder: Path, name: str) -> Path:
    with closing(sqlite3.connect(folder / "catalog.sqlite")) as root:
        (key,) = root.execute("SELECT uuid FROM collections WHERE name = ?", [name]).fetchone()
    return folder / "collections" / f"{key}.sqlite"


class Slow(store_module.EmbeddedCollection):
    """Opens the collection `a` when the test lets it."""

    begun = threading.Event()
    go_on = threading.Event()

    def __init__(self, name, *arguments, **options) -> None:
        if name == "a":
            self.begun.set()
            assert self.go_on.wait(120)
        super().__init__(name, *arguments, **options)


@pytest.fixture
def slow(monkeypatch):
    Slow.begun.clear()
    Slow.go_on.clear()
    monkeypatch.setattr(store_module, "EmbeddedCollection", Slow)
    yield Slow
    Slow.go_on.set()


def test_a_collection_that_opens_slowly_holds_up_no_other(folder, slow):
    with open_store(str(folder)) as store:
        got: list[object] = []
        threads = [threading.Thread(target=lambda: got.append(store.get("a"))) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert slow.begun.wait(120)
        assert store.get("b").count() == 1
        store.alias("photos", "b")
        assert [info.name for info in store.list()] == ["a", "b"]
        slow.go_on.set()
        for thread in threads:
            thread.join()
        assert got[0] is got[1] is store.get("a")


def test_a_collection_that_is_dropped_while_it_is_opened_is_gone(folder, slow):
    with open_store(str(folder)) as store:
        opening = threading.Thread(target=store.get, args=["a"])
        opening.start()
        assert slow.begun.wait(120)
        dropping = threading.Thread(target=store.drop, args=["a"])
        dropping.start()
        time.sleep(0.1)
        slow.go_on.set()
        opening.join()
        dropping.join()
        with pytest.raises(CollectionNotFound):
            store.get("a")
        assert len(list((folder / "collections").glob("*.sqlite"))) == 1


def test_a_store_that_is_closed_while_a_collection_is_opened_leaves_nothing_open(folder, slow):
    store = open_store(str(folder))
    got: list[Any] = []
    opening = threading.Thread(target=lambda: got.append(store.get("a")))
    opening.start()
    assert slow.begun.wait(120)
    closing_ = threading.Thread(target=store.close)
    closing_.start()
    slow.go_on.set()
    opening.join()
    closing_.join()
    with pytest.raises(StoreReadOnly):
        got[0].count()
    open_store(str(folder)).close()


@pytest.mark.parametrize("damage", ["empty", "garbage", "missing", "no specification"])
def test_a_collection_that_cannot_be_read_hides_no_other(folder, damage):
    file = file_of(folder, "a")
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
            assert (a.name, a.count, a.index, a.spec) == ("a", 0, "none", CollectionSpec(1))
            assert a.state.startswith("damaged: ")
            assert (b.name, b.count, b.state, b.index) == ("b", 1, "ready", "closed")
            assert store.get("b").count() == 1
            assert store.list()[1].index == "flat"
    if damage == "no specification":
        with open_store(str(folder)) as store, pytest.raises(StoreCorrupt):
            store.get("a")


def test_list_opens_no_collection(folder, slow):
    with open_store(str(folder), read_only=True) as store:
        assert [(info.name, info.count, info.durable_seq) for info in store.list()] == [("a", 1, 1), ("b", 1, 1)]
        assert not slow.begun.is_set()


def test_a_collection_that_vanishes_while_they_are_listed_is_left_out(folder, monkeypatch):
    with open_store(str(folder)) as writer, open_store(str(folder), read_only=True) as reader:
        resolve = reader._names.resolve

        def dropped_meanwhile(name, **how):
            found = resolve(name, **how)
            if name == "a":
                writer.drop("a")
            return found

        monkeypatch.setattr(reader._names, "resolve", dropped_meanwhile)
        assert [info.name for info in reader.list()] == ["b"]


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


@pytest.fixture
def nobody_writes(folder, monkeypatch):
    """Simulate a user without the right to write."""
    monkeypatch.setattr(files.os, "access", lambda path, mode: mode != os.W_OK)
    return folder


def test_a_closed_store_is_read_where_nothing_can_be_written(nobody_writes):
    before = sorted(nobody_writes.rglob("*"))
    with open_store(str(nobody_writes), read_only=True) as store:
        assert store.list()[0].state == "ready"
        assert [match.id for match in store.get("a").search(ONE, 1)] == ["a"]
        assert sorted(nobody_writes.rglob("*")) == before  # not even the index of a log


def test_a_store_that_is_open_for_writing_is_followed_all_the_same(nobody_writes):
    with open_store(str(nobody_writes)) as writer:
        writer.get("a")
        with open_store(str(nobody_writes), read_only=True) as store:
            assert store.get("a").count() == 1
            writer.get("a").upsert([Item("new", ONE)])
            assert store.get("a").count() == 2


def test_a_missing_right_is_not_called_a_failing_disk(folder):
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY_CANTINIT
    with pytest.raises(StoreReadOnly), files.translated(folder):
        raise error


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to be")
def test_another_user_reads_a_closed_store():
    """A real child process without rights reads files of the user that runs the tests."""
    with tempfile.TemporaryDirectory() as above:
        folder = Path(above) / "store"
        with open_store(str(folder)) as store:
            store.create("a", CollectionSpec(2)).upsert([Item("a", ONE)])
        for one in (Path(above), folder, *folder.rglob("*")):
            one.chmod(0o555 if one.is_dir() else 0o444)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setuid(65534)
                with open_store(str(folder), read_only=True) as store:
                    code = 0 if store.get("a").count() == 1 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
