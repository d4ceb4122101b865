"""Which rows pass a filter, and facets. SQLite answers; answers of recent filters are kept up to date by the log."""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnclr_hub.store.facets import Counts, Facet, count_values, facet
from nnclr_hub.store.folder.filter_sql import filter_sql
from nnclr_hub.store.folder.rows import last_seq, parse_metadata
from nnclr_hub.store.index.state import RowSet, State
from nnclr_hub.store.where import ABSENT, Group, value_of

KEPT = 32  # filters
MAX_CHANGES = 5000  # after more of them, the filter is evaluated again
BATCH = 1000  # rows whose metadata are parsed together


@dataclass(frozen=True)
class _Answer:
    """The rows that pass, the number of their state, and its row ids."""

    rows: RowSet
    seq: int
    main_rids: np.ndarray
    recent_rids: np.ndarray


class Filters:
    """The answers of recent filters of a collection. Safe to call from many threads."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._lock = threading.Lock()

    def passing(self, connection: sqlite3.Connection, state: State, group: Group) -> RowSet:
        """Return the rows that pass a filter, in a read transaction and the state that it sees."""
        before = self._answers.get(group.name)
        if before is not None and before.seq == state.seq and before.main_rids is state.main.rids:
            return before.rows
        changed = None if before is None else _changes(connection, before.seq, state.seq)
        if before is None or changed is None:
            flags = state.flags(_select(connection, group))
        else:
            if before.main_rids is state.main.rids:
                flags = np.zeros(len(state.alive.flags), bool)
                flags[: len(before.rows.flags)] = before.rows.flags
            else:  # a fold gave rows other positions
                recent = before.recent_rids[before.rows.recent]
                flags = state.flags(np.concatenate([before.main_rids[before.rows.rows], recent]))
            if len(changed):
                flags[state.rows(changed)] = False
                flags[state.rows(_select(connection, group, changed))] = True
        rows = RowSet(flags, len(state.main))
        with self._lock:
            if before is None or before.seq <= state.seq:
                self._answers[group.name] = _Answer(rows, state.seq, state.main.rids, state.recent_rids)
                self._answers.move_to_end(group.name)
            # an answer that is too old to be brought up to date would only keep a former main part's row ids
            for name in [name for name, answer in self._answers.items() if state.seq - answer.seq > MAX_CHANGES]:
                del self._answers[name]
            while len(self._answers) > KEPT:
                self._answers.popitem(last=False)
        return rows


def _changes(connection: sqlite3.Connection, before: int, seq: int) -> np.ndarray | None:
    """Return the row ids (n,) int64 ascending that changed between two changes; None if those are not known."""
    if not 0 <= seq - before <= MAX_CHANGES:
        return None
    rows = connection.execute("SELECT rid FROM oplog WHERE seq > ?", [before]).fetchall()
    if len(rows) != seq - before:  # the log was trimmed
        return None
    return np.unique(np.array(rows, np.int64).reshape(-1))


def _select(connection: sqlite3.Connection, group: Group, among: np.ndarray | None = None) -> np.ndarray:
    """Return the row ids (n,) int64 ascending that pass a filter, of all or of some rows."""
    condition, parameters = filter_sql(group)
    if among is not None:
        condition = f"rid IN ({','.join(map(str, among.tolist()))}) AND ({condition})"
    # one text takes two thirds of the time of as many rows; it may have 1 GB, which is enough for 100 million rows
    text = connection.execute(f"SELECT group_concat(rid) FROM items WHERE {condition}", parameters).fetchone()[0]
    return np.sort(np.fromstring(text or "", np.int64, sep=","))


class Facets:
    """Facets since the last commit, for calls that repeat. Safe to call from many threads."""

    def __init__(self) -> None:
        self._latest = -1, dict[Any, dict[str, Facet]]()  # the last change, and the facets of that state

    def of(
        self, connection: sqlite3.Connection, group: Group, keys: Sequence[str], limit: int, bins: int
    ) -> dict[str, Facet]:
        """Return the facets of the items that pass a filter, in a read transaction."""
        name, seq = (group.name, *keys, limit, bins), last_seq(connection)
        latest, known = self._latest
        if latest != seq:
            self._latest = seq, (known := {})
        if (found := known.get(name)) is None:
            counts = count_facets(connection, group, keys)
            found = {key: facet(key, *counted, limit, bins) for key, counted in counts.items()}
            if len(known) < KEPT:
                known[name] = found
        return dict(found)


def count_facets(connection: sqlite3.Connection, group: Group, keys: Sequence[str]) -> dict[str, tuple[int, Counts]]:
    """Return by key how many of the items that pass a filter have it, and how often each of its scalars occurs.

    All metadata are parsed once, which takes less time than one GROUP BY for each key.
    """
    condition, parameters = filter_sql(group)
    cursor = connection.execute(f"SELECT id, metadata FROM items WHERE {condition}", parameters)
    items, counts = dict.fromkeys(keys, 0), {key: Counts() for key in keys}
    while rows := cursor.fetchmany(BATCH):
        metadata = parse_metadata(rows)
        for key in keys:
            if "." in key:
                values = [value_of(metadatum, key) for metadatum in metadata]
            else:  # which is not a path; much faster
                values = [metadatum.get(key, ABSENT) for metadatum in metadata]
            items[key] += count_values(counts[key], values)
    return {key: (items[key], counts[key]) for key in keys}
