"""A disk that loses its power, and what is left on it.

What was written to a file is volatile until an fsync of that file ended that began after the write had ended.
What was done to a folder (a file made, renamed, deleted) is volatile until an fsync of that folder, which is all that
POSIX promises. File systems with a journal keep more; what they leave is among what this disk may leave.

Power may fail with all of the volatile lost, or with an arbitrary part of it on the disk: some pages of a file as
they were at some moment since the last fsync, others not; a rename, but not the one before. That a file becomes shorter
is one change of the file system, which is there as a whole or not. Without it, what is written later can only be on
pages that it left in the file: the others get new blocks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

PAGE = 4096
Change = tuple[int, bytes | None]


@dataclass(eq=False)
class Inode:
    """A file or a folder.

    durable: bytes that are safe; settled: how many changes went into them.
    pending: later changes as (offset, bytes), or (size, None) for a new length.
    entries: of a folder, as all programs see them; safe_entries: those that are safe.
    """

    folder: bool = False
    durable: bytes = b""
    settled: int = 0
    pending: list[Change] = field(default_factory=list)
    entries: dict[str, Inode] = field(default_factory=dict)
    safe_entries: dict[str, Inode] = field(default_factory=dict)

    @property
    def changes(self) -> int:
        """The number of all changes so far."""
        return self.settled + len(self.pending)

    def data(self) -> bytes:
        """Return what programs read now."""
        return _after(self.durable, self.pending)


# names that mean another inode from now on, or none; they come true together
Entries = list[tuple[Inode, str, Inode | None]]


class Disk:
    """Empty at first; `top` is its root folder."""

    def __init__(self) -> None:
        self.top = Inode(folder=True)
        self._volatile: list[Entries] = []

    # ---- history

    def make(self, folder: Inode, name: str, inode: Inode) -> None:
        """Create a file or folder."""
        self._change([(folder, name, inode)])

    def remove(self, folder: Inode, name: str) -> None:
        """Remove the name of a file or folder."""
        self._change([(folder, name, None)])

    def rename(self, source: tuple[Inode, str], target: tuple[Inode, str]) -> None:
        """Rename a file or folder in one step."""
        self._change([(*source, None), (*target, source[0].entries[source[1]])])

    def sync(self, inode: Inode, covered: int) -> None:
        """Record the end of an fsync.

        Args:
            inode: of what.
            covered: the value of `inode.changes` when it began.
        """
        count = max(0, covered - inode.settled)
        inode.durable = _after(inode.durable, inode.pending[:count])
        inode.settled += count
        del inode.pending[:count]
        safe = [one for one in self._volatile if any(folder is inode for folder, _, _ in one)]
        for together in safe:
            for folder, name, meant in together:
                _enter(folder.safe_entries, name, meant)
        self._volatile = [together for together in self._volatile if not any(together is one for one in safe)]

    # ---- loss of power

    def materialize(self, folder: Path, rng: random.Random | None = None) -> None:
        """Write what a loss of power leaves now.

        Args:
            folder: an empty one.
            rng: draws the part of the volatile that survived; None: none of it did.
        """
        entries = {inode: dict(inode.safe_entries) for inode in self._folders()}
        for together in self._volatile:
            if rng is not None and rng.random() < 0.5:
                for inode, name, meant in together:
                    _enter(entries[inode], name, meant)
        _write(self.top, folder, entries, rng)

    # ---- inside

    def _change(self, together: Entries) -> None:
        for folder, name, meant in together:
            _enter(folder.entries, name, meant)
        self._volatile.append(together)

    def _folders(self) -> Iterator[Inode]:
        """Yield every folder that may exist after a loss of power."""
        seen: set[Inode] = set()
        waiting = [self.top, *(meant for together in self._volatile for _, _, meant in together if meant is not None)]
        waiting += [folder for together in self._volatile for folder, _, _ in together]
        while waiting:
            inode = waiting.pop()
            if inode.folder and inode not in seen:
                seen.add(inode)
                yield inode
                waiting += [*inode.entries.values(), *inode.safe_entries.values()]


def _enter(entries: dict[str, Inode], name: str, meant: Inode | None) -> None:
    if meant is None:
        entries.pop(name, None)
    else:
        entries[name] = meant


def _write(inode: Inode, folder: Path, entries: dict[Inode, dict[str, Inode]], rng: random.Random | None) -> None:
    folder.mkdir(exist_ok=True)
    for name, meant in entries[inode].items():
        if meant.folder:
            _write(meant, folder / name, entries, rng)
        elif not name.endswith("-shm"):  # lives in memory; SQLite creates it again
            (folder / name).write_bytes(_surviving(meant, rng))


def _surviving(inode: Inode, rng: random.Random | None) -> bytes:
    """Return the bytes of a file after the loss: each page as it was at some moment since the last fsync."""
    if rng is None or not inode.pending:
        return inode.durable
    spans = [[inode.durable]]  # of moments without a cut between them
    for change in inode.pending:
        before = spans[-1][-1]
        after = _after(before, [change])
        if len(after) < len(before):
            spans.append([])
        spans[-1].append(after)
    chosen = rng.randrange(len(spans))
    size = len(rng.choice(spans[chosen]))
    pages = []
    for start in range(0, size, PAGE):
        end = start + PAGE
        kept = takewhile(lambda later, end=end: end <= len(later[0]), spans[chosen + 1 :])
        moments = [moment for span in (spans[chosen], *kept) for moment in span]
        pages.append(rng.choice(moments)[start : start + PAGE].ljust(PAGE, b"\0"))
    return b"".join(pages)[:size]


def _after(data: bytes, changes: list[Change]) -> bytes:
    made = bytearray(data)
    for at, written in changes:
        if len(made) < at:
            made.extend(bytes(at - len(made)))
        if written is None:
            del made[at:]
        else:
            made[at : at + len(written)] = written
    return bytes(made)
