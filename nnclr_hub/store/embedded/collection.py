"""EmbeddedCollection: one collection of an embedded store, catalog and index together."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nnclr_hub.errors import ItemNotFound, OpenedForReading
from nnclr_hub.store import checks
from nnclr_hub.store.ann.index import AnnIndex, ViewTooOld
from nnclr_hub.store.base import CollectionInfo, Item, Match, Page, Progress, RepairReport, VerifyReport, Where
from nnclr_hub.store.embedded import recovery, snapshots, verification
from nnclr_hub.store.embedded.care import Care, take_clean_mark
from nnclr_hub.store.embedded.catalog import (
    check_size,
    connect,
    give_back_room,
    last_seq,
    migrate_collection,
    quick_check,
    read_spec,
    translated,
)
from nnclr_hub.store.embedded.connections import Connections
from nnclr_hub.store.embedded.rows import MAX_IN, Changes, delete_items, delete_rows, to_item, write_items
from nnclr_hub.store.embedded.searching import Question, Searcher
from nnclr_hub.store.embedded.writer import Writer
from nnclr_hub.store.spec import Embeds
from nnclr_hub.store.where import to_sql


class EmbeddedCollection:
    """See `store.base.Collection` for what the methods promise.

    Args:
        name: in the root catalog.
        path: its SQLite file; index snapshots lie in the folder of the same stem.
        lost: where stray files are moved to.
        budget: bytes that the index may take.
        read_only: no writer thread; commits of another process are seen by the next call.
    """

    def __init__(self, name: str, path: Path, lost: Path, budget: int, *, read_only: bool = False) -> None:
        self.name = name
        self._path = path
        self._lost = lost
        self._closed = False
        self._refreshing = threading.RLock()
        self._connection = connect(path, read_only=read_only)
        try:
            with translated(path):
                check_size(self._connection, path)
                self.spec = read_spec(self._connection)
                self._index = AnnIndex(self.spec, budget)
                self._open_files(read_only)
                written = recovery.recover(self._connection, self._index, path.with_suffix(""))
        except BaseException:
            self._connection.close()
            raise
        self._connections = Connections(path, self._follow if read_only else lambda connection: None)
        self._searcher = Searcher(self._index)
        self._care = Care(self._index, path, self._connections, written)
        self._writer = None if read_only else Writer(self._connection, self._index, path, self._care.wake)
        self._care.writer = self._writer
        self._care.wake()

    def _open_files(self, read_only: bool) -> None:
        if not read_only:
            folder = self._path.with_suffix("")
            folder.mkdir(exist_ok=True)
            if not take_clean_mark(self._connection):
                quick_check(self._connection, self._path)
            migrate_collection(self._connection)
            snapshots.clear_leftovers(self._connection, folder, self._lost)

    # ---- writing

    def upsert(self, items: Sequence[Item]) -> int:
        writer = self._writing()
        chosen, metadata, vectors = checks.check_items(items, self.spec)

        def apply(connection: sqlite3.Connection, changes: Changes) -> None:
            write_items(connection, changes, chosen, metadata, vectors, self.spec)

        writer.submit(apply)
        return writer.durable_seq

    def delete(self, ids: Sequence[str]) -> int:
        wanted = list(dict.fromkeys(checks.check_ids(ids)))
        return self._writing().submit(lambda connection, changes: delete_items(connection, changes, wanted))

    # ---- reading

    def get(self, ids: Sequence[str]) -> list[Item]:
        wanted = checks.check_ids(ids)
        found: dict[str, Item] = {}
        with self._connections.reader() as connection:
            for start in range(0, len(wanted), MAX_IN):
                chunk = wanted[start : start + MAX_IN]
                rows = connection.execute(
                    "SELECT id, vector, metadata, jpeg FROM items JOIN vectors USING (rid) "
                    f"LEFT JOIN thumbnails USING (rid) WHERE id IN ({','.join('?' * len(chunk))})",
                    chunk,
                )
                found |= {row[0]: to_item(*row, spec=self.spec) for row in rows}
        return [found[id] for id in wanted if id in found]

    def count(self, where: Where | None = None) -> int:
        sql, parameters = to_sql(where)
        with self._connections.reader() as connection:
            return connection.execute(f"SELECT count(*) FROM items WHERE {sql}", parameters).fetchone()[0]

    def scroll(
        self, cursor: str | None = None, limit: int = 100, where: Where | None = None, *, with_vector: bool = True
    ) -> Page:
        checks.check_limit(limit)
        sql, parameters = to_sql(where)
        after = "" if cursor is None else checks.check_name(cursor, "Cursor")
        columns, source = ("vector", "items JOIN vectors USING (rid)") if with_vector else ("NULL", "items")
        with self._connections.reader() as connection:
            rows = connection.execute(
                f"SELECT id, {columns}, metadata, NULL FROM {source} WHERE id > ? AND {sql} ORDER BY id LIMIT ?",
                [after, *parameters, limit + 1],
            ).fetchall()
        items = [to_item(*row, spec=self.spec) for row in rows[:limit]]
        return Page(items, items[-1].id if len(rows) > limit else None)

    def search(
        self,
        vector: np.ndarray,
        k: int = 10,
        where: Where | None = None,
        *,
        exact: bool = False,
        score_threshold: float | None = None,
        with_vector: bool = False,
        effort: int | None = None,
    ) -> list[Match]:
        queries = checks.check_vector(vector, self.spec, "the query")[None]
        question = Question.of(queries, checks.check_k(k), where, exact, checks.check_effort(effort), with_vector)
        return self._answer(question, checks.check_threshold(score_threshold))[0]

    def search_batch(
        self,
        vectors: np.ndarray,
        k: int = 10,
        where: Where | None = None,
        *,
        exact: bool = False,
        score_threshold: float | None = None,
        with_vector: bool = False,
        effort: int | None = None,
    ) -> list[list[Match]]:
        queries = checks.check_vectors(vectors, self.spec, lambda i: f"query {i}")
        question = Question.of(queries, checks.check_k(k), where, exact, checks.check_effort(effort), with_vector)
        return self._answer(question, checks.check_threshold(score_threshold)) if len(queries) else []

    def _answer(self, question: Question, score_threshold: float | None) -> list[list[Match]]:
        while True:
            try:
                with self._connections.reader() as connection:
                    at = last_seq(connection)
                    if self._writer is None or self._writer.behind is None:
                        self._index.wait_for(at)
                    answers = self._searcher.answer(connection, at, question)
                break
            except ViewTooOld:  # the index was folded since the view was taken: take a newer one
                continue
        if score_threshold is None:
            return answers
        return [[match for match in found if match.score >= score_threshold] for found in answers]

    def thumbnail(self, id: str) -> bytes | None:
        checks.check_name(id, "Item id")
        with self._connections.reader() as connection:
            row = connection.execute(
                "SELECT jpeg FROM items LEFT JOIN thumbnails USING (rid) WHERE id = ?", [id]
            ).fetchone()
        if row is None:
            raise ItemNotFound(f"Collection {self.name!r} has no item {id!r}: list its items to see their ids.")
        return row[0]

    # ---- care

    def check(self, embedder: Embeds) -> None:
        self.spec.check(embedder, self.name)

    def info(self) -> CollectionInfo:
        with self._connections.reader() as connection:
            count = connection.execute("SELECT count(*) FROM items").fetchone()[0]
            durable = last_seq(connection)
        return CollectionInfo(self.name, self.spec, count, durable, self._index.seq, self._care.state, self._index.kind)

    def snapshot(self) -> None:
        self._writing()
        self._care.snapshot()

    def compact(self, progress: Progress = lambda done, total: None) -> None:
        writer = self._writing()
        writer.refuse_failed()
        self._care.compact(progress)
        with translated(self._path):
            writer.exclusively(give_back_room)

    def verify(self, progress: Progress = lambda done, total: None) -> VerifyReport:
        with self._connections.reader() as connection:
            verification.check_file(connection, self._path)
            damaged = verification.damaged_items(connection, self.spec, progress)
            total = connection.execute("SELECT count(*) FROM items").fetchone()[0]
        disagreements, recall = self._compared({item.rid for item in damaged})
        ids = tuple(item.id for item in damaged)
        return VerifyReport(total, ids, tuple(disagreements), tuple(self._missing()), recall)

    def _compared(self, damaged: set[int]) -> tuple[list[str], float]:
        """What the index finds against what an exhaustive search finds in the very same view of the catalog."""
        while True:
            try:
                with self._connections.reader() as connection:
                    ids, vectors = verification.choose(connection, self.spec, damaged)
                    question = verification.question_of(vectors, damaged)
                    at = last_seq(connection)
                    if self._writer is None or self._writer.behind is None:
                        self._index.wait_for(at)
                    # at once, before a fold makes the view too old; the pass over everything takes its time
                    found = self._searcher.answer(connection, at, question) if ids else []
                    return verification.exhaustive(connection, self.spec, ids, vectors, damaged).compare(found)
            except ViewTooOld:
                continue

    def repair(self, progress: Progress = lambda done, total: None) -> RepairReport:
        writer = self._writing()
        with self._connections.reader() as connection:
            verification.check_file(connection, self._path)
            damaged = verification.damaged_items(connection, self.spec, progress)
        kept_in = verification.write_down(self._lost, self._path.stem, damaged)
        # by their numbers: an id may mean a whole item again by now
        rids = [item.rid for item in damaged]
        gone = set(writer.submit(lambda connection, changes: delete_rows(connection, changes, rids)) if rids else ())
        self._care.rebuild()
        self._care.snapshot()
        return RepairReport(self.count(), tuple(item.id for item in damaged if item.rid in gone), kept_in)

    def close(self, *, keep: bool = True, dropped: bool = False) -> None:
        """Writes a snapshot if it is worth one, and lets go of the files.

        Args:
            keep: False: the files are going to be deleted, so nothing is written any more.
            dropped: for good, as who still holds the collection is told.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._care.close(keep=keep, dropped=dropped)
        finally:
            self._connections.close(dropped=dropped)
            if self._writer is not None:
                self._writer.close(dropped=dropped)
            self._connection.close()  # the last, so that SQLite can fold its log away
            self._index.clear()  # who still holds the closed collection need not hold its vectors

    # ---- inside

    def _writing(self) -> Writer:
        if self._writer is None:
            raise OpenedForReading
        return self._writer

    def _follow(self, connection: sqlite3.Connection) -> None:
        """Brings a read-only index up to what another process has committed."""
        if last_seq(connection) != self._index.seq:
            with self._refreshing:
                if last_seq(connection) < self._index.seq:  # an older view than another thread's: take a new one
                    connection.execute("COMMIT")
                    connection.execute("BEGIN")
                if last_seq(connection) != self._index.seq:
                    recovery.follow(connection, self._index, self._path.with_suffix(""))
            self._care.wake()

    def _missing(self) -> list[str]:
        if self._writer is not None:
            return self._writer.exclusively(lambda connection: verification.missing_items(connection, self._index))
        with self._refreshing, self._connections.reader() as connection:
            return verification.missing_items(connection, self._index)
