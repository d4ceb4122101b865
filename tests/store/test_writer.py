"""One thread that writes: a bad request harms no other of its commit, and a failed disk is not written again."""

import json
import sqlite3
import threading

import numpy as np
import pytest

from nnclr_hub import EmbeddedStore
from nnclr_hub.errors import InvalidRequest, StoreError, StoreReadOnly
from nnclr_hub.store import failpoints, open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.settings import StoreSettings

DIM = 4


@pytest.fixture
def collection(tmp_path):
    with EmbeddedStore(tmp_path, settings=StoreSettings(flat_below=2)) as store:
        yield store.create("c", CollectionSpec(DIM, "l2", index="hnsw"))


@pytest.mark.parametrize("trouble", [StoreError("no"), ValueError("odd"), sqlite3.OperationalError("malformed JSON")])
def test_the_error_of_one_request_harms_no_other_of_its_commit(collection, trouble):
    """Both wait behind a request that is held up, so that they are in one transaction."""
    writer, go_on, failures = collection._files.writer, threading.Event(), []

    def bad(connection, changes):
        connection.execute("INSERT INTO items (id, metadata) VALUES ('half', '{}')")
        raise trouble

    def ask():
        try:
            writer.submit(bad)
        except StoreError as error:
            failures.append(error)

    threads = [
        threading.Thread(target=lambda: writer.submit(lambda *_: go_on.wait())),
        threading.Thread(target=ask),
        threading.Thread(target=lambda: collection.upsert([Item("good", np.ones(DIM))])),
    ]
    for thread in threads:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(failures) == 1
    assert [item.id for item in collection.scroll().items] == ["good"]
    assert collection.info().state == "ready"


def test_a_disk_that_fails_while_a_snapshot_is_recorded_makes_the_collection_read_only(collection):
    collection.upsert([Item(f"i{i}", vector) for i, vector in enumerate(np.eye(DIM, dtype=np.float32))])
    collection.compact()

    def fail() -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error

    with failpoints.at("snapshot.recorded", fail), pytest.raises(StoreReadOnly):
        collection.snapshot()
    for write in (lambda: collection.upsert([Item("b", np.ones(DIM))]), collection.snapshot, collection.compact):
        with pytest.raises(StoreReadOnly):
            write()
    assert collection.info().state.startswith("read-only: ")
    assert collection.verify().ok


def test_a_snapshot_that_the_disk_changed_is_not_recorded(collection, tmp_path):
    """The recorded hash is that of the written bytes, so reading back other bytes is noticed."""
    collection.upsert([Item(f"i{i}", np.full(DIM, i, np.float32)) for i in range(50)])
    collection.compact()

    def change() -> None:
        (file,) = tmp_path.glob("collections/*/*.part")
        file.write_bytes(bytes(file.stat().st_size))

    with failpoints.at("snapshot.synced", change), pytest.raises(StoreError):
        collection.snapshot()
    collection.snapshot()


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.delete("ab"),
        lambda c: c.get("ab"),
        lambda c: c.search_batch(None),
        lambda c: c.search(np.ones(DIM), effort=0),
        lambda c: c.search(np.ones(DIM), score_threshold="high"),
        lambda c: c.search(np.ones(DIM), k=0),
        lambda c: c.search(np.full(DIM, 1e30)),
        lambda c: c.count({"must": [{"key": "a", "match": "x\0y"}]}),
        lambda c: c.upsert([Item("a", np.ones(DIM), {"a": "x\0y"})]),
        lambda c: c.upsert([Item("a", np.ones(DIM), {"a": json.loads("[" * 150 + "]" * 150)})]),
        lambda c: CollectionSpec(4, indexed="label"),
    ],
)
def test_invalid_arguments_are_refused(collection, call):
    with pytest.raises(InvalidRequest):
        call(collection)
    assert collection.count() == 0


def test_compacting_what_is_closed_is_refused(tmp_path):
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(DIM))
        collection.upsert([Item("a", np.ones(DIM))])
    with pytest.raises(StoreReadOnly):
        collection.compact()


@pytest.mark.parametrize("uri", ["", None, "http://x", "file:///tmp/x"])
def test_an_invalid_store_location_is_refused(uri):
    with pytest.raises(InvalidRequest):
        open_store(uri)


@pytest.mark.parametrize("spec", [{"dim": 4.5}, {"dim": True}, {"dim": "x"}, {"dim": 4, "indexed": ["k"] * 40}])
def test_an_invalid_specification_is_refused(spec):
    with pytest.raises(InvalidRequest):
        CollectionSpec(**spec)


@pytest.mark.parametrize("items", [None, Item("a", np.ones(DIM)), [{"id": "a"}]])
def test_an_invalid_item_is_refused(collection, items):
    with pytest.raises(InvalidRequest):
        collection.upsert(items)
