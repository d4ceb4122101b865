"""What backups leave at their destination: shared, merged, damaged and removed pieces, and the lock."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from store.backups import BACKUP, at, contents, restored
from store.crash.small import environment, open_small_store
from store.exhaustive import DIM, vectors

from nnclr_hub.errors import InvalidRequest, NNCLRHubError, StoreError, StoreLocked
from nnclr_hub.store import failpoints, open_store
from nnclr_hub.store.backup import back_up, creation, restore, verify_backups
from nnclr_hub.store.backup.destination import Destination
from nnclr_hub.store.base import CollectionSpec, Item

VECTORS = np.random.default_rng(0).normal(size=(2000, 64)).astype(np.float32)


def damage(file) -> None:
    """Flip a bit; the size stays."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("found_by", ["verify_backups", "verify", "loss"])
def test_the_next_backup_writes_a_damaged_piece_again(found_by, tmp_path):
    to = tmp_path / "backups"
    with open_small_store(tmp_path / "store") as store:
        collection = store.create("c", CollectionSpec(DIM))
        collection.upsert([Item(f"i{n}", v) for n, v in enumerate(vectors(50))])
        first = back_up(store, to)
        collection.delete(["i0"])
        back_up(store, to)
        rows = max((to / "pieces").rglob("*/*"), key=lambda file: file.stat().st_size)
        damage(rows)
        if found_by == "verify_backups":
            assert None not in verify_backups(to).values()
        elif found_by == "loss":
            rows.unlink()
        last = back_up(store, to, verify=found_by == "verify")
        after = contents(collection)
    problems = verify_backups(to)
    assert problems[last.id] is None
    assert problems[first.id] is not None  # a row of it does not exist any more
    assert restored(to, tmp_path / "new") == {"c": after}


def test_a_destination_with_other_files_is_refused_and_left_alone(tmp_path):
    with open_small_store(tmp_path / "here" / "store") as store:
        store.create("c", CollectionSpec(DIM)).upsert([Item("i", vectors(1)[0])])
        images = tmp_path / "images"
        (images / "pieces").mkdir(parents=True)
        (images / "cat.jpg").write_bytes(b"cat")
        (tmp_path / "link").symlink_to(store.folder / "inner")
        (tmp_path / "file").write_text("")
        before = sorted(tmp_path.rglob("*"))
        for wrong in (store.folder, store.folder / "backups", store.folder.parent, images, tmp_path / "link"):
            with pytest.raises(InvalidRequest):
                back_up(store, wrong)
        with pytest.raises(NNCLRHubError):
            back_up(store, tmp_path / "file")
        assert sorted(tmp_path.rglob("*")) == before
        mounted = tmp_path / "disk"
        (mounted / "lost+found").mkdir(parents=True)
        back_up(store, mounted)
        (mounted / "README").write_text("backups of the laptop")
        assert back_up(store, mounted).written == 0


@pytest.fixture
def ten_backups(destination, tmp_path):
    """An open store with ten backups at the destination, and their contents by id."""
    with open_small_store(tmp_path / "store") as store:
        collection, held = store.create("c", CollectionSpec(DIM)), {}
        for n in range(10):
            collection.upsert([Item(f"{i}", vector, {"n": n}) for i, vector in enumerate(vectors(9 + n, n))])
            held[back_up(store, destination).id] = contents(collection)
        yield store, held


def test_only_the_newest_backups_and_their_pieces_are_kept(ten_backups, destination, tmp_path):
    store, held = ten_backups
    wrong: Any
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(InvalidRequest):
            back_up(store, destination, keep=wrong)
    before = sizes(destination)
    report = back_up(store, destination, keep=4)
    kept = verify_backups(destination)
    assert kept == dict.fromkeys([*list(held)[-3:], report.id])
    assert report.removed == 7
    assert report.freed > 0
    used = {hash for id in kept for hash in Destination(destination).read(id).pieces}
    assert sizes(destination).keys() == used < before.keys()
    for number, id in enumerate(list(held)[-3:]):
        assert restored(destination, tmp_path / str(number), at=at(id)) == {"c": held[id]}
    again = back_up(store, destination, keep=4)
    assert (again.written, again.removed) == (0, 1)


def sizes(destination) -> dict[str, int]:
    from fsspec.core import url_to_fs

    files, root = url_to_fs(str(destination))
    found = files.find(f"{root}/pieces", detail=True)
    return {name.rsplit("/", 1)[-1]: info["size"] for name, info in found.items()}


@pytest.mark.parametrize("step", ["backup.removed:2", "backup.freed", "backup.freed:5"])
def test_a_removal_that_is_killed_leaves_every_listed_backup_usable(step, tmp_path):
    to = tmp_path / "backups"
    with open_small_store(tmp_path / "store") as store:
        collection = store.create("c", CollectionSpec(DIM))
        for n in range(6):
            collection.upsert([Item(f"{i}", vector, {"n": n}) for i, vector in enumerate(vectors(9 + n, n))])
            back_up(store, to)
    program = BACKUP.replace("sys.argv[2])", "sys.argv[2], keep=2)")
    command = [sys.executable, "-c", program, str(tmp_path / "store"), str(to)]
    assert subprocess.run(command, env=environment(NNCLR_FAILPOINT=step), timeout=60).returncode == -9
    assert set(verify_backups(to).values()) == {None}
    with open_small_store(tmp_path / "store") as store:
        back_up(store, to, keep=2)
    assert list(verify_backups(to).values()) == [None, None]
    used = {hash for id in Destination(to).ids() for hash in Destination(to).read(id).pieces}
    assert sizes(to).keys() == used


def test_pieces_stay_while_a_description_is_damaged(ten_backups, destination):
    store, held = ten_backups
    from fsspec.core import url_to_fs

    files, root = url_to_fs(destination)
    damaged = f"{root}/backups/{list(held)[-2]}.json"
    files.pipe_file(damaged, files.cat_file(damaged)[:-9])
    before = sizes(destination)
    report = back_up(store, destination, keep=3)  # it does not count
    assert report.freed == 0
    assert before.keys() <= sizes(destination).keys()
    ids = Destination(destination).ids()
    assert ids == [*list(held)[-3:], report.id]
    assert [problem is None for problem in verify_backups(destination).values()] == [True, False, True, True]


def test_two_backups_to_one_destination_do_not_run_at_once(destination, tmp_path):
    with open_small_store(tmp_path / "store") as store:
        store.create("c", CollectionSpec(DIM)).upsert([Item("i", vectors(1)[0])])
        refused = []

        def concurrently() -> None:
            if not refused:
                with pytest.raises(StoreLocked):
                    back_up(store, destination, keep=1)
                refused.append(True)

        with failpoints.at("backup.pieces", concurrently):
            first = back_up(store, destination)
        assert refused
        assert Destination(destination).ids() == [first.id]
        with failpoints.at("backup.pieces", lambda: 1 / 0), pytest.raises(ZeroDivisionError):
            back_up(store, destination)
        back_up(store, destination)  # the lock was released


def test_an_error_of_the_driver_is_one_sentence(tmp_path, monkeypatch):
    class NoCredentialsError(Exception):
        """As botocore raises it."""

    def refuse(*_, **__):
        raise NoCredentialsError("Unable to locate credentials")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem._open", refuse)
    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.ls", refuse)
    with open_small_store(tmp_path / "store") as store, pytest.raises(StoreError, match="credentials"):
        back_up(store, f"memory://{tmp_path.name}")


def test_descriptions_and_pieces_stay_few_over_many_backups(tmp_path):
    to = f"memory://{tmp_path.name}"
    with open_small_store(tmp_path / "store") as store:
        collection = store.create("c", CollectionSpec(DIM))
        collection.upsert([Item("first", vectors(1)[0])])
        for n in range(40):
            back_up(store, to)
            collection.upsert([Item(f"i{n}", vectors(1, n)[0])])
        last = Destination(to).read(back_up(store, to).id).collections[0]
        middle = Destination(to).ids()[20]
        back_up(store, to, keep=21)
    assert 0 < len(last.rows) <= 8  # not 41
    assert 0 < len(last.log) <= 8
    assert sum(part.count for part in last.rows) == 41
    assert (last.log[0].after, last.log[-1].to) == (1, 41)
    for number, seq in enumerate((25, 33, 41)):
        assert len(restored(to, tmp_path / str(number), at=seq)["c"]) == seq
    with pytest.raises(InvalidRequest):
        restore(to, tmp_path / "old", at=3)
    assert Destination(to).ids()[0] > middle


def test_pieces_are_cut_by_the_size_of_their_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(creation, "PIECE_BYTES", 200_000)
    monkeypatch.setattr(creation, "LOG_CHANGES", 30)
    to = f"memory://{tmp_path.name}"
    with open_store(str(tmp_path / "store")) as store:
        collection = store.create("c", CollectionSpec(DIM))
        some = [Item(f"i{n}", v, {"n": "x" * 20_000}, b"j" * 10_000) for n, v in enumerate(vectors(70))]
        collection.upsert(some[:1])
        back_up(store, to)
        collection.upsert(some[1:])
        backup = Destination(to).read(back_up(store, to).id)
        held = contents(collection)
    assert max(piece.size for piece in backup.pieces.values()) < 350_000
    [one] = backup.collections
    assert [part.to - part.after for part in one.log] == [30, 30, 9]
    assert restored(to, tmp_path / "new") == {"c": held}


def test_the_log_of_a_store_does_not_wait_for_a_slow_destination(tmp_path, monkeypatch):
    """While pieces are copied ahead, no transaction is open, so that SQLite can merge its log."""
    monkeypatch.setattr(creation, "PIECE_BYTES", 20_000)
    with open_store(str(tmp_path / "store")) as store:
        collection = store.create("c", CollectionSpec(64))
        collection.upsert([Item(f"i{n}", v) for n, v in enumerate(VECTORS[:400])])
        [path] = (tmp_path / "store" / "collections").glob("*.sqlite")
        merged = []

        def write() -> None:
            collection.upsert([Item(f"new{len(merged)}", VECTORS[len(merged)])])
            with closing(sqlite3.connect(path, timeout=0)) as other:  # 1: a reader keeps the log
                merged.append(other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)

        with failpoints.at("backup.piece", write):
            report = back_up(store, tmp_path / "backups")
        held = contents(collection)
    assert sum(merged) > 0.7 * len(merged) > 4
    assert len(held) - 9 < report.items <= len(held)
    assert verify_backups(tmp_path / "backups") == {report.id: None}


def test_a_truncated_piece_is_written_again(destination, tmp_path):
    from fsspec.core import url_to_fs

    with open_small_store(tmp_path / "store") as store:
        store.create("c", CollectionSpec(DIM)).upsert([Item(f"{i}", vector) for i, vector in enumerate(vectors(9))])
        back_up(store, destination)
        files, root = url_to_fs(destination)
        for piece in files.find(f"{root}/pieces"):
            files.pipe_file(piece, files.cat_file(piece)[:10])
        files.rm(f"{root}/backups", recursive=True)
        report = back_up(store, destination)
    assert report.written == report.size
    assert set(verify_backups(destination).values()) == {None}
    assert not [name for name in files.find(root) if name.endswith(".part")]
