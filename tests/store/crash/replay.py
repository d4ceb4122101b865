"""Recorded system calls, done once more to a model of a disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from store.crash.disk import Disk, Inode
from store.crash.strace import Argument, Call

_SYNCS = ("fsync", "fdatasync")
_ON_FILES = {"write", "pwrite64", "ftruncate", "lseek", *_SYNCS}
# sync_file_range promises nothing about power
_NOTHING = {"sync_file_range"}
STDOUT = 1


@dataclass(eq=False)
class _Opened:
    """An open file, shared by all descriptors that were duplicated from one another."""

    inode: Inode
    append: bool
    position: int = 0


class Replay:
    """The history of one process, applied to a disk.

    Args:
        disk: an empty one.
        root: the folder that it represents; other files are not on this disk.
    """

    def __init__(self, disk: Disk, root: Path) -> None:
        self.disk = disk
        self._root = os.fsencode(root)
        self._open: dict[int, _Opened] = {}

    def run(self, calls: list[Call]) -> Iterator[Call]:
        """Apply the calls in the order in which they ended, and yield each afterwards."""
        early = {*_SYNCS, "close"}
        begins = sorted((call for call in calls if call.name in early), key=lambda call: call.begun)
        covered: dict[Call, int] = {}
        for call in calls:
            # an fsync covers what was written before it began, not what other threads wrote while it ran; the number of
            # a closed file may belong to another thread's file before the close has ended
            while begins and begins[0].begun < call.ended:
                begun = begins.pop(0)
                if begun.name == "close":
                    self._open.pop(_number(begun.arguments[0]), None)
                elif (opened := self._at(begun.arguments[0])) is not None:
                    covered[begun] = opened.inode.changes
            self._apply(call, covered.pop(call, None))
            yield call

    def _apply(self, call: Call, covered: int | None) -> None:
        name, given = call.name, call.arguments
        if name in ("open", "openat", "creat"):
            at, path, flags = given[:3] if name == "openat" else ("", *given, "O_CREAT|O_TRUNC")[:3]
            self._opened(self._place(at, path), str(flags), call.result)
        elif name in ("dup", "dup2", "dup3") or (name == "fcntl" and str(given[1]).startswith("F_DUPFD")):
            if (opened := self._at(given[0])) is not None:
                self._open[call.result] = opened
        elif name in _ON_FILES:
            if (opened := self._at(given[0])) is not None:
                self._on_file(opened, call, covered)
        elif name in ("mkdir", "mkdirat", "unlink", "unlinkat", "rmdir"):
            at, path = (given[0], given[1]) if name.endswith("at") else ("", given[0])
            if (place := self._place(at, path)) is not None:
                if name.startswith("mkdir"):
                    self.disk.make(*place, Inode(folder=True))
                else:
                    self.disk.remove(*place)
        elif name in ("rename", "renameat", "renameat2"):
            old, new = (("", given[0]), ("", given[1])) if name == "rename" else (given[0:2], given[2:4])
            source, target = self._place(*old), self._place(*new)
            assert (source is None) == (target is None), f"a rename between disks: {call}"
            if source is not None and target is not None:
                self.disk.rename(source, target)
        elif name not in _NOTHING | {"fcntl", "close"}:
            self._refuse(call)

    def _opened(self, place: tuple[Inode, str] | None, flags: str, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        if place is None:
            return
        folder, name = place
        inode = folder.entries.get(name) if name else folder
        if inode is None:
            assert "O_CREAT" in flags, f"{name} was opened and never made"
            inode = Inode()
            self.disk.make(folder, name, inode)
        elif "O_TRUNC" in flags:
            inode.pending.append((0, None))
        self._open[descriptor] = _Opened(inode, "O_APPEND" in flags)

    def _on_file(self, opened: _Opened, call: Call, covered: int | None) -> None:
        inode, given = opened.inode, call.arguments
        if call.name == "pwrite64":
            inode.pending.append((_number(given[3]), _bytes(given[1])[: call.result]))
        elif call.name == "write":
            at = len(inode.data()) if opened.append else opened.position
            inode.pending.append((at, _bytes(given[1])[: call.result]))
            opened.position = at + call.result
        elif call.name == "lseek":
            opened.position = call.result
        elif call.name == "ftruncate":
            inode.pending.append((_number(given[1]), None))
        else:
            self.disk.sync(inode, inode.changes if covered is None else covered)

    def _place(self, at: Argument, path: Argument) -> tuple[Inode, str] | None:
        """Return folder and name of a path, the root as (root, ""); None: not on this disk."""
        assert isinstance(path, bytes), f"no path: {path!r}"
        if isinstance(at, int) and not path.startswith(b"/"):
            opened = self._open.get(at)
            if opened is None:
                return None
            folder = opened.inode
        elif path == self._root or path.startswith(self._root + b"/"):
            folder, path = self.disk.top, path[len(self._root) :]
        else:
            return None
        parts = [part for part in os.fsdecode(path).split("/") if part not in ("", ".")]
        for part in parts[:-1]:
            folder = folder.entries[part]
        return folder, parts[-1] if parts else ""

    def _at(self, descriptor: Argument) -> _Opened | None:
        return self._open.get(_number(descriptor))

    def _refuse(self, call: Call) -> None:
        """Fail for a call that the model lacks, unless it concerns other files only."""
        files = [self._open.get(given) for given in call.arguments if isinstance(given, int)]
        paths = [given for given in call.arguments if isinstance(given, bytes) and given.startswith(self._root)]
        assert not any(files), f"the model of a disk knows nothing of {call.name}"
        assert not paths, f"the model of a disk knows nothing of {call.name}"


def _number(given: Argument) -> int:
    assert isinstance(given, int), f"no number: {given!r}"
    return given


def _bytes(given: Argument) -> bytes:
    assert isinstance(given, bytes), f"no bytes: {given!r}"
    return given
