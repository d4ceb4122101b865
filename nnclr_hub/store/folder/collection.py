"""EmbeddedCollection: one collection of an embedded store, catalog and index together."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace as replace_fields
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nnclr_hub.errors import CollectionNotFound, ItemNotFound
from nnclr_hub.plural import counted
from nnclr_hub.store import checks, edits, facets
from nnclr_hub.store.base import Collection
from nnclr_hub.store.folder import rows, schema, verify
from nnclr_hub.store.folder.filter_sql import filter_sql
from nnclr_hub.store.folder.log import last_vector_change, read_changes
from nnclr_hub.store.folder.resources import Resources
from nnclr_hub.store.folder.rows import ONE_OF, Changes
from nnclr_hub.store.folder.writer import Apply, Writer
from nnclr_hub.store.index.state import RowSet, State
from nnclr_hub.store.items import ById, Item, Match, Page, Progress, SearchOptions, Where, is_same
from nnclr_hub.store.percentiles import RandomScores, RandomVectors, random_items
from nnclr_hub.store.reports import ChangePage, CollectionInfo, RepairReport, Statistics, VerifyReport
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.sqlite import bytes_of_database, check_process
from nnclr_hub.store.where import EVERYTHING, parse

POLL_SECONDS = 0.1  # between two looks at what another process writes
MAX_TIES = 1024  # rows beyond the k-th that are looked at because they may have its score
# whether the name that a write was addressed to means the same collection still; see `EmbeddedStore.write`
IS_MEANT: ContextVar[Callable[[], bool]] = ContextVar("is_meant", default=lambda: True)
T = TypeVar("T")


class EmbeddedCollection(Collection):
    """See `store.base.Collection` for what the methods promise.

    Args:
        name: in the root catalog.
        path: its SQLite file; the index snapshot is in the folder with the same stem.
        lost: folder for stray files.
        read_only: start no writer thread; the next call sees what another process has committed.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        lost: Path,
        settings: StoreSettings,
        *,
        read_only: bool = False,
    ) -> None:
        self.name = name
        self._path, self._lost = path, lost
        self._life = threading.Lock()  # held while the files are opened or closed
        self._closed = False
        self._pid = os.getpid()
        self._files = Resources(path, lost, settings, read_only=read_only)
        self.spec = self._files.spec
        self.random_scores = RandomScores(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else counted(len(self._files.states.latest.alive), "item")
        return f"<EmbeddedCollection {self.name!r}: {state}, dim {self.spec.dim}>"

    # ---- writing

    def upsert(self, items: Sequence[Item]) -> int:
        writer = self._writable()
        kept, metadata, vectors = checks.check_items(items, self.spec)
        self._files.maintenance.wait_for_fold()
        self._submit(
            lambda connection, changes: rows.write_items(connection, changes, kept, metadata, vectors, self.spec)
        )
        return writer.last.seq

    def delete(self, ids: Sequence[str] | None = None, *, where: Where | None = None) -> int:
        chosen = _choose(ids, where)

        def apply(connection: sqlite3.Connection, changes: Changes) -> int:
            return rows.delete_rows(connection, changes, [row[:2] for row in rows.find_rows(connection, *chosen)])

        return self._submit(apply, frees=True)

    def delete_unchanged(self, items: Sequence[Item]) -> list[Item]:
        before = {item.id: item for item in items}

        def apply(connection: sqlite3.Connection, changes: Changes) -> list[Item]:
            found = list(rows.read_rows(connection, f"id {ONE_OF}", [json.dumps(list(before))]))
            now = rows.to_items(found, self.spec)
            same = {item.id for item in now if is_same(item, before[item.id])}
            rows.delete_rows(connection, changes, [row[:2] for row in found if row[1] in same])
            return [item for item in now if item.id not in same]

        return self._submit(apply, frees=True)

    def update_metadata(
        self,
        metadata: Mapping[str, Any],
        *,
        ids: Sequence[str] | None = None,
        where: Where | None = None,
        replace: bool = False,
        keep: Sequence[str] = (),
    ) -> int:
        return self._update(edits.editor(metadata, replace=replace, keep=keep), ids, where)

    def update_each(self, metadata: ById, *, expected: ById | None = None, keep: Sequence[str] = ()) -> int:
        edit = edits.each_editor(metadata, expected=expected, keep=keep)
        return self._update(edit, list(metadata), None, expected)

    def _update(
        self,
        edit: edits.Edit,
        ids: Sequence[str] | None,
        where: Where | None,
        expected: ById | None = None,
    ) -> int:
        chosen = _choose(ids, where)

        def apply(connection: sqlite3.Connection, changes: Changes) -> int:
            found = rows.find_rows(connection, *chosen)
            before = rows.parse_metadata([row[1:] for row in found])
            edits.check_unchanged(expected, [(row[1], metadata) for row, metadata in zip(found, before, strict=True)])
            texts = {rid: edit(id, metadata) for (rid, id, _), metadata in zip(found, before, strict=True)}
            rows.edit_items(connection, {rid: texts[rid] for rid, _, text in found if texts[rid] != text})
            return len(found)

        return self._submit(apply)

    def change_indexed(self, keys: Sequence[str]) -> None:
        spec = replace_fields(self.spec, indexed=tuple(keys))
        schema.check_indexed(spec)
        self._writable().submit(lambda connection, _: schema.change_indexed(connection, spec))
        self.spec = self._files.spec = spec

    def hold_writes(self, work: Callable[[], T]) -> T:
        """Run work, which must not write here, while writes wait; they are done afterwards."""

        def run(connection: sqlite3.Connection, changes: Changes) -> T | Exception:
            try:
                return work()
            except Exception as error:  # noqa: BLE001 - raised below: it is not an error of this collection
                return error

        result = self._writable().submit(run, frees=True, alone=True)
        if isinstance(result, Exception):
            raise result
        return result

    # ---- reading

    def get(self, ids: Sequence[str]) -> list[Item]:
        wanted = checks.check_ids(ids)
        with self._files.connections.reader() as connection:
            found = list(rows.read_rows(connection, f"id {ONE_OF}", [json.dumps(wanted)]))
        items = {item.id: item for item in rows.to_items(found, self.spec)}
        return [items[id] for id in wanted if id in items]

    def count(self, where: Where | None = None) -> int:
        group = parse(where)
        if group == EVERYTHING:
            return self._files.read(lambda connection, state: len(state.alive))
        return self._files.read(lambda connection, state: len(self._files.filters.passing(connection, state, group)))

    def facets(
        self, keys: Sequence[str], where: Where | None = None, limit: int = 10, *, bins: int = 10
    ) -> dict[str, facets.Facet]:
        wanted, group = facets.check_facets(keys, limit, bins), parse(where)
        with self._files.connections.reader() as connection:
            return self._files.facets.of(connection, group, wanted, limit, bins)

    def scroll(
        self, cursor: str | None = None, limit: int = 100, where: Where | None = None, *, with_vector: bool = True
    ) -> Page:
        checks.check_whole("limit", limit, checks.MAX_LIMIT)
        after = "" if cursor is None else checks.check_name(cursor, "Cursor")
        condition, parameters = filter_sql(parse(where))
        page = [f"id > ? AND ({condition}) ORDER BY id LIMIT ?", [after, *parameters, limit + 1]]
        with self._files.connections.reader() as connection:
            items = rows.to_items(
                list(rows.read_rows(connection, *page, vectors=with_vector)), self.spec, thumbnails=False
            )
        return Page(items[:limit], items[limit - 1].id if len(items) > limit else None)

    def nearest(self, vectors: Sequence[np.ndarray] | np.ndarray, k: int, options: SearchOptions) -> list[list[Match]]:
        queries = checks.check_queries(vectors, self.spec)
        group, known = EVERYTHING if options.where is None else parse(options.where), self._files.filters

        def find(connection: sqlite3.Connection, state: State) -> list[list[Match]]:
            chosen = None if group == EVERYTHING else known.passing(connection, state, group)
            return self._search(connection, state, queries, k, options, chosen)

        return self._files.read(find) if len(queries) else []

    def _search(
        self,
        connection: sqlite3.Connection,
        state: State,
        queries: np.ndarray,
        k: int,
        options: SearchOptions,
        chosen: RowSet | None,
    ) -> list[list[Match]]:
        """Return the k nearest matches of each query, best first, and equally near ones by id."""
        fetch = lambda rids: rows.fetch_vectors(connection, self.spec, rids)  # noqa: E731
        ties = 1  # shows whether the k-th has the same score as the next
        while True:
            scores, rids = state.search(queries, k + ties, fetch, chosen, exact=options.exact, effort=options.effort)
            if scores.shape[1] < k + ties or ties >= MAX_TIES:
                break
            if not ((scores[:, -1] == scores[:, k - 1]) & (rids[:, -1] >= 0)).any():
                break
            ties = min(8 * ties, MAX_TIES)
        unique = json.dumps(np.unique(rids[rids >= 0]).tolist())
        found = list(rows.read_rows(connection, f"rid {ONE_OF}", [unique], vectors=options.with_vector))
        known = {row[0]: item for row, item in zip(found, rows.to_items(found, self.spec), strict=True)}
        least = -np.inf if options.score_threshold is None else options.score_threshold
        answers = []
        for row_scores, row_rids in zip(scores.tolist(), rids.tolist(), strict=True):
            matches = []
            for score, rid in zip(row_scores, row_rids, strict=True):
                if rid >= 0 and score >= least:
                    item = known[rid]
                    matches.append(Match(item.id, score, item.metadata, item.vector if options.with_vector else None))
            answers.append(sorted(matches, key=lambda match: (-match.score, match.id))[:k])
        return answers

    def random_vectors(self) -> RandomVectors:
        def read(connection: sqlite3.Connection, state: State) -> RandomVectors:
            changes = self.vector_changes()
            rids = state.live_rids()
            vectors = rows.fetch_vectors(connection, self.spec, rids[random_items(len(rids), self.spec.dim)])
            return RandomVectors(state.main.compared(vectors), len(rids), changes)

        return self._files.read(read)

    def vector_changes(self) -> tuple[int, ...]:
        return self._files.states.added, self._files.states.deleted

    @property
    def basis(self) -> object:
        return self._files.states.latest.main.transform or self._files.states

    def compared(self, vectors: np.ndarray) -> np.ndarray:
        return self._files.states.latest.main.compared(vectors)

    def thumbnail(self, id: str) -> bytes | None:
        checks.check_name(id, "Item id")
        with self._files.connections.reader() as connection:
            row = next(rows.read_rows(connection, "id = ?", [id], vectors=False), None)
        if row is None:
            raise ItemNotFound(f"Collection {self.name!r} has no item {id!r}.")
        return row[4]

    def read_all(self, limit: int = 1000, *, thumbnails: bool = True) -> Iterator[list[Item]]:
        checks.check_whole("limit", limit, checks.MAX_LIMIT)
        with self._files.connections.reader() as connection:
            everything = rows.read_rows(connection, "true ORDER BY id", [])
            while page := list(islice(everything, limit)):
                yield rows.to_items(page, self.spec, thumbnails=thumbnails)

    def changes(self, since: int = 0, limit: int = 1000, *, wait: float = 0.0, log: str | None = None) -> ChangePage:
        until = time.monotonic() + wait
        while True:
            with self._files.connections.reader() as connection:
                page = read_changes(connection, since, limit, self._path.stem, log)
            left = until - time.monotonic()
            if page.changes or left <= 0:
                return page
            if self._files.writer is None:
                time.sleep(min(left, POLL_SECONDS))
            else:
                self._files.states.wait_for(since + 1, left)

    # ---- state and maintenance

    def info(self) -> CollectionInfo:
        def read(connection: sqlite3.Connection, state: State) -> CollectionInfo:
            count, durable = connection.execute("SELECT count(*) FROM items").fetchone()[0], rows.last_seq(connection)
            index, indexed = self._files.states.latest.main, self._files.states.latest.seq
            words = self._files.state, index.kind.name, index.recall
            vectors, size = last_vector_change(connection), bytes_of_database(self._path)
            return CollectionInfo(self.name, self.spec, count, durable, indexed, *words, vectors, size)

        return self._files.read(read)

    def statistics(self) -> Statistics:
        return self._files.statistics()

    def snapshot(self) -> None:
        self._writable()
        self._files.maintenance.snapshot()

    def compact(self, progress: Progress = lambda done, total: None) -> None:
        self._writable().refuse_failed()
        self._files.maintenance.compact(progress)

    def verify(self, progress: Progress = lambda done, total: None) -> VerifyReport:
        return verify.verify(self._files, self._path, progress)

    def repair(self, progress: Progress = lambda done, total: None) -> RepairReport:
        self._writable()
        removed, kept_in = verify.repair(self._files, self._path, self._lost, progress)
        return RepairReport(self.count(), removed, kept_in)

    # ---- life

    def close(self, *, keep: bool = True) -> None:
        """Save the index if enough has changed, and close the files; without `keep`, its file will be deleted."""
        check_process(self._pid)  # first: a thread that the fork has not copied may hold the lock for ever
        with self._life:
            if not self._closed:
                self._closed = True
                self._files.close(keep=keep)

    def _submit(self, apply: Apply[T], *, frees: bool = False) -> T:
        is_meant = IS_MEANT.get()

        def run(connection: sqlite3.Connection, changes: Changes) -> T:
            if not is_meant():  # asked in the thread that also runs `hold_writes`
                raise CollectionNotFound(f"{self.name!r} was replaced by another collection.")
            return apply(connection, changes)

        return self._writable().submit(run, frees=frees)

    def _writable(self) -> Writer:
        if self._files.writer is None:
            raise self._files.refusal
        return self._files.writer


def _choose(ids: Sequence[str] | None, where: Where | None) -> tuple[str, list[Any]]:
    """Return the SQL condition on the items to change, and its parameters."""
    wanted, group = edits.check_choice(ids, where)
    return (f"id {ONE_OF}", [json.dumps(wanted)]) if group is None else filter_sql(group)
