"""Backups against a dict: what is restored is what was stored then, whatever happens at the same time."""

import json
import os
import random
import re
import resource
import signal
import sqlite3
import threading
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from commands import refused
from fsspec.core import url_to_fs
from store.backups import chunks_at, contents, restored
from store.crash.small import open_small_store
from store.exhaustive import DIM, vectors

from nnclr_hub.errors import (
    ChangesUnavailable,
    DiskFull,
    InvalidRequest,
    NNCLRHubError,
    StoreCorrupt,
    StoreError,
    StoreLocked,
)
from nnclr_hub.store import failpoints, open_store
from nnclr_hub.store.backup import back_up, list_backups, restore, verify_backups
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.records import Record


def filled(store, name="c", count=30, seed=0):
    collection = store.create(name, CollectionSpec(DIM))
    collection.upsert([Item(f"i{n}", v, {"seed": seed}) for n, v in enumerate(vectors(count, seed))])
    return collection


@pytest.fixture
def three_backups(destination, tmp_path):
    """Contents of a store at each of three backups, by id."""
    with open_small_store(tmp_path / "store") as store:
        collection, held = store.create("c", CollectionSpec(DIM)), {}
        for n in range(3):
            collection.upsert([Item(f"{i}", vector, {"n": n}) for i, vector in enumerate(vectors(5 + n, n))])
            held[back_up(store, destination).id] = contents(collection)
    return held


@contextmanager
def disk_of(size: int):
    """Let no file be larger."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


# ------------------------------------------------------------------------------ content


def test_each_backup_restores_what_was_stored_then(destination, tmp_path):
    rng = random.Random(0)
    held, times = {}, {}
    with open_small_store(tmp_path / "store") as store:
        collection = store.create("c", CollectionSpec(DIM, "l2"))
        store.create("other", CollectionSpec(2)).upsert([Item("one", np.ones(2))])
        store.alias("current", "c")
        for step in range(60):
            ids = [f"i{n}" for n in rng.sample(range(80), rng.choice((1, 2, 5)))]
            if rng.random() < 0.2:
                collection.delete(ids)
            elif rng.random() < 0.2:
                collection.update_metadata({"edited": step}, ids=ids)
            else:
                some = vectors(len(ids), rng.randrange(10**6))
                thumbnail = rng.choice((None, b"\xff\xd8\xffjpeg"))
                collection.upsert([Item(id, v, {"step": step}, thumbnail) for id, v in zip(ids, some, strict=True)])
            if rng.random() < 0.1:
                collection.compact()
                collection.snapshot()
            if step % 7 == 6:
                store.records.put(Record("probe", "p", {"step": step}))
                report = back_up(store, destination)
                held[report.id] = contents(collection)
                assert (report.collections, report.items) == (2, len(held[report.id]) + 1)
                times[report.id] = datetime.now(UTC)
        seq = collection.info().durable_seq
        log = collection.changes(seq).log
    assert [backup.id for backup in list_backups(destination)] == list(held)
    assert verify_backups(destination) == dict.fromkeys(held)
    for number, (id, wanted) in enumerate(held.items()):
        moment = (id, times[id], times[id].astimezone().replace(tzinfo=None).isoformat(), times[id].isoformat())
        found = restored(destination, tmp_path / str(number), at=moment[number % 4])
        assert (found["c"], len(found["other"])) == (wanted, 1)
    wanted = list(held.values())[-1]
    (tmp_path / "last").mkdir()
    assert restored(destination, tmp_path / "last", at=datetime.now(UTC) + timedelta(days=1))["c"] == wanted
    with open_store(str(tmp_path / "last")) as store:
        assert store.aliases() == {"current": "c"}
        assert [record.content for record in store.records.list("probe")] == [{"step": 55}]
        store.get("c").upsert([Item(f"new{n}", vectors(1)[0]) for n in range(50)])
        assert store.get("c").info().durable_seq > seq
        with pytest.raises(ChangesUnavailable):  # its numbers continue differently
            store.get("c").changes(seq, log=log)
        assert back_up(store, destination).written > 0  # it takes the place of the original


def test_a_backup_of_a_busy_store_tears_no_write(tmp_path, monkeypatch):
    """Two items are always written together."""
    monkeypatch.setattr("nnclr_hub.store.backup.CHUNK_PAGES", 1)  # a file is copied in many steps
    stop = threading.Event()
    with open_small_store(tmp_path / "store") as store:
        both = [filled(store, name, 50) for name in "ab"]

        def write(collection) -> None:
            version = 0
            while not stop.is_set():
                version += 1
                collection.upsert([Item(id, vectors(1)[0], {"version": version}) for id in ("i0", "i49")])

        threads = [threading.Thread(target=write, args=[collection]) for collection in both]
        for thread in threads:
            thread.start()
        try:
            with open_small_store(tmp_path / "store", read_only=True) as reader:  # as another process does
                for _ in range(5):
                    back_up(reader, tmp_path / "backups")
                    time.sleep(0.1)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    versions = []
    for id, problem in verify_backups(tmp_path / "backups").items():
        assert problem is None
        for held in restored(tmp_path / "backups", tmp_path / id, at=id).values():
            assert len(held) == 50
            assert held["i0"][1] == held["i49"][1]
            versions.append(held["i0"][1].get("version", 0))
    assert versions[-1] > versions[0]


def test_collections_and_aliases_that_change_during_a_backup_stay_consistent(tmp_path):
    with open_small_store(tmp_path / "store") as store:
        for name in "abd":
            filled(store, name)
        store.alias("live", "a")
        changes = [lambda: store.promote(filled(store, "new", 1).name, "live"), lambda: store.drop("d")]
        with failpoints.at("backup.chunk", lambda: changes.pop()() if changes else None):
            back_up(store, tmp_path / "backups")
    [backup] = list_backups(tmp_path / "backups")
    assert "d" not in backup.collections
    assert backup.collections[backup.aliases["live"]] in (1, 30)
    found = restored(tmp_path / "backups", tmp_path / "new")
    assert {name: len(items) for name, items in found.items()} == backup.collections
    assert backup.collections["a"] == backup.collections["b"] == 30


# ------------------------------------------------------------------------------ size


def test_only_the_newest_backups_and_their_chunks_are_kept(three_backups, destination, tmp_path):
    with open_small_store(tmp_path / "store") as store:
        wrong: Any
        for wrong in (0, -1, True, 1.5):
            with pytest.raises(InvalidRequest):
                back_up(store, destination, keep=wrong)
        store.get("c").delete(["0"])
        report = back_up(store, destination, keep=2)
        third = list(three_backups)[2]
        assert verify_backups(destination) == {third: None, report.id: None}
        assert (report.removed, report.freed > 0) == (2, True)
        used = {sha256 for backup in list_backups(destination) for sha256, _ in backup.chunks}
        assert chunks_at(destination).keys() == used
        again = back_up(store, destination, keep=2)
        assert (again.written, again.removed) == (0, 1)
    assert "0" not in restored(destination, tmp_path / "new")["c"]


# ------------------------------------------------------------------------------ crashes, damage, full disks


def killed_backup(folder, to, step: str) -> int:
    """Back up in a forked process that is killed when it reaches the step; return the signal that ended it."""
    name, _, times = step.partition(":")
    child = os.fork()
    if child:
        return os.WTERMSIG(os.waitpid(child, 0)[1])
    before = iter(range(int(times or 1) - 1))
    try:
        kill = lambda: next(before, None) is None and os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        with failpoints.at(f"backup.{name}", kill), open_small_store(folder) as store:
            back_up(store, to, keep=2)
    finally:
        os._exit(1)


@pytest.mark.parametrize("step", ["chunk", "chunk:2", "chunks", "done", "removed", "removed:2"])
def test_a_backup_that_is_killed_leaves_the_others_usable(step, tmp_path):
    to = tmp_path / "backups"
    with open_small_store(tmp_path / "store") as store:
        collection = filled(store)
        back_up(store, to)
        collection.delete(["i1"])
        back_up(store, to)
        before = contents(collection)
        collection.upsert([Item(f"j{n}", v) for n, v in enumerate(vectors(30, 1))])
        collection.delete(["i3"])
        after = contents(collection)
    assert killed_backup(tmp_path / "store", to, step) == signal.SIGKILL
    assert set(verify_backups(to).values()) == {None}
    assert restored(to, tmp_path / "r") == {"c": before if step.startswith("chunk") else after}
    with open_small_store(tmp_path / "store") as store:
        back_up(store, to, keep=2)
    assert list(verify_backups(to).values()) == [None, None]
    assert restored(to, tmp_path / "s") == {"c": after}
    assert chunks_at(to).keys() == {sha256 for backup in list_backups(to) for sha256, _ in backup.chunks}
    assert {path.name for path in to.iterdir()} == {"backups", "chunks", "lock"}


def test_damage_of_a_backup_is_reported_and_restores_nothing(tmp_path):
    to, rng = tmp_path / "backups", random.Random(0)
    with open_store(str(tmp_path / "store")) as store:
        collection = filled(store)
        store.records.put(Record("probe", "p", {}))
        back_up(store, to)
        saved = contents(collection)
    files = [path for path in to.rglob("*") if path.is_file() and path.name != "lock"]
    assert len(files) == 7  # hashes and pages of catalog, records and collection; description
    for number, file in enumerate(files):
        data = file.read_bytes()
        flipped = bytearray(data)
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        for changed in (bytes(flipped), data[:-1], None):
            file.unlink(missing_ok=True)
            if changed is not None:
                file.write_bytes(changed)
            with pytest.raises((StoreCorrupt, InvalidRequest)):
                restore(to, tmp_path / f"r{number}")
            assert not (tmp_path / f"r{number}").exists()
            if file.suffix != ".json" or changed is not None:
                assert None not in verify_backups(to).values(), file
            file.unlink(missing_ok=True)  # as the message says
            with open_store(str(tmp_path / "store")) as store:  # the next one does not need it
                again = back_up(store, to)
            assert verify_backups(to)[again.id] is None
            assert restored(to, tmp_path / f"s{number}{changed is None}{len(changed or b'')}") == {"c": saved}
            (to / "backups" / f"{again.id}.json").unlink()
            file.write_bytes(data)
    assert set(verify_backups(to).values()) == {None}


@pytest.mark.parametrize("keep", [None, 2])
def test_a_damaged_description_blocks_only_its_own_backup(three_backups, tmp_path, destination, keep, caplog):
    first, second, third = three_backups
    files, root = url_to_fs(destination)
    name, before = f"{root}/backups/{third}.json", chunks_at(destination)
    files.pipe_file(name, files.cat_file(name)[:-9])
    for when in (None, third):
        with pytest.raises(StoreCorrupt):
            restore(destination, tmp_path / "new", at=when)
    assert restored(destination, tmp_path / first, at=first)["c"] == three_backups[first]
    assert f"{destination}/backups/{third}.json" in str(verify_backups(destination)[third])
    with open_small_store(tmp_path / "store") as store:
        report = back_up(store, destination, keep=keep)  # the damaged one does not count, and may use any chunk
        assert report.freed == 0
        assert before.keys() <= chunks_at(destination).keys()
        [lost] = filter(None, (problems := verify_backups(destination)).values())
        assert problems == {**({} if keep else {first: None}), second: None, third: lost, report.id: None}
        assert restored(destination, tmp_path / "new", at=report.id)["c"] == three_backups[third]
        caplog.clear()
        again = back_up(store, destination, keep=1)  # nor as soon as it is older than all that are kept
        assert again.freed > 0
        assert again.removed == (4 if keep is None else 3), "with the damaged one"
        assert sum(third in one.getMessage() and "removed" in one.getMessage() for one in caplog.records) == 1
    used = {sha256 for backup in list_backups(destination) for sha256, _ in backup.chunks}
    assert chunks_at(destination).keys() == used
    assert len(files.ls(f"{root}/backups")) == 1


DEEP = b"[" * 10**5 + b"]" * 10**5
DAMAGED = (b"", b"{", b"[]", b"3", b"null", b"{}", b'{"sha256": []}', b"\xff{}", b'{"sha256": ' + DEEP + b"}", DEEP)


def test_a_damaged_description_is_reported_without_words_of_python(tmp_path, caplog):
    with open_store(str(tmp_path / "store")) as store:
        filled(store)
        id = back_up(store, tmp_path / "to").id
    description = tmp_path / "to" / "backups" / f"{id}.json"
    whole = json.loads(description.read_bytes())
    for content in (*DAMAGED, *(json.dumps({k: v for k, v in whole.items() if k != key}).encode() for key in whole)):
        description.write_bytes(content)
        with pytest.raises(StoreCorrupt) as refused:
            restore(tmp_path / "to", tmp_path / "r")
        (problem,) = verify_backups(tmp_path / "to").values()
        assert list_backups(tmp_path / "to") == []
        for words in (str(refused.value), problem, caplog.text):
            assert str(description) in words
            assert not re.search(r"object|attribute|argument|recursion|codec|Expecting|Error|NoneType", words), words
        caplog.clear()


@pytest.mark.parametrize("fault", ["damaged", "an item", "missing", "later format"])
def test_a_collection_that_cannot_be_read_does_not_block_the_others(fault, tmp_path):
    to = tmp_path / "backups"
    with open_small_store(tmp_path / "store") as store:
        for name in "abc":
            filled(store, name)
        store.alias("broken", "b")
        store.records.put(Record("probe", "p", {}))
        wanted = {name: contents(store.get(name)) for name in "ac"}
        back_up(store, to)
        file = store.files()["b"]
    if fault == "damaged":
        data = bytearray(file.read_bytes())
        data[16384 : 2 * 16384] = b"\xa5" * 16384
        file.write_bytes(data)
    elif fault == "an item":  # which SQLite does not notice
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("UPDATE vectors SET vector = zeroblob(length(vector)) WHERE rid = 7")
    elif fault == "missing":
        file.unlink()
    else:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA user_version = 99")
    assert "not b;" in refused("store", "backup", to, "--keep", 1, "--store", tmp_path / "store", code=1)
    first, last = list_backups(to)  # the old one has what is damaged now, so it is kept
    assert (len(first.collections), last.collections) == (3, {"a": 30, "c": 30})
    assert (first.missing, last.missing) == ((), ("b",))
    assert restored(to, tmp_path / "new") == wanted
    with open_store(str(tmp_path / "new")) as store:
        assert store.aliases() == {}
        assert [record.name for record in store.records.list("probe")] == ["p"]


def test_chunks_of_a_newer_version_stay_next_to_a_damaged_description(tmp_path, monkeypatch):
    to = tmp_path / "backups"
    with open_small_store(tmp_path / "store") as store:
        filled(store)
        (to / "backups" / f"{back_up(store, to).id}.json").write_text("{}")
        store.get("c").upsert([Item(f"n{n}", v) for n, v in enumerate(vectors(300, 1))])
        with monkeypatch.context() as patch:
            patch.setattr("nnclr_hub.store.backup.FORMAT", "nnclr_hub backup, version 99")
            back_up(store, to)
        store.get("c").delete([f"n{n}" for n in range(300)])
        chunks = {path.name for path in (to / "chunks").iterdir()}
        back_up(store, to, keep=1)
    assert chunks <= {path.name for path in (to / "chunks").iterdir()}


def test_a_full_disk_keeps_older_backups_and_leaves_no_part_of_a_restore(tmp_path):
    to = tmp_path / "backups"
    with open_small_store(tmp_path / "store") as store:
        filled(store, count=300)
        first = back_up(store, to)
        store.get("c").upsert([Item(f"n{n}", v) for n, v in enumerate(vectors(300, 1))])
        with disk_of(100_000), pytest.raises(DiskFull):
            back_up(store, to)
    with disk_of(100_000), pytest.raises(DiskFull):
        restore(to, tmp_path / "new")
    assert {path.name for path in tmp_path.iterdir()} == {"store", "backups"}
    assert verify_backups(to) == {first.id: None}


# ------------------------------------------------------------------------------ destinations and requests


def test_a_destination_that_fails_is_not_damage_of_a_collection(tmp_path):
    chunks = tmp_path / "backups" / "chunks"

    def fail() -> None:
        if chunks.is_dir() and len(list(chunks.iterdir())) == 2:  # those of the catalog
            chunks.rename(tmp_path / "gone")
            chunks.write_text("")

    with open_small_store(tmp_path / "store") as store:
        filled(store)
        with failpoints.at("backup.chunk", fail), pytest.raises(StoreError) as refusal:
            back_up(store, tmp_path / "backups")
    assert refusal.value.code == "store_error"
    assert not (tmp_path / "backups" / "backups").exists()


def test_two_backups_to_one_folder_do_not_run_at_once(tmp_path):
    with open_small_store(tmp_path / "store") as store:
        filled(store)
        attempts = []

        def concurrently() -> None:
            with pytest.raises(StoreLocked):
                back_up(store, tmp_path / "backups", keep=1)
            attempts.append(True)

        with failpoints.at("backup.chunks", concurrently):
            first = back_up(store, tmp_path / "backups")
        assert attempts
        assert list(verify_backups(tmp_path / "backups")) == [first.id]
        with failpoints.at("backup.chunks", lambda: 1 / 0), pytest.raises(ZeroDivisionError):
            back_up(store, tmp_path / "backups")
        back_up(store, tmp_path / "backups")  # the lock was released


def test_a_destination_that_is_not_suitable_is_refused_and_left_alone(tmp_path):
    with open_small_store(tmp_path / "here" / "store") as store, open_small_store(tmp_path / "second") as second:
        filled(store)
        (tmp_path / "link").symlink_to(store.folder / "inner")
        (tmp_path / "file").write_text("")
        before = sorted(tmp_path.rglob("*"))
        for wrong in (store.folder, store.folder / "backups", tmp_path / "link", tmp_path / "file"):
            with pytest.raises((InvalidRequest, StoreError)):
                back_up(store, wrong)
        assert sorted(tmp_path.rglob("*")) == before
        shared = tmp_path / "disk"  # with other files, which no backup touches
        (shared / "chunks").mkdir(parents=True)
        (shared / "chunks" / "cat.jpg").write_bytes(b"cat")
        for n in range(2):
            store.get("c").upsert([Item("i", vectors(1, n)[0])])
            back_up(store, shared, keep=1)
        assert (shared / "chunks" / "cat.jpg").read_bytes() == b"cat"
        assert back_up(store, shared).written == 0
        with pytest.raises(InvalidRequest):
            back_up(second, shared)


def test_impossible_requests_are_refused(three_backups, destination, tmp_path):
    for at in ("2020-01-01", datetime(2020, 1, 1).astimezone(), "20200101T000000.000000Z", "noon", "12"):
        with pytest.raises(InvalidRequest):
            restore(destination, tmp_path / "r", at=at)
    with pytest.raises(InvalidRequest):
        restore(destination, tmp_path / "store")
    for work in (verify_backups, lambda source: restore(source, tmp_path / "r")):
        for source in (tmp_path / "nothing", "nosuch://bucket/x"):
            with pytest.raises(InvalidRequest if source == tmp_path / "nothing" else NNCLRHubError):
                work(source)
    assert not (tmp_path / "r").exists()


def test_later_backups_copy_only_what_changed(tmp_path):
    some = np.random.default_rng(0).normal(size=(6000, 64)).astype(np.float32)
    with open_store(str(tmp_path / "store")) as store:
        collection = store.create("c", CollectionSpec(64, index="flat"))
        collection.upsert([Item(f"i{n}", v) for n, v in enumerate(some)])
        first = back_up(store, tmp_path / "backups")
        assert first.size == first.written > some.nbytes
        assert back_up(store, tmp_path / "backups").written == 0
        collection.upsert([Item(f"new{n}", v) for n, v in enumerate(some[:100])])
        assert 0 < back_up(store, tmp_path / "backups").written < 0.3 * first.size
        collection.delete([f"i{n}" for n in range(6000)])
        collection.compact()
        back_up(store, tmp_path / "backups", keep=1)
    assert sum(chunks_at(tmp_path / "backups").values()) < 0.5 * first.size
    assert set(verify_backups(tmp_path / "backups").values()) == {None}
