"""Damage of the root catalog or of the records is reported, costs no collection, and is repaired."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nnclr_hub.cli.app import app
from nnclr_hub.errors import InvalidRequest, StoreCorrupt, StoreLocked
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.folder.catalog import rebuild_catalog
from nnclr_hub.store.records import Record, repair_records

ONE = np.array([1.0, 0.0], np.float32)
LOGS = ("catalog.sqlite-wal", "records.sqlite-wal")
FRAME = 24 + 16_384  # bytes of a log
NAMES = {"x": "b", "x.old": "a", "z": "c"}  # and the id of the item in each
EXPECTED = (NAMES, {"y": "x", "live": "z"}, ["p1", "p2"])


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Return a folder with a store as a crash leaves it, and the same store closed."""
    folder = tmp_path_factory.mktemp("store")
    with open_store(str(folder / "closed")) as store:
        for name in ("a", "b", "c"):
            store.create(name, CollectionSpec(2)).upsert([Item(name, ONE)])
        store.rename("c", "z")
        store.rename("a", "x")
        store.alias("y", "x")
        store.promote("b", "x")
        store.alias("live", "z")
        for number in range(3):
            store.records.put(Record("probe", f"p{number}", {"n": number}))
        store.records.delete("probe", "p0")
        shutil.copytree(folder / "closed", folder / "crashed")
    return folder


@pytest.fixture(params=["crashed", "closed"])
def either(made, request, tmp_path) -> Path:
    return shutil.copytree(made / request.param, tmp_path / "s")


@pytest.fixture
def closed(made, tmp_path) -> Path:
    return shutil.copytree(made / "closed", tmp_path / "s")


@pytest.fixture
def crashed(made, tmp_path) -> Path:
    return shutil.copytree(made / "crashed", tmp_path / "s")


def read(folder: Path, *, read_only: bool = False) -> tuple:
    with open_store(str(folder), read_only=read_only) as store:
        names = {info.name: store.get(info.name).scroll().items[0].id for info in store.list()}
        return names, store.aliases(), [record.name for record in store.records.list("probe")]


def repair(folder: Path):
    return CliRunner().invoke(app, ["store", "repair", "--store", str(folder)])


def test_a_crash_loses_nothing(either):
    for read_only in (True, False, True):
        assert read(either, read_only=read_only) == EXPECTED


@pytest.mark.parametrize("file", LOGS)
@pytest.mark.parametrize("frames", [1, 3, 0])
def test_a_log_without_its_end_is_reported_and_what_is_readable_is_kept(crashed, file, frames):
    """0: the whole log is missing."""
    log = crashed / file
    if frames:
        log.write_bytes(log.read_bytes()[: -frames * FRAME])
    else:
        log.unlink()
    for read_only in (True, False):
        with pytest.raises(StoreCorrupt):
            read(crashed, read_only=read_only)
    if file == LOGS[0]:
        rebuild_catalog(crashed)
        found = read(crashed)
        assert (len(found[0]), sorted(found[0].values()), found[2]) == (3, ["a", "b", "c"], EXPECTED[2])
    else:
        repair_records(crashed / "records.sqlite")
        assert read(crashed)[:2] == EXPECTED[:2]
    with open_store(str(crashed)) as store:
        store.alias("again", "z")
        store.records.put(Record("probe", "new", {}))
    assert read(crashed)[1]["again"] == "z"
    assert "new" in read(crashed)[2]


@pytest.mark.parametrize("how", ["missing", "empty", "garbage", "inside"])
def test_the_catalog_is_rebuilt_from_the_names_in_the_files(closed, how):
    catalog = closed / "catalog.sqlite"
    if how == "missing":
        catalog.unlink()
    elif how == "inside":
        with closing(sqlite3.connect(catalog)) as root:
            (page,) = root.execute("SELECT rootpage FROM sqlite_master WHERE name = 'collections'").fetchone()
            (size,) = root.execute("PRAGMA page_size").fetchone()
        with catalog.open("r+b") as handle:
            handle.seek((page - 1) * size)
            handle.write(bytes(size))
    else:
        catalog.write_bytes(b"" if how == "empty" else b"no database at all" * 1000)
    before = sorted((closed / "collections").iterdir())
    for read_only in (False, True):
        if (how, read_only) != ("inside", True):  # a reader does not check the file before it asks
            with pytest.raises(StoreCorrupt):
                open_store(str(closed), read_only=read_only)
    assert sorted((closed / "collections").iterdir()) == before
    assert repair(closed).exit_code == 0
    assert (read(closed)[0], read(closed)[2]) == (NAMES, EXPECTED[2])
    assert (closed / "lost+found" / "catalog-damaged0.sqlite").is_file() == (how != "missing")


def test_a_whole_catalog_goes_before_the_files_and_an_open_store_is_left_alone(closed, tmp_path):
    files = sorted(closed.glob("collections/*.sqlite"))
    for file, change in zip(files, ("DELETE FROM meta WHERE key = 'name'", *2 * ["SELECT 1"]), strict=True):
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(change)
    assert set(rebuild_catalog(closed)) == set(NAMES)
    assert repair(closed).exit_code == 0
    with open_store(str(closed)) as store:
        assert store.aliases() == EXPECTED[1]
        with pytest.raises(StoreLocked):
            rebuild_catalog(closed)
    with pytest.raises(InvalidRequest):
        rebuild_catalog(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    for file, name in zip(files[1:], "qq", strict=True):
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('name', ?)", [name])
    (closed / "catalog.sqlite").unlink()
    found = set(rebuild_catalog(closed))  # names that are known nowhere, or twice
    assert {"q", "q.2"} < found
    assert len(found) == 3


def test_a_collection_of_which_nothing_is_readable_is_listed_and_can_be_dropped(closed):
    """After the catalog was rebuilt, too, which does not know its specification."""
    with open_store(str(closed)) as store:
        file = next(iter(store.files().values()))
    file.write_bytes(b"garbage" * 100)
    (closed / "catalog.sqlite").unlink()
    [lost] = [one for one, stem in rebuild_catalog(closed).items() if stem == file.stem]
    with open_store(str(closed)) as store:
        states = {info.name: info.state for info in store.list()}
        assert states[lost].startswith("damaged: ")
        assert len(states) == len(NAMES)
    done = CliRunner().invoke(app, ["store", "drop", lost, "--yes", "--store", str(closed)])
    assert done.exit_code == 0, done.output
    with open_store(str(closed)) as store:
        assert len(store.list()) == len(NAMES) - 1
        assert not file.exists()
