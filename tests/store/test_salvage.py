"""Everything readable of a damaged file is saved, and the rest is reported."""

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nnclr_hub.cli.app import app
from nnclr_hub.errors import StoreCorrupt
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.sqlite import PAGE_SIZE

DIM, N = 16, 2000
VECTORS = np.random.default_rng(0).normal(size=(N, DIM)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)
IDS = [f"i{i:04}" for i in range(N)]
ALL = set(IDS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A store with the closed collection c, whose rows 1 ... 10 were replaced."""
    folder = tmp_path_factory.mktemp("whole")
    items = [
        Item(id, v, {"n": i, "path": "x" * 100}, b"\xff\xd8\xffjpeg" * 20)
        for i, (id, v) in enumerate(zip(IDS, VECTORS, strict=True))
    ]
    with open_store(str(folder)) as store:
        collection = store.create("c", CollectionSpec(DIM))
        collection.upsert(items)
        collection.upsert(items[:10])
    return folder


@pytest.fixture
def folder(whole, tmp_path) -> Path:
    return shutil.copytree(whole, tmp_path / "store")


def file_of(folder: Path) -> Path:
    (file,) = folder.glob("collections/*.sqlite")
    return file


def leaves(folder: Path) -> dict[str, list[int]]:
    """Pages with rows, by table or index, and the inner pages of each as "TABLE inner"."""
    data = file_of(folder).read_bytes()
    with closing(sqlite3.connect(file_of(folder))) as connection:
        roots = dict(connection.execute("SELECT name, rootpage FROM sqlite_master WHERE rootpage > 0"))
    found: dict[str, list[int]] = {}
    for name, root in roots.items():
        waiting = [root]
        while waiting:
            page = waiting.pop()
            at = (page - 1) * PAGE_SIZE + (100 if page == 1 else 0)
            inner = data[at] in (2, 5)
            found.setdefault(f"{name} inner" if inner else name, []).append(page)
            if inner:
                cells = int.from_bytes(data[at + 3 : at + 5])
                waiting.append(int.from_bytes(data[at + 8 : at + 12]))
                for i in range(cells):
                    offset = int.from_bytes(data[at + 12 + 2 * i : at + 14 + 2 * i])
                    start = (page - 1) * PAGE_SIZE + offset
                    waiting.append(int.from_bytes(data[start : start + 4]))
    return found


def break_page(folder: Path, page: int, junk: bytes = b"\xff" * 64) -> None:
    with file_of(folder).open("r+b") as handle:
        handle.seek((page - 1) * PAGE_SIZE)
        handle.write(junk)


def on_page(folder: Path, table: str, page: int) -> set[str]:
    """Ids of the items with a row on a leaf of a table, by trying which cannot be read once it is broken."""
    data = file_of(folder).read_bytes()
    break_page(folder, page)
    missing = set()
    with closing(sqlite3.connect(file_of(folder))) as connection:
        for rid, id in connection.execute("SELECT rid, id FROM items ORDER BY id").fetchall():
            try:
                connection.execute(f"SELECT * FROM {table} NOT INDEXED WHERE rid = ?", [rid]).fetchall()
            except sqlite3.DatabaseError:
                missing.add(id)
    file_of(folder).write_bytes(data)
    return missing


def repair(folder: Path) -> tuple[int, dict]:
    result = CliRunner().invoke(app, ["store", "repair", "c", "--store", str(folder), "--json"])
    return result.exit_code, json.loads(result.stdout)


def check(folder: Path, expected: set[str]) -> None:
    """The collection is well and holds these items as they were written."""
    with open_store(str(folder)) as store:
        collection = store.get("c")
        items = collection.scroll(limit=N).items
        assert {item.id for item in items} == expected
        for item in items:
            n = item.metadata["n"]
            assert item.id == IDS[n]
            np.testing.assert_allclose(item.vector, VECTORS[n], atol=1e-6)
        assert collection.verify().ok


@pytest.mark.parametrize("table", ["items", "vectors"])
@pytest.mark.parametrize("nth", [0, 1, -1])
def test_a_damaged_page_costs_the_items_on_it_which_are_named(folder, table, nth):
    page = sorted(leaves(folder)[table])[nth]
    gone = on_page(folder, table, page)
    assert 0 < len(gone) < N / 2
    break_page(folder, page)
    code, said = repair(folder)
    assert code == 1
    assert said["salvaged"]["saved"] == said["items"] == N - len(gone)
    assert (set(said["salvaged"]["lost"]), said["salvaged"]["suspected"]) == (gone, 0)
    assert Path(said["salvaged"]["original"]).is_file()
    check(folder, ALL - gone)


@pytest.mark.parametrize(
    "table", ["thumbnails", "thumbnails inner", "sqlite_autoindex_items_1", "sqlite_sequence", "oplog"]
)
@pytest.mark.parametrize("junk", [b"\xff" * 64, bytes(64)], ids=["ones", "zeros"])
def test_damage_outside_of_items_and_vectors_costs_no_item(folder, table, junk):
    page = sorted(leaves(folder)[table])[-1]
    break_page(folder, page, junk)
    with open_store(str(folder)) as store:
        salvaged = store.salvage("c")
    assert (salvaged.saved, salvaged.complete) == (N, True)
    assert (salvaged.thumbnails > 0) == table.startswith("thumbnails")
    check(folder, ALL)


def test_rows_of_which_nothing_can_be_read_are_suspected(folder):
    pages = leaves(folder)
    for table in ("items inner", "vectors inner", "thumbnails inner", "sqlite_autoindex_items_1 inner"):
        break_page(folder, pages[table][0])
    with open_store(str(folder)) as store:
        salvaged = store.salvage("c")
    assert (salvaged.saved, salvaged.lost, salvaged.suspected) == (0, (), N + 10)
    assert not salvaged.complete


def test_numbers_of_rows_and_changes_never_go_back(folder):
    with open_store(str(folder)) as store:
        before = store.get("c").info().durable_seq
        with open_store(str(folder), read_only=True) as reader:
            assert reader.get("c").info().indexed_seq == before
        store.salvage("c")
        assert store.get("c").info().durable_seq > before
        store.get("c").upsert([Item("new", VECTORS[0])])
    with closing(sqlite3.connect(file_of(folder))) as connection:
        assert connection.execute("SELECT rid FROM items WHERE id = 'new'").fetchone() == (N + 11,)


def test_repair_leaves_a_damaged_file_alone(folder):
    break_page(folder, leaves(folder)["items inner"][0])
    data = file_of(folder).read_bytes()
    with open_store(str(folder)) as store, pytest.raises(StoreCorrupt):
        store.get("c").repair()
    assert [IDS[n].encode() in file_of(folder).read_bytes() for n in (0, N - 1)] == [True, True]
    assert len(file_of(folder).read_bytes()) == len(data)


@pytest.mark.parametrize("cut", [1, 200])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_cut_off_within_its_last_page_is_refused_and_saved(folder, cut, read_only):
    """SQLite reads what is missing as zeros, and finds nothing wrong with that."""
    file = file_of(folder)
    os.truncate(file, file.stat().st_size - cut)
    with open_store(str(folder), read_only=read_only) as store, pytest.raises(StoreCorrupt):
        store.get("c")
    with open_store(str(folder)) as store:
        report = store.salvage("c")
        there = {item.id for item in store.get("c").scroll(limit=10_000, with_vector=False).items}
        assert there == ALL - set(report.lost)
        assert store.get("c").verify().ok
