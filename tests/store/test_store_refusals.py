"""What the store refuses, and the properties of its files."""

import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
from store.exhaustive import DIM, vectors

from nnclr_hub.errors import (
    CollectionExists,
    CollectionNotFound,
    FingerprintMismatch,
    InvalidRequest,
    StoreLocked,
    StoreReadOnly,
    StoreTooNew,
)
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.embedded.catalog import connect
from nnclr_hub.store.embedded.names import rebuild_catalog


def test_a_second_writer_is_refused_and_a_reader_sees_what_is_committed(tmp_path):
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(DIM))
        collection.upsert([Item("a", vectors(1)[0])])
        with pytest.raises(StoreLocked):
            open_store(str(tmp_path))
        with open_store(str(tmp_path), read_only=True) as reader:
            seen = reader.get("c")
            assert [m.id for m in seen.search(vectors(1)[0], 9)] == ["a"]
            collection.upsert([Item("b", vectors(1, 1)[0])])
            collection.delete(["a"])
            assert [m.id for m in seen.search(vectors(1)[0], 9)] == ["b"]
            for i in range(4):  # the reader's place falls out of the trimmed log
                collection.upsert([Item(f"x{i}", vectors(1, i)[0])])
                collection.snapshot()
            assert {m.id for m in seen.search(vectors(1)[0], 9)} == {"b", "x0", "x1", "x2", "x3"}
            with pytest.raises(StoreReadOnly):
                seen.upsert([Item("z", vectors(1)[0])])
            with pytest.raises(StoreReadOnly):
                reader.create("d", CollectionSpec(DIM))


@pytest.mark.parametrize(
    "item",
    [
        Item("", np.ones(DIM)),
        Item("a/b", np.ones(DIM)),
        Item("..", np.ones(DIM)),
        Item("a", np.ones(DIM + 1)),
        Item("a", np.full(DIM, np.nan)),
        Item("a", np.zeros(DIM)),
        Item("a", np.array(["x"] * DIM)),
        Item("a", np.ones(DIM), {"x": float("nan")}),
        Item("a", np.ones(DIM), {"x": object()}),
        Item("a", np.ones(DIM), ["x"]),
        Item("a", np.ones(DIM), {"x": "y" * 65_536}),
        Item("a", np.ones(DIM), {}, b"x" * 32_769),
        Item("a", np.ones(DIM), {}, "text"),
    ],
)
def test_an_invalid_item_is_refused_with_the_whole_request(store, item):
    """Even if a later item with the same id is valid."""
    collection = store.create("c", CollectionSpec(DIM))
    with pytest.raises(InvalidRequest):
        collection.upsert([Item("good", vectors(1)[0]), item, Item("a", vectors(1)[0])])
    assert collection.count() == 0


def test_names_are_checked_and_explained(store):
    store.create("photos", CollectionSpec(DIM))
    with pytest.raises(CollectionExists):
        store.create("photos", CollectionSpec(DIM))
    with pytest.raises(CollectionNotFound):
        store.get("fotos")
    for name in ("", " a", "a/b", "a\nb", "e\u0301", "..", "x" * 129, "ü" * 65):
        with pytest.raises(InvalidRequest):
            store.create(name, CollectionSpec(DIM))
    for spec in ({"dim": 0}, {"dim": 4, "metric": "manhattan"}):
        with pytest.raises(InvalidRequest):
            CollectionSpec(**spec)


def test_vectors_of_another_encoder_are_refused_with_the_way_on(store):
    class Embedder:
        name, embed_dim, fingerprint = "mine", DIM, "f" * 32

    collection = store.create("c", CollectionSpec.of(Embedder()))
    collection.check(Embedder())
    other = Embedder()
    other.fingerprint = "e" * 32
    with pytest.raises(FingerprintMismatch, match="nnclr store reembed"):
        collection.check(other)


def test_dropping_removes_the_files_and_frees_the_name(tmp_path):
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(DIM))
        collection.upsert([Item("a", vectors(1)[0])])
        store.drop("c")
        assert list((tmp_path / "collections").iterdir()) == []
        assert store.create("c", CollectionSpec(DIM)).count() == 0


def of_format(format: int, folder, files: str) -> dict[Path, bytes]:
    """Make a store, some of whose files have another format, and return these files."""
    with open_store(str(folder)) as store:
        store.create("c", CollectionSpec(DIM)).upsert([Item("a", vectors(1)[0])])
    for path in folder.glob(files):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA user_version = {format}")
    return {path: path.read_bytes() for path in folder.glob(files)}


@pytest.mark.parametrize("files", ["*.sqlite", "collections/*.sqlite"])
@pytest.mark.parametrize("format", [3, 999])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_store_of_another_format_is_refused_and_not_changed(tmp_path, files, format, read_only):
    before = of_format(format, tmp_path, files)
    with pytest.raises(StoreTooNew, match="nnclr store export") as refusal, ExitStack() as stack:
        stack.enter_context(open_store(str(tmp_path), read_only=read_only)).get("c")
    assert refusal.value.code == "store_too_new"
    assert before == {path: path.read_bytes() for path in before}


def test_a_catalog_is_not_rebuilt_from_collections_of_another_format(tmp_path):
    before = of_format(3, tmp_path, "**/*.sqlite")
    with pytest.raises(StoreTooNew):
        rebuild_catalog(tmp_path)
    assert before == {path: path.read_bytes() for path in before}


def test_the_files_have_the_promised_settings(tmp_path):
    with open_store(str(tmp_path)) as store:
        store.create("c", CollectionSpec(DIM))
    with closing(connect(next(tmp_path.glob("collections/*.sqlite")))) as connection:
        settings = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "page_size", "foreign_keys")
        }
    assert settings == {"journal_mode": "wal", "synchronous": 2, "page_size": 16384, "foreign_keys": 1}
