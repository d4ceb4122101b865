"""MilvusCollection: one collection in Milvus."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from nnclr_hub.errors import ItemNotFound, OpenedForReading, StoreError
from nnclr_hub.store.base import CollectionInfo, Item, Match, Page, Progress, RepairReport, VerifyReport, Where
from nnclr_hub.store.checks import check_limit, check_name, check_vectors
from nnclr_hub.store.milvus import care, search
from nnclr_hub.store.milvus.client import SLOW_TIMEOUT, WRITE_TIMEOUT, Connection
from nnclr_hub.store.milvus.names import encode
from nnclr_hub.store.milvus.rows import to_item, to_requests, to_thumbnail
from nnclr_hub.store.milvus.where import Plan, passes, plan
from nnclr_hub.store.spec import CollectionSpec, Embeds

# rows a request: 64 KiB of metadata each make 32 MiB
ROWS = 500


class MilvusCollection:
    """See `store.base.Collection` for what the methods promise; what differs:

    A request of more than 8 MiB is written in several steps, each of them whole. If one fails, the sentence says how
    many items are stored; repeating the request stores the rest.
    Reads see what this client has written before; what other clients write they see within a second or so.
    The numbers of changes count what was acknowledged to this client since it opened the collection.

    Args:
        name: ours, not Milvus's.
        spec: as it was created with.
        connection: shared by all collections of a store.
        read_only: refuse writes.
    """

    def __init__(self, name: str, spec: CollectionSpec, connection: Connection, *, read_only: bool = False) -> None:
        self.name = name
        self.spec = spec
        self.connection = connection
        self._read_only = read_only
        self._counting = threading.Lock()
        self._changes = 0
        # Milvus tells a session when its upserts are visible, but not its deletes, nor what was there before: after
        # those the next read waits for everything that the server has accepted (Strong), which costs 0.2 s
        self._unseen = 1
        self._seen = 0

    # ---- writing

    def upsert(self, items: Sequence[Item]) -> int:
        self.refuse_if_read_only()
        stored = 0
        for request in to_requests(items, self.spec):
            try:
                self.call("upsert", request, timeout=WRITE_TIMEOUT)
            except StoreError as error:
                if stored:
                    error.args = (f"{error} The first {stored} of {len(items)} items are stored.",)
                raise
            stored += len(request)
        return self._changed()

    def delete(self, ids: Sequence[str]) -> int:
        self.refuse_if_read_only()
        wanted = list(dict.fromkeys(check_name(id, "Item id") for id in ids))
        there = 0
        for some in _batches(wanted):
            there += len(self.query(_among(some), ["id"]))
            # all of them, not only those that are seen: another client's may just have come
            self.call("delete", ids=some, timeout=WRITE_TIMEOUT)
            with self._counting:
                self._unseen += 1
        self._changed()
        return there

    # ---- reading

    def get(self, ids: Sequence[str]) -> list[Item]:
        wanted = [check_name(id, "Item id") for id in ids]
        found = self.rows(wanted, ["id", "vector", "metadata", "thumbnail"])
        return [to_item(found[id]) for id in wanted if id in found]

    def count(self, where: Where | None = None) -> int:
        wanted = plan(where, lists=not self.connection.is_lite)
        if not wanted.expression and wanted.exact:
            return self._count("")
        if wanted.exact and self._count(wanted.overflown) == 0:
            return self._count(wanted.expression)
        return sum(1 for _ in self.scan(wanted, where, ["id", "metadata"]))

    def scroll(
        self, cursor: str | None = None, limit: int = 100, where: Where | None = None, *, with_vector: bool = True
    ) -> Page:
        check_limit(limit)
        wanted = plan(where, lists=not self.connection.is_lite)
        after = "" if cursor is None else check_name(cursor, "Cursor")
        fields = ["id", "metadata", "vector"] if with_vector else ["id", "metadata"]
        rows = list(islice(self.scan(wanted, where, fields, after, limit + 1), limit + 1))
        items = [to_item(row) for row in rows[:limit]]
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
        query = check_vectors([vector], self.spec, lambda _: "the query")
        return search.search(self, query, k, where, exact, score_threshold, with_vector, effort)[0]

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
        queries = check_vectors(vectors, self.spec, lambda row: f"query {row}")
        return search.search(self, queries, k, where, exact, score_threshold, with_vector, effort)

    def thumbnail(self, id: str) -> bytes | None:
        found = self.rows([check_name(id, "Item id")], ["id", "thumbnail"])
        if id not in found:
            raise ItemNotFound(f"Collection {self.name!r} has no item {id!r}: list its items to see their ids.")
        return to_thumbnail(found[id]["thumbnail"])

    # ---- care

    def check(self, embedder: Embeds) -> None:
        self.spec.check(embedder, self.name)

    def info(self) -> CollectionInfo:
        state = "read-only: opened for reading" if self._read_only else "ready"
        index = care.index_kind(self)
        return CollectionInfo(self.name, self.spec, self.count(), self._changes, self._changes, state, index)

    def snapshot(self) -> None:
        """Has Milvus seal and store what it holds in memory (`flush`)."""
        self.refuse_if_read_only()
        self.call("flush", timeout=SLOW_TIMEOUT)

    def compact(self, progress: Progress = lambda done, total: None) -> None:
        self.refuse_if_read_only()
        care.compact(self)
        progress(1, 1)  # Milvus does not say how far it is

    def verify(self, progress: Progress = lambda done, total: None) -> VerifyReport:
        return care.verify(self, progress)

    def repair(self, progress: Progress = lambda done, total: None) -> RepairReport:
        self.refuse_if_read_only()
        return care.repair(self, progress)

    # ---- for search.py and care.py

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """A method of pymilvus's client on this collection."""
        return self.connection.call(method, encode(self.name), *args, **options)

    def read(self, method: str, **options: Any) -> Any:
        """A reading method, which sees all that this client has written."""
        unseen = self._unseen
        level = "Strong" if unseen > self._seen else "Session"
        answer = self.call(method, consistency_level=level, **options)
        with self._counting:
            self._seen = max(self._seen, unseen)
        return answer

    def query(self, expression: str, fields: list[str], limit: int | None = None) -> list[dict[str, Any]]:
        """The rows of an expression; with a limit the first ones in the order of their ids."""
        options: dict[str, Any] = {} if limit is None else {"limit": limit}
        if limit is not None:  # what makes a server return the first ones: Milvus Lite has another word for it
            options |= {"iterator": "True"} if self.connection.is_lite else {"reduce_stop_for_best": "True"}
        return list(self.read("query", filter=expression, output_fields=fields, **options))

    def rows(self, ids: Sequence[str], fields: list[str]) -> dict[str, dict[str, Any]]:
        """Columns of the items of these ids that exist, by id."""
        wanted = list(dict.fromkeys(ids))
        return {row["id"]: row for some in _batches(wanted) for row in self.query(_among(some), fields)}

    def scan(
        self, wanted: Plan, where: Where | None, fields: list[str], after: str = "", hint: int = ROWS
    ) -> Iterator[dict[str, Any]]:
        """Every row that passes the filter, in the order of ids.

        Args:
            wanted: the plan of `where`.
            fields: columns, metadata among them if there is a filter.
            after: begin behind this id.
            hint: how many the caller expects to take.
        """
        size = min(ROWS, hint)
        while True:
            behind = f'(id > "{after}")'
            expression = f"{behind} and {wanted.superset}" if wanted.superset else behind
            rows = self.query(expression, fields, size)
            for row in rows:
                if where is None or passes(where, json.loads(row["metadata"])):
                    yield row
            if len(rows) < size:
                return
            after = rows[-1]["id"]
            size = ROWS

    def refuse_if_read_only(self) -> None:
        if self._read_only:
            raise OpenedForReading

    # ---- inside

    def _count(self, expression: str) -> int:
        return int(self.read("query", filter=expression, output_fields=["count(*)"])[0]["count(*)"])

    def _changed(self) -> int:
        with self._counting:
            self._changes += 1
            return self._changes

    def renamed(self, name: str) -> None:
        """The store has given it another name, under which Milvus's session knows nothing yet."""
        self.name = name
        self.look_anew()

    def look_anew(self) -> None:
        """The next read sees all that any client has written so far."""
        with self._counting:
            self._unseen += 1


def _batches(ids: list[str]) -> Iterator[list[str]]:
    return (ids[start : start + ROWS] for start in range(0, len(ids), ROWS))


def _among(ids: Sequence[str]) -> str:
    """An expression for items by ids that have been checked, and hold nothing that needs an escape."""
    return f"id in [{', '.join(json.dumps(id) for id in ids)}]"
