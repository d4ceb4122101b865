"""What strace shows: everything is on the disk before the step that relies on it."""

import sys
from pathlib import Path

import pytest
from store.crash.small import environment
from store.crash.strace import Call, calls, traced_run

# a line on stdout says what was done
CHILD = """
import os, sys
from nnclr_hub import EmbeddedStore
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.store.settings import StoreSettings
from store.crash.content import DIM, item_of
say = lambda word: os.write(1, word.encode() + b"\\n")
with EmbeddedStore(sys.argv[1], settings=StoreSettings(flat_below=2)) as store:
    collection = store.create("c", CollectionSpec(DIM, index="hnsw"))
    say("created")
    for n in range(3):
        collection.upsert([item_of(f"i{n}", 1)])
        say("upserted")
    collection.delete(["i0"])
    say("deleted")
    for n in range(4):
        collection.upsert([item_of(f"j{n}", 1)])
        say("upserted")
        collection.compact()
        say("compacted")
        collection.snapshot()
        say("snapshot")
    collection.compact()
    say("compacted")
    store.drop("c")
    say("dropped")
"""
SYNCS = ("fsync", "fdatasync")
WRITES = ("write", "pwrite64")


class Event:
    """A call with the path it went to; a rename has the target's too."""

    def __init__(self, call: Call, path: str, target: str = "") -> None:
        self.name, self.begun, self.ended = call.name, call.begun, call.ended
        self.path, self.target = path, target
        self.data = call.arguments[1] if call.name in WRITES else b""


@pytest.fixture(scope="module")
def events(tmp_path_factory) -> list[Event]:
    """The calls of the child on the files of its store, and on stdout, whose path is "stdout"."""
    folder = tmp_path_factory.mktemp("sync")
    done = traced_run([sys.executable, "-c", CHILD, str(folder / "store")], folder / "trace", env=environment())
    assert done.returncode == 0, done.stderr
    return list(_with_paths(calls(folder / "trace"), folder / "store"))


def _with_paths(recorded: list[Call], root: Path):
    names: dict[object, str] = {1: "stdout"}
    for call in recorded:
        given = call.arguments
        if call.name == "openat" and isinstance(given[1], bytes):
            names[call.result] = given[1].decode(errors="replace")
        elif call.name == "dup" and given[0] in names:
            names[call.result] = names[given[0]]
        elif call.name in (*WRITES, *SYNCS) and names.get(given[0], "").startswith((str(root), "stdout")):
            yield Event(call, names[given[0]])
        elif call.name in ("rename", "unlink", "unlinkat") and any(isinstance(one, bytes) for one in given):
            paths = [one.decode() for one in given if isinstance(one, bytes)]
            if any(path.startswith(str(root)) for path in paths):
                yield Event(call, *paths)


def said(events: list[Event], word: str) -> list[tuple[int, int]]:
    """For each acknowledgement of that kind: the lines of the trace where the one before ended and it began."""
    lines = [event for event in events if event.path == "stdout"]
    before = [-1, *(event.ended for event in lines)]
    return [(start, one.begun) for start, one in zip(before, lines, strict=False) if one.data == f"{word}\n".encode()]


def between(events: list[Event], start: int, end: int) -> list[Event]:
    return [event for event in events if start < event.begun and event.ended < end]


@pytest.mark.parametrize(("word", "times"), [("upserted", 7), ("deleted", 1), ("created", 1), ("dropped", 1)])
def test_a_log_is_synced_after_its_last_write_and_before_the_acknowledgement(events, word, times):
    moments = said(events, word)
    assert len(moments) == times
    for start, end in moments:
        here = between(events, start, end)
        logs = {event.path for event in here if event.name in WRITES and event.path.endswith("-wal")}
        assert logs, f"{word} was said and nothing written"
        for log in logs:
            last = max(event.ended for event in here if event.name in WRITES and event.path == log)
            # a collection's file that is closed needs its log no more
            gone = any(event.name.startswith("unlink") and event.path == log for event in here)
            synced = any(event.begun > last for event in here if event.name in SYNCS and event.path == log)
            assert synced or gone, f"{word} was said before {log} was synced"


def test_a_snapshot_is_synced_before_its_rename_and_its_folder_before_the_row_that_names_it(events):
    moments = said(events, "snapshot")
    assert len(moments) == 4
    for start, end in moments:
        here = between(events, start, end)
        renames = [event for event in here if event.name == "rename"]
        assert renames, "a snapshot without a rename"
        for rename in renames:
            written = [event for event in here if event.name in WRITES and event.path == rename.path]
            synced = [event for event in here if event.name in SYNCS and event.path == rename.path]
            assert written, "the renamed file was written elsewhere"
            assert any(max(w.ended for w in written) < s.begun and s.ended < rename.begun for s in synced)
            folder = str(Path(rename.target).parent)
            folder_synced = [e for e in here if e.name in SYNCS and e.path == folder and e.begun > rename.ended]
            assert folder_synced, "the folder was not synced after the rename"
            log = f"{folder}.sqlite-wal"
            rows = [event for event in here if event.name in WRITES and event.path == log]
            assert not [e for e in rows if rename.begun < e.begun < folder_synced[0].ended], "the row came too early"
            row = [event for event in rows if event.begun > folder_synced[0].ended]
            assert row, "no row names the snapshot"
            committed = [e for e in here if e.name in SYNCS and e.path == log and e.begun > row[0].ended]
            assert committed, "the row was not synced before the acknowledgement"
