"""A disk that is full or fails: writes raise, reads still work, nothing acknowledged is lost."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from store.crash import strace
from store.crash.content import DIM, item_of
from store.crash.script import operations, worlds
from store.crash.small import LONG, environment, open_small_store
from store.crash.world import read_collection, read_world
from waiting import until

from nnclr_hub.errors import DiskFull
from nnclr_hub.store import failpoints
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.settings import StoreSettings

LENGTH = 30
SEED = 2

# a limit on the size of files is a disk that is full for those that grow; it can be lifted again


def is_sentence(text: str) -> bool:
    return len(text) > 20 and text.rstrip().endswith(".")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 160 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user must not mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, left: int) -> Path:
    """Write a file that leaves so many bytes free."""
    file = folder / "filler"
    with file.open("ab") as handle:
        size = shutil.disk_usage(folder).free - left
        if size > 0:
            os.posix_fallocate(handle.fileno(), file.stat().st_size, size)
    return file


@pytest.mark.parametrize("left", [1 << 20, 50 << 20])
def test_a_nearly_full_disk_is_opened_searched_and_emptied(left, small_disk):
    folder = small_disk / "store"
    wanted = {f"i{n}": 1 for n in range(500)}
    with open_small_store(folder) as store:
        for name in "cd":
            store.create(name, CollectionSpec(DIM)).upsert([item_of(id, 1) for id in wanted])
    filler = fill(small_disk, left)
    for read_only in (True, False, True, False):
        with open_small_store(folder, read_only=read_only) as store:
            collection = store.get("c")
            assert read_collection(collection) == wanted
            assert collection.search(item_of("i7", 1).vector, 1)[0].id == "i7"
            assert store.list()[0].count == len(wanted)
            if read_only:
                continue
            assert collection.info().state.startswith("degraded")
            with pytest.raises(DiskFull):
                collection.upsert([item_of("new", 2)])
            gone = [f"i{len(wanted) - n}" for n in range(1, 101)]
            assert collection.delete(gone) == 100
            for id in gone:
                del wanted[id]
            assert read_collection(collection) == wanted
            other = store.get("d")
            with pytest.raises(DiskFull):
                other.update_metadata({"noise": "x"}, ids=["i7"])
            assert collection.search(item_of("i7", 1).vector, 1)[0].id == "i7"
            collection.compact()
    with open_small_store(folder) as store:
        store.drop("d")
        assert [info.name for info in store.list()] == ["c"]
        fill(small_disk, 0)  # and closing must not raise
    filler.unlink()
    with open_small_store(folder) as store:
        collection = store.get("c")
        assert collection.verify().ok
        until(lambda: collection.info().state == "ready")
        collection.upsert([item_of("new", 2)])
        assert read_collection(collection) == wanted | {"new": 2}


def test_a_collection_that_was_opened_on_a_full_disk_is_written_after_it_is_opened_again(small_disk):
    folder = small_disk / "store"
    with open_small_store(folder) as store:
        store.create("c", CollectionSpec(DIM)).upsert([item_of("a", 1)])
    filler = fill(small_disk, 0)
    with open_small_store(folder) as store:
        collection = store.get("c")
        assert collection.info().state.startswith("read-only")
        assert collection.search(item_of("a", 1).vector, 1)[0].id == "a"
        with pytest.raises(DiskFull):
            collection.delete(["a"])
        filler.unlink()
        with pytest.raises(DiskFull, match="open the store again"):
            collection.upsert([item_of("b", 2)])
    with open_small_store(folder) as store:
        collection = store.get("c")
        collection.upsert([item_of("b", 2)])
        assert collection.info().state == "ready"
        assert read_collection(collection) == {"a": 1, "b": 2}


def test_the_space_of_deleted_items_is_given_back_while_writes_continue(tmp_path):
    """In steps between which writes run, without a call of compact."""
    with open_small_store(tmp_path, settings=StoreSettings(idle_seconds=0.05)) as store:
        collection = store.create("c", CollectionSpec(DIM))
        collection.upsert([Item(f"i{n}", item_of("x", n).vector, {"text": "x" * 3000}) for n in range(3000)])
        full = collection.statistics().file_bytes
        (file,) = tmp_path.glob("collections/*.sqlite")
        steps: list[int] = []

        def write() -> None:
            steps.append(collection.upsert([item_of(f"during-{len(steps)}", 1)]))

        with failpoints.at("vacuum.step", write):
            collection.delete([f"i{n}" for n in range(2900)])
            until(lambda: len(steps) > 2 and file.stat().st_size <= full / 4)
        assert collection.verify().ok
        until(lambda: collection.count() == 100 + len(steps))  # the last write may not have returned


FAULTS = {
    "ENOSPC at every write from the nth": ("pwrite64", "error=ENOSPC:when={n}+"),
    "EIO at the nth write": ("pwrite64", "error=EIO:when={n}"),
    "EIO at the nth sync of a database": ("fdatasync", "error=EIO:when={n}"),
    "EIO at the nth sync of another file": ("fsync", "error=EIO:when={n}"),
}
SHARES = [n / 25 for n in range(1, 24)] if LONG else [0.6]


@pytest.fixture(scope="module")
def how_often(tmp_path_factory) -> dict[str, int]:
    """How many such calls the busiest thread makes when none fails."""
    folder = tmp_path_factory.mktemp("counted")
    command = [sys.executable, "-m", "store.crash.faulty", str(folder / "store"), str(SEED), str(LENGTH)]
    done = strace.traced_run(command, folder / "trace", env=environment())
    assert done.returncode == 0, done.stderr
    made = strace.calls(folder / "trace")
    return {
        name: max(Counter(call.thread for call in made if call.name == name).values()) for name, _ in FAULTS.values()
    }


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_disk_loses_nothing_that_was_acknowledged(fault, share, how_often, tmp_path):
    """strace makes the calls fail; the store reports it, and everything acknowledged exists when it is opened again."""
    name, how = FAULTS[fault]
    inject = f"inject={name}:{how.format(n=max(1, int(share * how_often[name])))}"
    traced = [*strace.command(tmp_path / "trace"), "-e", inject]
    command = [sys.executable, "-m", "store.crash.faulty", str(tmp_path / "store"), str(SEED), str(LENGTH)]
    done = subprocess.run([*traced, *command], capture_output=True, text=True, env=environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    assert "(INJECTED)" in (tmp_path / "trace").read_text(), "nothing failed, so nothing is shown"
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    acknowledged = max((line["done"] for line in lines if "done" in line), default=0)
    foreseen = worlds(operations(SEED, LENGTH))
    if "refused" in lines[-1]:
        said = lines[-1]
        assert said["refused"] in ("DiskFull", "StoreReadOnly", "StoreError"), said
        assert is_sentence(said["sentence"]), said
        assert said["read"] is not False, said
    else:  # it befell a snapshot or the like that nobody had asked for
        assert acknowledged == LENGTH, "it neither continued nor reported an error"
    with open_small_store(tmp_path / "store") as store:
        assert read_world(store) in foreseen[acknowledged : acknowledged + 2]


WRITES = """
import json, os, sys
from nnclr_hub.errors import StoreError
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec
from store.crash.content import DIM, item_of
store = open_store(sys.argv[1])
collection = store.create("c", CollectionSpec(DIM))
for n in range(10):
    try:
        collection.upsert([item_of(f"i{n}", 1)])
        answer = "taken"
    except StoreError as error:
        answer = type(error).__name__
    found = collection.search(item_of("i2", 1).vector, 1) if n >= 2 else []
    words = {"answer": answer, "state": collection.info().state, "found": [match.id for match in found]}
    os.write(1, (json.dumps(words) + "\\n").encode())
os._exit(0)
"""
FAILING = 5


def test_after_a_failed_sync_nothing_is_written_until_the_store_is_opened_again(tmp_path):
    """Nobody knows what is on the disk then, and a second fsync of the same file would say that all is well."""
    command = [sys.executable, "-c", WRITES]
    strace.traced_run([*command, str(tmp_path / "counted")], tmp_path / "trace", env=environment())
    made = strace.calls(tmp_path / "trace")
    answers = [call for call in made if call.name == "write" and call.arguments[0] == 1]
    syncs = [call for call in made if call.name in ("fsync", "fdatasync")]
    ((nth, call),) = [
        (sum(one.thread == call.thread for one in syncs[:i]) + 1, call)
        for i, call in enumerate(syncs)
        if answers[FAILING - 1].ended < call.begun and call.ended < answers[FAILING].begun
    ]
    inject = ["-e", f"inject={call.name}:error=EIO:when={nth}"]
    # the folder of the store is made durable by the main thread, the writes by another: each counts for itself
    failing = [*strace.command(tmp_path / "trace"), *inject, *command, str(tmp_path / "store")]
    done = subprocess.run(failing, capture_output=True, text=True, env=environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [words["answer"] for words in said] == ["taken"] * FAILING + ["StoreReadOnly"] * (10 - FAILING)
    assert all(words["found"] == ["i2"] for words in said[2:])
    assert said[FAILING - 1]["state"] == "ready"
    assert said[-1]["state"].startswith("read-only")
    with open_small_store(tmp_path / "store") as store:
        held = read_collection(store.get("c"))
        acknowledged = {f"i{n}": 1 for n in range(FAILING)}
        assert held in (acknowledged, acknowledged | {f"i{FAILING}": 1})
        store.get("c").upsert([item_of("later", 1)])
