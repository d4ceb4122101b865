"""A damaged or missing root catalog costs no collection, and is rebuilt from the collections' files."""

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
from nnclr_hub.store.embedded.names import rebuild_catalog

ONE = np.array([1.0, 0.0], np.float32)


@pytest.fixture
def folder(tmp_path) -> Path:
    """With x (made as b), x.old (made as a, promoted away), z (made as c) and the alias y of x."""
    with open_store(str(tmp_path)) as store:
        for name in ("a", "b", "c"):
            store.create(name, CollectionSpec(2)).upsert([Item(name, ONE)])
        store.rename("c", "z")
        store.rename("a", "x")
        store.alias("y", "x")
        store.promote("b", "x")
    return tmp_path


def damage(folder: Path, how: str) -> None:
    catalog = folder / "catalog.sqlite"
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


def repair(folder: Path):
    return CliRunner().invoke(app, ["store", "repair", "--store", str(folder)])


@pytest.mark.parametrize("how", ["missing", "empty", "garbage", "inside"])
def test_the_catalog_is_rebuilt_from_the_names_in_the_files(folder, how):
    damage(folder, how)
    before = sorted((folder / "collections").iterdir())
    for read_only in (False, True):
        if (how, read_only) == ("inside", True):  # a reader does not check the file before it asks
            continue
        with pytest.raises(StoreCorrupt, match="nnclr store repair"):
            open_store(str(folder), read_only=read_only)
    assert sorted((folder / "collections").iterdir()) == before
    result = repair(folder)
    assert result.exit_code == 0, result.output
    with open_store(str(folder)) as store:
        assert [info.name for info in store.list()] == ["x", "x.old", "z"]
        assert {name: store.get(name).scroll().items[0].id for name in ("x", "x.old", "z")} == {
            "x": "b",
            "x.old": "a",
            "z": "c",
        }
    if how != "missing":
        assert (folder / "lost+found" / "catalog-damaged0.sqlite").is_file()


def test_what_a_whole_catalog_says_goes_before_what_the_files_say(folder):
    with closing(sqlite3.connect(next(folder.glob("collections/*.sqlite")))) as connection, connection:
        connection.execute("DELETE FROM meta WHERE key = 'name'")
    assert set(rebuild_catalog(folder)) == {"x", "x.old", "z"}
    with open_store(str(folder)) as store:
        assert store.aliases() == {"y": "x"}
    assert "intact" in repair(folder).stdout


def test_a_collection_whose_name_is_known_nowhere_is_recovered_under_another(folder):
    files = sorted(folder.glob("collections/*.sqlite"))
    changes = ("DELETE FROM meta WHERE key = 'name'", "UPDATE meta SET value = 'y' WHERE key = 'name'")
    for file, change in zip(files, changes, strict=False):
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(change)
    with closing(sqlite3.connect(files[2])) as connection, connection:
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('name', 'y')")
    damage(folder, "missing")
    assert set(rebuild_catalog(folder)) == {f"recovered-{files[0].stem[:8]}", "y", "y.2"}


def test_the_catalog_of_an_open_or_empty_store_is_left_alone(folder, tmp_path):
    with open_store(str(folder)), pytest.raises(StoreLocked):
        rebuild_catalog(folder)
    with pytest.raises(InvalidRequest):
        rebuild_catalog(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
