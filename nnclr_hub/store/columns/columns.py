"""The rows that pass a filter, from columns of metadata in memory that follow the catalog.

Every call names the view of the catalog that it is for: a read transaction and the number of its last change. The
columns are brought to exactly that change by the log, so a filter sees what `get` sees, in a store that is written to,
in one that is open for reading, and in a replica. A view that is older than the columns must be taken again.

A key is read from the catalog when a filter needs it for the first time, and kept. The names of all keys are known, so
that a key which no row has costs nothing. New rows form small segments, which
are merged with others of their size, so that all together cost little. What passes a filter is remembered for each
segment, so a write makes only the segments that it touches be compared again.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np

from nnclr_hub.store.ann.index import ViewTooOld
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.columns.column import Column
from nnclr_hub.store.columns.passing import Passing
from nnclr_hub.store.columns.segment import ROWS, Segment, keys_of, merged
from nnclr_hub.store.embedded.rows import parse_metadata
from nnclr_hub.store.where import ABSENT, Group, paths

REMEMBERED = 32  # filters
REMEMBERED_BYTES = 128 << 20
ROW_BYTES = 4  # of a remembered filter
PART = 500  # parameters of a statement
KEYS = 8  # of a segment that are read at a time, while other filters and cancellation wait
MAX_NAMES = 100_000  # of keys; if there are more, every key may exist
DEAD_SHARE = 0.5  # a segment with more dead rows is built again


class TooLarge(Exception):
    """Raised when the values of a key do not fit into the memory that columns may use."""


class Columns:
    """Columns of one collection.

    Args:
        memory: bytes that all columns of this process may use together.
    """

    _all: ClassVar[WeakSet[Columns]] = WeakSet()
    _all_lock: ClassVar[threading.Lock] = threading.Lock()  # collections are opened while others are searched

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._lock = threading.RLock()
        self._seq = -1  # the change that the segments are at; -1: nothing was read yet
        self._segments: list[Segment] = []
        self._keys: OrderedDict[str, bool] = OrderedDict()  # loaded ones, the last used at the end; True: indexed
        self._refused: set[str] = set()  # keys that are too large
        self._known: OrderedDict[str, Passing] = OrderedDict()
        self._names: set[str] = set()  # of the keys and paths of named segments, perhaps with some of deleted rows
        with self._all_lock:
            self._all.add(self)

    def forget(self) -> None:
        """Read everything again, because the catalog was replaced."""
        with self._lock:
            self._seq, self._segments = -1, []
            self._refused.clear()
            self._known.clear()

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes."""
        return sum(segment.nbytes for segment in list(self._segments))

    def remembered(self, at: int, group: Group) -> Passing | None:
        """Return the rows that pass a filter at change `at`, if they were computed before."""
        known = self._known.get(group.name)
        if known is None or known.seq != at:
            return None
        with suppress(KeyError):  # another thread has just dropped it
            self._known.move_to_end(group.name)
        return known

    def passing(self, connection: sqlite3.Connection, at: int, group: Group) -> Passing:
        """Return the rows that pass a filter.

        Args:
            connection: in a read transaction.
            at: the change that the transaction's view is up to.
            group: the filter.

        Raises:
            ViewTooOld: the transaction must be restarted.
            TooLarge: its keys do not fit into memory.
        """
        keys = keys_of(group)
        self.load(connection, at, keys)
        with self._lock:
            self._follow(connection, at)
            # another thread may have evicted a key again
            self._check_loaded(keys)
            known = self._known.get(group.name)
            if known is None or known.seq != at:
                ids = {one.value: _rids(connection, one.value) for one in group.conditions() if one.kind == "ids"}
                # what passes a filter on ids depends on more than the row
                known = Passing(at, group, self._segments, ids, None if ids else known)
                self._known[group.name] = known
            self._known.move_to_end(group.name)
            rows = sum(map(len, self._segments))
            while len(self._known) > max(1, min(REMEMBERED, REMEMBERED_BYTES // (ROW_BYTES * rows + 1))):
                self._known.popitem(last=False)
            return known

    def load(
        self,
        connection: sqlite3.Connection,
        at: int,
        keys: set[str],
        *,
        stay: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Read keys that are not in memory yet, while other threads use the others.

        Args:
            connection, at: as for `passing`.
            keys: of the metadata.
            stay: keep them even if they are not used.
            stop: checked between segments; what was not read until then is read when a filter needs it.

        Raises:
            ViewTooOld, TooLarge: as `passing` does.
        """
        while not stop():
            check_cancelled()
            with self._lock:
                self._follow(connection, at)
                if not keys <= self._keys.keys():
                    unnamed = next((one for one in self._segments if not one.named), None)
                    if unnamed is not None:
                        self._name(connection, unnamed)
                        continue
                existing = {key for key in keys if self._exists(key)}
                if existing & self._refused:
                    raise TooLarge
                for key in existing:
                    self._keys[key] = self._keys.get(key, False) or stay
                    self._keys.move_to_end(key)
                lacking = next((one for one in self._segments if not existing <= one.columns.keys()), None)
                if lacking is None:
                    return
                wanted = sorted(existing - lacking.columns.keys())[:KEYS]
                lacking.columns |= _read(connection, lacking.rids, wanted)
                self._evict(existing)

    def lacks(self, keys: set[str]) -> bool:
        """Return whether keys must be read that fit into memory."""
        return self._seq < 0 or any(key not in self._keys and key not in self._refused for key in keys)

    def drop(self, key: str) -> None:
        """Free the memory of a key, until a filter needs it."""
        with self._lock:
            self._keys.pop(key, None)
            for segment in self._segments:
                segment.columns.pop(key, None)

    def parts(self, connection: sqlite3.Connection, at: int, group: Group, key: str) -> list[tuple[Column, np.ndarray]]:
        """Return the columns of a key, each with the rows (n,) bool that pass a filter; see `passing`."""
        self.load(connection, at, {key})
        with self._lock:
            passing = self.passing(connection, at, group)
            self.load(connection, at, {key})  # again, if the filter's own keys took its place
            self._check_loaded({key})
            return [(segment.columns[key], mask) for segment, mask in passing.masks.items() if key in segment.columns]

    # ---- inside; with the lock

    def _exists(self, key: str) -> bool:
        """Return whether a row may have the key; exact if all segments are named and the keys are not too many."""
        return key in self._keys or key in self._names or len(self._names) > MAX_NAMES

    def _check_loaded(self, keys: set[str]) -> None:
        """Raise ViewTooOld if another thread has evicted one of these keys again."""
        if any(key not in one.columns for key in keys if self._exists(key) for one in self._segments):
            raise ViewTooOld

    def _name(self, connection: sqlite3.Connection, segment: Segment) -> None:
        """Read the names of all keys of a segment."""
        if len(self._names) <= MAX_NAMES:
            rows = (row for _, row in _rows(connection, "SELECT rid, id, metadata FROM items", segment.rids))
            while some := [(id, text) for id, text in islice(rows, PART)]:
                for metadata in parse_metadata(some):
                    _add_names(metadata, "", self._names)
        segment.named = True

    def _evict(self, needed: set[str]) -> None:
        """Drop the keys that were not used for longest while all collections together take too much memory.

        Those of the other collections come last. One that a thread uses now keeps its keys.
        """
        with self._all_lock:
            everyone = tuple(self._all)
        while (total := sum(one.nbytes for one in everyone)) > self._memory:
            if (other := self._oldest(needed)) is not None:
                self.drop(other)
            elif self.nbytes > self._memory:
                for key in needed:
                    self.drop(key)
                self._refused |= needed
                raise TooLarge
            elif not any(one._give_up(total - self._memory) for one in everyone if one is not self):
                return

    def _oldest(self, needed: set[str]) -> str | None:
        """Return the key that was not used for longest; an indexed one only if there is no other."""
        candidates = [(stay, i, key) for i, (key, stay) in enumerate(self._keys.items()) if key not in needed]
        return min(candidates)[2] if candidates else None

    def _give_up(self, wanted: int) -> bool:
        """Free some bytes for another collection, and return whether it freed any."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            before = self.nbytes
            while before - self.nbytes < wanted and (key := self._oldest(set())) is not None:
                self.drop(key)
            return self.nbytes < before
        finally:
            self._lock.release()

    def _follow(self, connection: sqlite3.Connection, at: int) -> None:
        """Bring the segments to a view."""
        if at == self._seq:
            return
        if at < self._seq:
            raise ViewTooOld
        log = connection.execute(
            "SELECT op, rid FROM oplog WHERE seq > ? AND seq <= ? ORDER BY seq", [self._seq, at]
        ).fetchall()
        if self._seq < 0 or len(log) != at - self._seq:
            rows = connection.execute("SELECT rid FROM items ORDER BY rid")
            rids = np.fromiter((rid for (rid,) in rows), np.int64)
            self._segments = [Segment(rids[i : i + ROWS], {}) for i in range(0, len(rids), ROWS)]
            self._known.clear()
            self._names.clear()
        else:
            self._apply(connection, log)
        self._seq = at

    def _apply(self, connection: sqlite3.Connection, log: Sequence[tuple[str, int]]) -> None:
        deleted = {rid for op, rid in log if op == "-"}
        changed = {rid for op, rid in log if op != "-"} - deleted
        gone = np.array(sorted(deleted | {rid for op, rid in log if op == "="}), np.int64)
        segments = []
        for segment in self._segments:
            segment.kill(gone)
            if segment.dead <= DEAD_SHARE * len(segment):
                segments.append(segment)
            elif segment.dead < len(segment):
                segments.append(merged([segment]))
        self._segments = segments
        rids = np.array(sorted(changed), np.int64)
        for start in range(0, len(rids), ROWS):
            part = rids[start : start + ROWS]
            self._segments.append(Segment(part, _read(connection, part, list(self._keys))))
            self._name(connection, self._segments[-1])
            self._merge()

    def _merge(self) -> None:
        """Merge the last segments while they are of similar size."""
        while len(self._segments) > 1:
            last, before = self._segments[-1], self._segments[-2]
            if 2 * len(last) < len(before) or len(last) + len(before) > ROWS:
                return
            self._segments[-2:] = [merged([before, last])]


def _read(connection: sqlite3.Connection, rids: np.ndarray, keys: Sequence[str]) -> dict[str, Column]:
    """Return the columns of keys for rows (n,) int64; rows that do not exist lack every key."""
    if not keys:
        return {}
    values: dict[str, list[Any]] = {key: [ABSENT] * len(rids) for key in keys}
    chosen = ", ".join(map(_expression, keys))
    for place, row in _rows(connection, f"SELECT rid, {chosen} FROM items", rids):
        for key, text in zip(keys, row, strict=True):
            if text is not None:
                values[key][place] = text
    for some in values.values():
        _parse(some)
    return {key: Column(some) for key, some in values.items()}


def _add_names(metadata: dict[str, Any], before: str, names: set[str]) -> None:
    """Add the keys of an object, and the paths through the objects in it."""
    for key, value in metadata.items():
        names.add(before + key)
        if type(value) is dict:
            _add_names(value, f"{before}{key}.", names)


def _rows(connection: sqlite3.Connection, select: str, rids: np.ndarray) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yield the position in `rids` of each row that exists, and its other columns."""
    if len(rids) > PART:  # mostly a range without gaps
        place_of = {rid: place for place, rid in enumerate(rids.tolist())}
        found = connection.execute(f"{select} WHERE rid BETWEEN ? AND ?", [int(rids[0]), int(rids[-1])])
        for rid, *row in found:
            if (place := place_of.get(rid)) is not None:
                yield place, row
        return
    places = {rid: place for place, rid in enumerate(rids.tolist())}
    found = connection.execute(f"{select} WHERE rid IN ({','.join('?' * len(places))})", list(places))
    for rid, *row in found:
        yield places[rid], row


def _parse(values: list[Any]) -> None:
    """Replace JSON by its values; all are parsed together, which is much faster than one by one."""
    present = [place for place, text in enumerate(values) if text is not ABSENT]
    parsed = json.loads(f"[{','.join([values[place] for place in present])}]")
    for place, value in zip(present, parsed, strict=True):
        values[place] = value


def _expression(key: str) -> str:
    """Return SQL for the JSON of a key's value, NULL if there is none; as `store.where.value_of`."""
    found = ["metadata -> '$" + "".join(map(_step, steps)) + "'" for steps in paths(key)]
    return found[0] if len(found) == 1 else f"coalesce({', '.join(found)})"


def _step(name: str) -> str:
    # as it is written in JSON, in an SQL string
    return "." + json.dumps(name, ensure_ascii=False).replace("'", "''")


def _rids(connection: sqlite3.Connection, ids: Sequence[str]) -> np.ndarray:
    """Return the row ids of the items with these ids."""
    found = connection.execute(f"SELECT rid FROM items WHERE id IN ({','.join('?' * len(ids))})", list(ids))
    return np.array([rid for (rid,) in found], np.int64)
