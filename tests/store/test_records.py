"""Records are durable and atomic, in every kind of store."""

import os
import shutil
import sqlite3
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from nnclr_hub.cli.app import app
from nnclr_hub.errors import DiskFull, StoreCorrupt, StoreLocked, StoreReadOnly, StoreTooNew
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.store.disk import LOW_WATER
from nnclr_hub.store.milvus.store import records_of
from nnclr_hub.store.records import RECORDS, Record, Records, repair_records


@pytest.fixture(params=["folder", "milvus lite"])
def uri(request, tmp_path):
    if request.param == "milvus lite":
        pytest.importorskip("milvus_lite")
        return str(tmp_path / "x.milvus.db")
    return str(tmp_path / "store")


def test_records_are_kept_when_a_store_is_reopened(uri):
    with open_store(uri) as store:
        store.records.put(Record("probe", "cats", {"classes": ["cat", 3], "name": "Ä"}, b"\0\xff"))
        store.records.put(Record("job", "cats", {"state": "done"}))
    with open_store(uri) as store:
        assert store.records.get("probe", "cats") == Record(
            "probe", "cats", {"classes": ["cat", 3], "name": "Ä"}, b"\0\xff"
        )
        assert store.records.get("job", "cats") == Record("job", "cats", {"state": "done"})
        assert store.records.get("job", "dogs") is None
        store.records.put(Record("job", "cats", {"state": "new"}))
        assert store.records.get("job", "cats") == Record("job", "cats", {"state": "new"})
        assert store.records.delete("job", "cats", "dogs") == 1
        assert [one.name for one in store.records.list("probe")] == ["cats"]
        assert store.records.list("job") == []


@pytest.fixture
def records(tmp_path):
    with closing(Records(tmp_path / RECORDS, read_only=False)) as opened:
        yield opened


def test_a_kind_is_listed_by_name_from_either_end_and_from_any_place(records):
    records.put(*(Record("job", name, {}, b"much") for name in "cabd"), Record("probe", "b", {}))
    assert [one.name for one in records.list("job")] == list("abcd")
    assert [one.name for one in records.list("job", descending=True, limit=2)] == list("dc")
    assert [one.name for one in records.list("job", descending=True, after="c")] == list("ba")
    assert [one.name for one in records.list("job", after="b", limit=1)] == ["c"]
    assert records.list("job")[0].data is None


def test_an_exception_undoes_all_that_was_changed_together(records):
    records.put(Record("job", "a", {"n": 1}))

    def change_and_fail() -> None:
        with records.transaction():
            records.put(Record("job", "a", {"n": 2}), Record("job", "b", {}))
            records.delete("job", "a")
            raise KeyError

    with pytest.raises(KeyError):
        change_and_fail()
    unstorable: Any = "\udcff"
    with pytest.raises(UnicodeEncodeError):
        records.put(Record("job", "a", {"n": 2}), Record("job", "b", {}, unstorable))
    assert [(one.name, one.content) for one in records.list("job")] == [("a", {"n": 1})]
    with records.transaction():
        assert records.get("job", "a") is not None
        records.put(Record("job", "b", {}))
    assert len(records.list("job")) == 2


def test_readers_see_what_a_writer_puts_and_change_nothing(tmp_path):
    folder = tmp_path / "store"
    with open_store(str(folder)) as store, open_store(str(folder), read_only=True) as reader:
        assert reader.records.list("job") == []
        assert reader.records.get("job", "a") is None
        assert not (folder / RECORDS).exists()
        store.records.put(Record("job", "a", {}))
        assert [one.name for one in reader.records.list("job")] == ["a"]
        with pytest.raises(StoreReadOnly):
            reader.records.put(Record("job", "b", {}))
        with pytest.raises(StoreReadOnly):
            reader.records.delete("job", "a")
    with pytest.raises(StoreReadOnly):
        store.records.list("job")


def test_a_full_disk_refuses_and_leaves_what_is_there(records, monkeypatch):
    records.put(Record("job", "a", {}))
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=LOW_WATER + 1000))
    with pytest.raises(DiskFull):
        records.put(Record("job", "b", {}, b"x" * 2000))
    assert [one.name for one in records.list("job")] == ["a"]
    records.delete("job", "a")


def test_a_later_format_is_refused(tmp_path):
    with closing(sqlite3.connect(tmp_path / RECORDS)) as file:
        file.execute("PRAGMA user_version = 2")
    with closing(Records(tmp_path / RECORDS, read_only=False)) as records, pytest.raises(StoreTooNew):
        records.list("job")


def damaged(folder, count=500) -> None:
    """A store with a collection, and records of which some pages are garbage."""
    with open_store(str(folder)) as store:
        store.create("photos", CollectionSpec(2))
        store.records.put(*(Record("job", f"{n:04}", {"n": n}, os.urandom(3000)) for n in range(count)))
    file = folder / RECORDS
    content = bytearray(file.read_bytes())
    middle = len(content) // 2 // 16384 * 16384
    content[middle : middle + 3 * 16384] = b"\xa5" * (3 * 16384)
    file.write_bytes(content)


def test_damaged_records_leave_collections_usable_and_are_repaired(tmp_path):
    folder = tmp_path / "store"
    damaged(folder)
    with open_store(str(folder)) as store:
        with pytest.raises(StoreCorrupt):
            store.records.list("job")
        assert store.get("photos").count() == 0
    done = CliRunner().invoke(app, ["store", "repair", "--store", str(folder)])
    assert done.exit_code == 0
    assert "records saved: " in done.output
    with open_store(str(folder)) as store:
        saved = store.records.list("job")
        assert 300 < len(saved) < 500
        assert all(one.content == {"n": int(one.name)} for one in saved)
    assert (folder / "lost+found" / "records-damaged0.sqlite").is_file()
    assert repair_records(folder / RECORDS) is None
    assert repair_records(tmp_path / "none.sqlite") is None


def test_one_process_has_the_records_of_a_server(tmp_path):
    with (
        closing(Records(tmp_path / "state" / RECORDS, read_only=False, locked=True)) as one,
        closing(Records(tmp_path / "state" / RECORDS, read_only=False, locked=True)) as other,
    ):
        one.put(Record("job", "a", {}))
        with pytest.raises(StoreLocked):
            other.list("job")
        one.close()
        assert [record.name for record in other.list("job")] == ["a"]


def test_records_of_a_server_lie_in_a_folder_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("NNCLR_STATE", str(tmp_path))
    for name in ("milvus://host:19530", "milvus://host:19530/photos"):
        connection: Any = SimpleNamespace(is_file=False, name=name)
        with closing(records_of("milvus://user:secret@host:19530", connection, read_only=False)) as records:
            assert records.list("job") == []
            records.put(Record("job", name, {}))
    assert {path.parent.name for path in tmp_path.rglob(RECORDS)} == {"host-19530", "host-19530-photos"}
