"""MilvusCollection: one collection in Milvus."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace as replace_fields
from itertools import islice
from typing import Any

import numpy as np

from nnclr_hub.errors import ItemNotFound, OpenedForReading, StoreError
from nnclr_hub.store.base import ById, Collection, Item, Match, Page, Progress, SearchOptions, Where
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.checks import check_ids, check_limit, check_name, check_options, check_queries
from nnclr_hub.store.edits import Edit, check_choice, check_expected, check_unchanged, each_editor, editor
from nnclr_hub.store.facets import Counts, Facet, check_facets, count_values, facet
from nnclr_hub.store.milvus import maintenance, search
from nnclr_hub.store.milvus.client import SLOW_TIMEOUT, WRITE_TIMEOUT, Connection
from nnclr_hub.store.milvus.names import encode
from nnclr_hub.store.milvus.rows import (
    SPEC_PROPERTY,
    about,
    in_requests,
    spec_to_text,
    to_item,
    to_requests,
    to_thumbnail,
    to_vector,
)
from nnclr_hub.store.milvus.where import Dialect, Plan, plan
from nnclr_hub.store.percentiles import RandomScores, RandomVectors, random_items
from nnclr_hub.store.reports import CollectionInfo, RepairReport, VerifyReport
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.where import EVERYTHING, check_key, passes, value_of

# rows per request: 64 KiB of metadata each make 32 MiB
ROWS = 500
# ids per request, and in all, from which items are sampled: Milvus has no random order
IDS, SAMPLED = 10_000, 100_000
# for which a number of items is used again, to notice what other clients add and delete
COUNT_SECONDS = 5.0


class MilvusCollection(Collection):
    """See `store.base.Collection` for what the methods promise. The differences are:

    - A request of more than 8 MiB is written in several steps, each of them atomic. If one fails, the error says how
      many items are stored; repeating the request stores the rest.
    - Reads see what this client has written before. They see writes of other clients within about a second.
    - The numbers of changes count what this client has written since it opened the collection.

    Args:
        name: our name, not Milvus's.
        spec: as it was created with.
        connection: shared by all collections of a store.
        read_only: refuse writes.
    """

    def __init__(self, name: str, spec: CollectionSpec, connection: Connection, *, read_only: bool = False) -> None:
        self.name = name
        self.spec = spec
        self.connection = connection
        self._read_only = read_only
        self._dialect = Dialect(lists=not connection.is_lite)
        self._counting = threading.Lock()
        self._changes = self._vector_changes = 0
        self._counted: tuple[int, float] | None = None  # number of items, and when it is to be counted again
        # Milvus guarantees that a session sees its upserts, but not its deletes, nor earlier items. After those, the
        # next read waits for everything that the server has accepted (Strong), which takes 0.2 s
        self._unseen = 1
        self._seen = 0
        self.random_scores = RandomScores(self)

    def __repr__(self) -> str:
        # without the number of items, for which it would have to ask the server
        mode = ", read-only" if self._read_only else ""
        return f"<MilvusCollection {self.name!r}: dim {self.spec.dim}, {self.spec.index} index{mode}>"

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
        return self._changed(stored, vectors=True)

    def delete(self, ids: Sequence[str] | None = None, *, where: Where | None = None) -> int:
        self.refuse_if_read_only()
        wanted, group = check_choice(ids, where)
        if wanted is None or group is not None:
            wanted = [row["id"] for row in self.scan(self.plan(where), ["id", "metadata"])]
        existing = 0
        for some in _batches(wanted):
            existing += len(self.query(_among(some), ["id"]))
            # all ids, not only those found: another client may just have added one
            self.call("delete", ids=some, timeout=WRITE_TIMEOUT)
            with self._counting:
                self._unseen += 1
        self._changed(existing, vectors=True)
        return existing

    def update_metadata(
        self,
        metadata: Mapping[str, Any],
        *,
        ids: Sequence[str] | None = None,
        where: Where | None = None,
        replace: bool = False,
        keep: Sequence[str] = (),
    ) -> int:
        self.refuse_if_read_only()
        edit = editor(metadata, replace=replace, keep=keep)
        wanted, _ = check_choice(ids, where)
        if wanted is None:
            wanted = [row["id"] for row in self.scan(self.plan(where), ["id", "metadata"])]
        return self._edit(wanted, edit)

    def update_each(self, metadata: ById, *, expected: ById | None = None, keep: Sequence[str] = ()) -> int:
        self.refuse_if_read_only()
        edit = each_editor(metadata, keep=keep)
        check_expected(expected, metadata)
        wanted, _ = check_choice(list(metadata), None)
        return self._edit(wanted or [], edit, expected)

    def _edit(self, wanted: list[str], edit: Edit, expected: ById | None = None) -> int:
        known = {id: row["metadata"] for id, row in self.rows(wanted, ["id", "metadata"]).items()}
        check_unchanged(expected, ((id, json.loads(text)) for id, text in known.items()))
        # all are checked before the first is written
        edits = {id: edit(id, json.loads(text)) for id, text in known.items()}
        edited = [id for id, text in edits.items() if json.loads(text) != json.loads(known[id])]
        stored = 0
        for some in _batches(edited):
            rows = self.rows(some, ["id", "vector", "metadata", "thumbnail", "crc"])
            for request in in_requests([{**rows[id], **about(edits[id])} for id in some if id in rows]):
                try:
                    self.call("upsert", request, timeout=WRITE_TIMEOUT)
                except StoreError as error:
                    error.args = (f"{error} The metadata of {stored} of {len(edited)} items are changed.",)
                    raise
                stored += len(request)
        self._changed(stored, vectors=False)
        return len(known)

    def change_indexed(self, keys: Sequence[str]) -> None:
        self.refuse_if_read_only()
        spec = replace_fields(self.spec, indexed=tuple(keys))
        for key in spec.indexed:
            check_key(key)
        properties = {SPEC_PROPERTY: spec_to_text(spec)}
        self.call("alter_collection_properties", properties=properties, timeout=SLOW_TIMEOUT)
        maintenance.index_facets(self.connection, self.name, spec.indexed, self.spec.indexed)
        self.spec = spec

    # ---- reading

    def facets(
        self, keys: Sequence[str], where: Where | None = None, limit: int = 10, *, bins: int = 10
    ) -> dict[str, Facet]:
        wanted = check_facets(keys, limit, bins)
        counts: dict[str, Counts] = {key: {} for key in wanted}
        items = dict.fromkeys(wanted, 0)
        for row in self.scan(self.plan(where), ["id", "metadata"]):
            metadata = json.loads(row["metadata"])
            for key in wanted:
                items[key] += count_values(counts[key], value_of(metadata, key))
        return {key: facet(key, items[key], counts[key], limit, bins) for key in wanted}

    def get(self, ids: Sequence[str]) -> list[Item]:
        wanted = check_ids(ids)
        found = self.rows(wanted, ["id", "vector", "metadata", "thumbnail"])
        return [to_item(found[id]) for id in wanted if id in found]

    def count(self, where: Where | None = None) -> int:
        wanted = self.plan(where)
        if not wanted.expression and wanted.exact:
            return self._count("")
        if wanted.exact and self._count(wanted.overflown) == 0:
            return self._count(wanted.expression)
        return sum(1 for _ in self.scan(wanted, ["id", "metadata"]))

    def scroll(
        self, cursor: str | None = None, limit: int = 100, where: Where | None = None, *, with_vector: bool = True
    ) -> Page:
        check_limit(limit)
        wanted = self.plan(where)
        after = "" if cursor is None else check_name(cursor, "Cursor")
        fields = ["id", "metadata", "vector"] if with_vector else ["id", "metadata"]
        rows = list(islice(self.scan(wanted, fields, after, limit + 1), limit + 1))
        items = [to_item(row) for row in rows[:limit]]
        return Page(items, items[-1].id if len(rows) > limit else None)

    def nearest(self, vectors: Sequence[np.ndarray] | np.ndarray, k: int, options: SearchOptions) -> list[list[Match]]:
        queries = check_queries(vectors, self.spec)
        check_options(options)
        return search.search(self, queries, k, options)

    def random_vectors(self) -> RandomVectors:
        changes = self._vector_changes, self._recount()
        ids: list[str] = []
        while len(ids) < SAMPLED:
            check_cancelled()
            page = self.query(f'id > "{ids[-1] if ids else ""}"', ["id"], IDS)
            ids += [row["id"] for row in page]
            if len(page) < IDS:
                break
        wanted = [ids[place] for place in random_items(len(ids), self.spec.dim)]
        vectors: list[np.ndarray] = []
        for some in _batches(wanted):
            check_cancelled()
            vectors += [to_vector(row) for row in self.query(_among(some), ["vector"])]
        return RandomVectors(np.array(vectors, np.float32).reshape(-1, self.spec.dim), changes[1], changes)

    def vector_changes(self) -> tuple[int, ...]:
        with self._counting:
            counted = self._counted
            if counted is not None and time.monotonic() >= counted[1]:
                self._counted = counted[0], time.monotonic() + COUNT_SECONDS  # for other threads, while this one counts
                counted = None
        return self._vector_changes, self._recount() if counted is None else counted[0]

    def thumbnail(self, id: str) -> bytes | None:
        found = self.rows([check_name(id, "Item id")], ["id", "thumbnail"])
        if id not in found:
            raise ItemNotFound(f"Collection {self.name!r} has no item {id!r}.")
        return to_thumbnail(found[id]["thumbnail"])

    # ---- state and maintenance
    def info(self) -> CollectionInfo:
        state = "read-only: opened read-only" if self._read_only else "ready"
        index = maintenance.index_kind(self)
        return CollectionInfo(self.name, self.spec, self.count(), self._changes, self._changes, state, index)

    def snapshot(self) -> None:
        """Let Milvus seal and store what it holds in memory (`flush`)."""
        self.refuse_if_read_only()
        self.call("flush", timeout=SLOW_TIMEOUT)

    def compact(self, progress: Progress = lambda done, total: None) -> None:
        self.refuse_if_read_only()
        maintenance.compact(self)
        progress(1, 1)  # Milvus reports no progress

    def verify(self, progress: Progress = lambda done, total: None) -> VerifyReport:
        return maintenance.verify(self, progress)

    def repair(self, progress: Progress = lambda done, total: None) -> RepairReport:
        self.refuse_if_read_only()
        return maintenance.repair(self, progress)

    # ---- for search.py and maintenance.py

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of pymilvus's client on this collection."""
        return self.connection.call(method, encode(self.name), *args, **options)

    def read(self, method: str, **options: Any) -> Any:
        """Call a reading method, which sees everything that this client has written."""
        unseen = self._unseen
        level = "Strong" if unseen > self._seen else "Session"
        answer = self.call(method, consistency_level=level, **options)
        with self._counting:
            self._seen = max(self._seen, unseen)
        return answer

    def query(self, expression: str, fields: list[str], limit: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of an expression; with a limit, the first ones in the order of their ids."""
        options: dict[str, Any] = {} if limit is None else {"limit": limit}
        if limit is not None:  # makes the server return the first rows; Milvus Lite has another name for it
            options |= {"iterator": "True"} if self.connection.is_lite else {"reduce_stop_for_best": "True"}
        return list(self.read("query", filter=expression, output_fields=fields, **options))

    def rows(self, ids: Sequence[str], fields: list[str]) -> dict[str, dict[str, Any]]:
        """Return columns of the items with these ids that exist, by id."""
        wanted = list(dict.fromkeys(ids))
        return {row["id"]: row for some in _batches(wanted) for row in self.query(_among(some), fields)}

    def plan(self, where: Where | None) -> Plan:
        """Compile a filter."""
        return plan(where, self._dialect)

    def scan(self, wanted: Plan, fields: list[str], after: str = "", hint: int = ROWS) -> Iterator[dict[str, Any]]:
        """Yield every row that passes the filter, in the order of ids.

        Args:
            wanted: the plan of the filter.
            fields: columns, including metadata if there is a filter.
            after: start after this id.
            hint: how many rows the caller expects to use.
        """
        size = min(ROWS, hint)
        while True:
            behind = f'(id > "{after}")'
            expression = f"{behind} and {wanted.superset}" if wanted.superset else behind
            rows = self.query(expression, fields, size)
            for row in rows:
                if wanted.group == EVERYTHING or passes(wanted.group, row["id"], json.loads(row["metadata"])):
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

    def _recount(self) -> int:
        items = self._count("")
        with self._counting:
            self._counted = items, time.monotonic() + COUNT_SECONDS
        return items

    def _changed(self, items: int, *, vectors: bool) -> int:
        with self._counting:
            self._changes += items
            self._vector_changes += items if vectors else 0
            return self._changes

    def renamed(self, name: str) -> None:
        """Take a new name, under which Milvus's session has seen nothing yet."""
        self.name = name
        self.refresh()

    def refresh(self) -> None:
        """Make the next read see everything that any client has written so far."""
        with self._counting:
            self._unseen += 1


def _batches(ids: list[str]) -> Iterator[list[str]]:
    return (ids[start : start + ROWS] for start in range(0, len(ids), ROWS))


def _among(ids: Sequence[str]) -> str:
    """Return an expression for items by ids, which are checked and so contain nothing that needs an escape."""
    return f"id in [{', '.join(json.dumps(id) for id in ids)}]"
