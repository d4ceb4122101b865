"""EmbeddedCollection: one collection of an embedded store, catalog and index together."""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np

from nnclr_hub.errors import InvalidRequest, ItemNotFound, StoreReadOnly
from nnclr_hub.store import snapshots
from nnclr_hub.store.ann import AnnIndex
from nnclr_hub.store.base import (
    CollectionInfo,
    Embeds,
    Item,
    Match,
    Page,
    VerifyReport,
    Where,
    check_name,
    check_vector,
)
from nnclr_hub.store.catalog import connect, last_seq, quick_check, read_spec, reading, translated
from nnclr_hub.store.rows import MAX_IN, delete_row, insert_row, metadata_json, to_item, to_matches
from nnclr_hub.store.where import to_sql
from nnclr_hub.store.writer import Changes, Writer

MAX_LIMIT = 10_000
# changes since the last snapshot from which closing writes a new one; fewer are replayed faster
SNAPSHOT_AFTER = 1000
VERIFY_SAMPLE = 50


class EmbeddedCollection:
    """See `store.base.Collection` for what the methods promise.

    Args:
        name: in the root catalog.
        path: its SQLite file; index snapshots lie in the folder of the same stem.
        lost: where stray files are moved to.
        read_only: no writer thread; commits of another process are seen by the next call.
    """

    def __init__(self, name: str, path: Path, lost: Path, *, read_only: bool = False) -> None:
        self.name = name
        self._path = path
        self._folder = path.with_suffix("")
        self._read_only = read_only
        self._idle: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        self._refreshing = threading.Lock()
        self._closed = False
        connection = connect(path, read_only=read_only)
        with translated(path):
            self.spec = read_spec(connection)
            self._index = AnnIndex(self.spec)
            if not read_only:
                self._folder.mkdir(exist_ok=True)
                if not _take_clean_mark(connection):
                    quick_check(connection, path)
                snapshots.clear_leftovers(connection, self._folder, lost)
            self._seen = snapshots.recover(connection, self._index, self.spec, self._folder)
        self._writer = None if read_only else Writer(connection, self._index, path)
        self._connection = connection
        if read_only:
            self._idle.put(connection)

    # ---- writing

    def upsert(self, items: Sequence[Item]) -> int:
        writer = self._writing()
        rows = [
            (
                check_name(item.id, "Item id"),
                metadata_json(item),
                check_vector(item.vector, self.spec, f"item {item.id!r}"),
                item.thumbnail,
            )
            for item in items
        ]

        def apply(connection: sqlite3.Connection, changes: Changes) -> None:
            for id, metadata, vector, thumbnail in rows:
                delete_row(connection, changes, id)
                rid = insert_row(connection, id, metadata, vector, thumbnail)
                changes.came.append(rid)
                changes.vectors.append(vector)

        writer.submit(apply)
        return writer.durable_seq

    def delete(self, ids: Sequence[str]) -> int:
        wanted = [check_name(id, "Item id") for id in ids]

        def apply(connection: sqlite3.Connection, changes: Changes) -> int:
            return sum(delete_row(connection, changes, id) for id in wanted)

        return self._writing().submit(apply)

    # ---- reading

    def get(self, ids: Sequence[str]) -> list[Item]:
        found: dict[str, Item] = {}
        with self._reader() as connection:
            for start in range(0, len(ids), MAX_IN):
                chunk = list(ids[start : start + MAX_IN])
                rows = connection.execute(
                    "SELECT id, vector, metadata, jpeg FROM items JOIN vectors USING (rid) "
                    f"LEFT JOIN thumbnails USING (rid) WHERE id IN ({','.join('?' * len(chunk))})",
                    chunk,
                )
                found |= {row[0]: to_item(*row) for row in rows}
        return [found[id] for id in ids if id in found]

    def count(self, where: Where | None = None) -> int:
        sql, parameters = to_sql(where)
        with self._reader() as connection:
            return connection.execute(f"SELECT count(*) FROM items WHERE {sql}", parameters).fetchone()[0]

    def scroll(self, cursor: str | None = None, limit: int = 100, where: Where | None = None) -> Page:
        if not 1 <= limit <= MAX_LIMIT:
            raise InvalidRequest(f"limit={limit} is not possible: a page holds 1 to {MAX_LIMIT} items.")
        sql, parameters = to_sql(where)
        after = "" if cursor is None else check_name(cursor, "Cursor")
        with self._reader() as connection:
            rows = connection.execute(
                f"SELECT id, vector, metadata, NULL FROM items JOIN vectors USING (rid) WHERE id > ? AND {sql} "
                "ORDER BY id LIMIT ?",
                [after, *parameters, limit + 1],
            ).fetchall()
        items = [to_item(*row) for row in rows[:limit]]
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
    ) -> list[Match]:
        if k < 1:
            raise InvalidRequest(f"k={k} is not possible: ask for at least one neighbour.")
        query = check_vector(vector, self.spec, "the query")
        sql, parameters = to_sql(where)
        del exact  # a flat index is exact always
        with self._reader() as connection:
            among = None
            if where is not None:
                rows = connection.execute(f"SELECT rid FROM items WHERE {sql} ORDER BY rid", parameters)
                among = np.fromiter((row[0] for row in rows), np.int64)
            wanted = k
            while True:
                scores, rids = self._index.search(query, wanted, among)
                matches = to_matches(connection, scores, rids, k, with_vector)
                # rows that died since the index was asked leave a gap; ask for more to fill it
                if len(matches) == k or len(rids) < wanted:
                    break
                wanted *= 2
        return [match for match in matches if score_threshold is None or match.score >= score_threshold]

    def thumbnail(self, id: str) -> bytes | None:
        with self._reader() as connection:
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
        with self._reader() as connection:
            count = connection.execute("SELECT count(*) FROM items").fetchone()[0]
            durable = last_seq(connection)
        if self._writer is None:
            return CollectionInfo(self.name, self.spec, count, durable, self._seen, "ready")
        state = f"read-only: {self._writer.failure}" if self._writer.failure else "ready"
        return CollectionInfo(self.name, self.spec, count, durable, self._writer.indexed_seq, state)

    def snapshot(self) -> None:
        self._writing().exclusively(lambda connection: snapshots.write_snapshot(connection, self._index, self._folder))

    def verify(self) -> VerifyReport:
        with self._reader() as connection:
            rows = connection.execute(
                "SELECT id, vector, crc FROM items JOIN vectors USING (rid) ORDER BY rid"
            ).fetchall()
        damaged = tuple(id for id, blob, crc in rows if zlib.crc32(blob) != crc or len(blob) != 4 * self.spec.dim)
        whole = [(id, np.frombuffer(blob, "<f4")) for id, blob, _ in rows if id not in set(damaged)]
        disagreements = []
        step = max(1, len(whole) // VERIFY_SAMPLE)
        everything = np.stack([vector for _, vector in whole]) if whole else np.zeros((0, self.spec.dim))
        for id, vector in whole[::step]:
            found = self.search(vector, 1)
            if self.spec.metric == "l2":
                best = -float(np.linalg.norm(everything - vector, axis=1).min())
            else:
                best = float((everything @ vector).max())
            if not found or abs(found[0].score - best) > 1e-3 * max(1.0, abs(best)):
                disagreements.append(id)
        return VerifyReport(len(rows), damaged, tuple(disagreements))

    def close(self) -> None:
        """Writes a snapshot if it is worth one, and lets go of the files."""
        if self._closed:
            return
        self._closed = True
        while not self._idle.empty():  # the writer's goes last, so that SQLite can fold its log away
            self._idle.get_nowait().close()
        if self._writer is not None:
            self._writer.close()
            if self._writer.failure is None:
                with translated(self._path):
                    self._leave_clean(self._connection)
            self._connection.close()

    # ---- inside

    def _writing(self) -> Writer:
        if self._writer is None:
            raise StoreReadOnly(f"Collection {self.name!r} was opened for reading: open the store without read_only.")
        return self._writer

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """A connection in a read transaction, from the idle ones if there is one."""
        if self._closed:
            raise StoreReadOnly(f"Collection {self.name!r} is closed: open the store again.")
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = connect(self._path, read_only=True)
        try:
            with translated(self._path), reading(connection):
                if self._read_only:
                    self._catch_up(connection)
                yield connection
        finally:
            self._idle.put(connection)

    def _catch_up(self, connection: sqlite3.Connection) -> None:
        """Brings a read-only index up to what another process has committed."""
        with self._refreshing:
            last = last_seq(connection)
            if last > self._seen:
                if not snapshots.replay(connection, self._index, self.spec, self._seen):
                    snapshots.rebuild(connection, self._index, self.spec)
                self._seen = last

    def _leave_clean(self, connection: sqlite3.Connection) -> None:
        newest = connection.execute("SELECT max(seq) FROM snapshots").fetchone()[0] or 0
        if last_seq(connection) - newest >= SNAPSHOT_AFTER:
            snapshots.write_snapshot(connection, self._index, self._folder)
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('clean', '1')")


def _take_clean_mark(connection: sqlite3.Connection) -> bool:
    """Whether the last writer closed the file; until this one does, it counts as not closed."""
    return connection.execute("DELETE FROM meta WHERE key = 'clean'").rowcount == 1
