"""MilvusCollection: one collection in Milvus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace as replace_fields
from itertools import islice
from typing import Any

import numpy as np

from nnclr_hub.errors import InvalidRequest, ItemNotFound, OpenedForReading, StoreError
from nnclr_hub.store.base import ById, Collection, Item, Match, Page, Progress, SearchOptions, Where
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.checks import MAX_LIMIT, check_ids, check_name, check_queries, check_whole
from nnclr_hub.store.edits import Edit, check_choice, check_unchanged, each_editor, editor
from nnclr_hub.store.facets import Facet, check_facets
from nnclr_hub.store.items import canonical
from nnclr_hub.store.milvus import rows
from nnclr_hub.store.milvus.connection import SLOW_TIMEOUT, WRITE_TIMEOUT, Connection, encode
from nnclr_hub.store.percentiles import RandomScores, RandomVectors, random_items
from nnclr_hub.store.reports import CollectionInfo, RepairReport, VerifyReport
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.where import parse

BATCH = 500  # items per request: 64 KiB of metadata each make 32 MiB
IDS = 10_000  # from which items are sampled: Milvus has no random order, and returns at most 16,384 by one request
NEIGHBORS, QUERIES = 10, 32  # in `verify`
MAX_K = 16_384  # Milvus's limit
MATCHES = 1000  # per request with several queries
TIES = 8  # further matches per query, so that the order of equally near ones does not depend on k
TOLERANCE = 1e-3
ALL_COLUMNS = ["id", "vector", "metadata", "terms", "ranges", "thumbnail"]


class MilvusCollection(Collection):
    """See `store.base.Collection` for what the methods promise. The differences are:

    - Filters name declared keys (`spec.indexed`) only, and Milvus evaluates them; see `rows.expression`.
    - `facets`, `change_indexed`, and `exact` without a flat index are refused. `verify` reads a sample.
    - A request of more than 8 MiB is written in several steps, each of them atomic. If one fails, the error says how
      many items are stored; repeating the request stores the rest.
    - Reads see what this client has written before. They see writes of other clients within about a second.
    - The numbers of changes count what this client has written since it opened the collection.
    """

    keeps_changes = False

    def __init__(self, name: str, spec: CollectionSpec, connection: Connection, *, read_only: bool = False) -> None:
        self.name = name
        self.spec = spec
        self.connection = connection
        self._read_only = read_only
        self._index = rows.index_of(spec, connection)
        self._changes = self._vector_changes = self._vectors_seq = 0
        self._recall = None if self._index.effort else 1.0
        self.random_scores = RandomScores(self)

    def __repr__(self) -> str:
        # without the number of items, for which it would have to ask the server
        mode = ", read-only" if self._read_only else ""
        return f"<MilvusCollection {self.name!r}: dim {self.spec.dim}, {self.spec.index} index{mode}>"

    # ---- writing

    def upsert(self, items: Sequence[Item]) -> int:
        self._refuse_if_read_only()
        made = rows.to_rows(items, self.spec)
        with self.connection.writing:
            self._vector_changes += self._upsert(made, f"{len(made)} items are stored")
            self._vectors_seq = self._changes
            return self._changes

    def delete(self, ids: Sequence[str] | None = None, *, where: Where | None = None) -> int:
        self._refuse_if_read_only()
        existing = 0
        with self.connection.writing:
            for batch in _batches(self._select(ids, where)):
                existing += len(self._query(rows.among(batch), ["id"]))
                # all ids, not only the existing ones: another client may just have added one
                self._call("delete", ids=batch, timeout=WRITE_TIMEOUT)
            self.see_all()
            self._changes += existing
            self._vector_changes += existing
            self._vectors_seq = self._changes
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
        self._refuse_if_read_only()
        edit = editor(metadata, replace=replace, keep=keep)
        with self.connection.writing:
            return self._edit(self._select(ids, where), edit)

    def update_each(self, metadata: ById, *, expected: ById | None = None, keep: Sequence[str] = ()) -> int:
        self._refuse_if_read_only()
        edit = each_editor(metadata, expected=expected, keep=keep)
        with self.connection.writing:
            return self._edit(check_ids(list(metadata)), edit, expected)

    def change_indexed(self, keys: Sequence[str]) -> None:
        self._refuse_if_read_only()
        raise InvalidRequest(
            f"Collection {self.name!r} is in Milvus, where keys are declared when a collection is created. Export it, "
            "create another one with `--indexed KEY`, and import the export into that."
        )

    # ---- reading

    def get(self, ids: Sequence[str]) -> list[Item]:
        checked = check_ids(ids)
        stored = self._rows(checked, ["id", "vector", "metadata", "thumbnail"])
        return [rows.to_item(stored[id]) for id in checked if id in stored]

    def count(self, where: Where | None = None) -> int:
        return self._count(self._expression(where))

    def facets(
        self, keys: Sequence[str], where: Where | None = None, limit: int = 10, *, bins: int = 10
    ) -> dict[str, Facet]:
        check_facets(keys, limit, bins)
        self._expression(where)
        raise InvalidRequest("Milvus does not count the values of a key; use `count` with a filter for each value.")

    def scroll(
        self, cursor: str | None = None, limit: int = 100, where: Where | None = None, *, with_vector: bool = True
    ) -> Page:
        check_whole("limit", limit, MAX_LIMIT)
        after = "" if cursor is None else check_name(cursor, "Cursor")
        fields = ["id", "metadata", "vector"] if with_vector else ["id", "metadata"]
        page = list(islice(self._scan(self._expression(where), fields, after, limit + 1), limit + 1))
        items = [rows.to_item(row) for row in page[:limit]]
        return Page(items, items[-1].id if len(page) > limit else None)

    def nearest(self, vectors: Sequence[np.ndarray] | np.ndarray, k: int, options: SearchOptions) -> list[list[Match]]:
        queries = check_queries(vectors, self.spec)
        expression = self._expression(options.where)
        if options.exact and self._index.effort:
            raise InvalidRequest(
                f"Collection {self.name!r} has an index in Milvus, which compares with every item only if the index is "
                "flat; search with more effort, or create the collection with index='flat'."
            )
        answers = self._indexed(queries, k, expression, options)
        if options.score_threshold is not None:
            answers = [[match for match in matches if match.score >= options.score_threshold] for matches in answers]
        if not options.with_vector:
            answers = [[replace_fields(match, vector=None) for match in matches] for matches in answers]
        return answers

    def random_vectors(self) -> RandomVectors:
        changes = self.vector_changes()
        return RandomVectors(self._sample(), changes[1], changes)

    def vector_changes(self) -> tuple[int, ...]:
        return self._vector_changes, self._count("")  # other clients change the number of items

    def thumbnail(self, id: str) -> bytes | None:
        for item in self.get([check_name(id, "Item id")]):
            return item.thumbnail
        raise ItemNotFound(f"Collection {self.name!r} has no item {id!r}.")

    # ---- state and maintenance

    def info(self) -> CollectionInfo:
        state = "read-only: opened read-only" if self._read_only else "ready"
        index = self._index.kind.lower()
        seqs = self._changes, self._changes
        return CollectionInfo(
            self.name, self.spec, self._count(""), *seqs, state, index, self._recall, self._vectors_seq
        )

    def snapshot(self) -> None:
        """Let Milvus seal and store what it holds in memory (`flush`)."""
        self._refuse_if_read_only()
        self._call("flush", timeout=SLOW_TIMEOUT)

    def compact(self, progress: Progress = lambda done, total: None) -> None:
        """Let Milvus merge segments without deleted items, in the background."""
        self.snapshot()
        self._call("compact", timeout=SLOW_TIMEOUT)
        progress(1, 1)  # Milvus reports no progress

    def verify(self, progress: Progress = lambda done, total: None) -> VerifyReport:
        """Read a sample of at most 1,000 vectors back, and search for 32 of them with eight times the effort, too.

        Milvus checks its own files, so only the recall is measured.
        """
        sample = self._sample()
        found = self.search_each(sample[:QUERIES], NEIGHBORS)
        more = SearchOptions(effort=8 * self._index.default or None)
        thorough = self.search_each(sample[:QUERIES], NEIGHBORS, more)
        hits = 0
        for matches, best in zip(found, thorough, strict=True):
            # an equally near item in a neighbor's place is as good: copies of an image are equal
            least = best[-1].score - TOLERANCE * max(1.0, abs(best[-1].score)) if best else -np.inf
            hits += sum(match.score >= least for match in matches)
        self._recall = min(1.0, hits / max(1, sum(map(len, thorough)))) if len(sample) else 1.0
        progress(len(sample), len(sample))
        return VerifyReport(len(sample), (), (), (), self._recall)

    def repair(self, progress: Progress = lambda done, total: None) -> RepairReport:
        """Let Milvus build its index again; searches fail until it is built."""
        self._refuse_if_read_only()
        self._call("release_collection", timeout=SLOW_TIMEOUT)
        self._call("drop_index", "vector", timeout=SLOW_TIMEOUT)
        self.make_ready(wait=True)
        return RepairReport(self.count(), ())

    # ---- for MilvusStore

    def make_ready(self, *, wait: bool = False) -> None:
        """Ensure that the collection has its index and is loaded, also after a crash between those steps.

        Args:
            wait: until the index is built; without it, searches compare with every vector for a while.
        """
        if not self._call("list_indexes", "vector"):
            params = self.connection.pymilvus.MilvusClient.prepare_index_params()
            params.add_index("vector", **rows.build_params(self.spec, self.connection))
            sync = wait and not self.connection.is_lite  # which builds the index when it loads the collection
            self._call("create_index", params, timeout=SLOW_TIMEOUT, sync=sync)
        self._call("load_collection", timeout=SLOW_TIMEOUT)
        self.see_all()

    def see_all(self) -> None:
        """Make the next reads see everything that any client has written so far.

        Milvus guarantees that a session sees its upserts, but not its deletes, nor what was written before it began.
        A Strong read waits for everything that the server has accepted, which takes 0.2 s; Session reads after it see
        the same.
        """
        self._call("query", filter='id == ""', output_fields=["id"], consistency_level="Strong")

    # ---- writing, inside

    def _refuse_if_read_only(self) -> None:
        if self._read_only:
            raise OpenedForReading

    def _select(self, ids: Sequence[str] | None, where: Where | None) -> list[str]:
        chosen, _ = check_choice(ids, where)
        return [row["id"] for row in self._scan(self._expression(where), ["id"])] if chosen is None else chosen

    def _edit(self, ids: list[str], edit: Edit, expected: ById | None = None) -> int:
        before = {id: row["metadata"] for id, row in self._rows(ids, ["id", "metadata"]).items()}
        check_unchanged(expected, ((id, json.loads(text)) for id, text in before.items()))
        edits = {id: edit(id, json.loads(text)) for id, text in before.items()}
        # all are checked before the first is written
        columns = {id: rows.metadata_columns(id, text, self.spec) for id, text in edits.items()}
        edited = [id for id, text in edits.items() if not _equal(text, before[id])]
        stored = 0
        for batch in _batches(edited):
            made = [
                {**row, "vector": rows.stored_vector(rows.to_vector(row), self.spec), **columns[id]}
                for id, row in self._rows(batch, ALL_COLUMNS).items()
            ]
            stored += self._upsert(made, f"{len(edited)} items are changed", stored)
        return len(before)

    def _upsert(self, made: list[dict[str, Any]], done: str, stored: int = 0) -> int:
        """Write rows in requests that Milvus accepts; `stored` of those that `done` describes are stored already."""
        begun = stored
        while made:
            sizes = np.cumsum([rows.size_of(row) for row in made])
            count = max(1, int(np.searchsorted(sizes, rows.REQUEST, "right")))
            try:
                self._call("upsert", made[:count], timeout=WRITE_TIMEOUT)
            except StoreError as error:
                if stored:
                    error.args = (f"{error} The first {stored} of {done}.",)
                raise
            made, stored = made[count:], stored + count
            self._changes += count
        return stored - begun

    # ---- reading, inside

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        return self.connection.call(method, encode(self.name), *args, **options)

    def _expression(self, where: Where | None) -> str:
        return rows.expression(parse(where), self.spec.indexed, self.name)

    def _query(self, expression: str, fields: list[str], limit: int | None = None) -> list[dict[str, Any]]:
        options: dict[str, Any] = {}
        if limit is not None:  # makes the server return the first rows; Milvus Lite has another name for it
            option = "iterator" if self.connection.is_lite else "reduce_stop_for_best"
            options = {"limit": limit, option: "True"}
        return list(self._call("query", filter=expression, output_fields=fields, **options))

    def _rows(self, ids: Sequence[str], fields: list[str]) -> dict[str, dict[str, Any]]:
        unique = list(dict.fromkeys(ids))
        return {row["id"]: row for batch in _batches(unique) for row in self._query(rows.among(batch), fields)}

    def _scan(self, expression: str, fields: list[str], after: str = "", hint: int = BATCH) -> Iterator[dict[str, Any]]:
        size = min(BATCH, hint)
        while True:
            check_cancelled()
            behind = f'(id > "{after}")'
            page = self._query(f"{behind} and {expression}" if expression else behind, fields, size)
            yield from page
            if len(page) < size:
                return
            after, size = page[-1]["id"], BATCH

    def _count(self, expression: str) -> int:
        return int(self._call("query", filter=expression, output_fields=["count(*)"])[0]["count(*)"])

    def _indexed(self, queries: np.ndarray, k: int, expression: str, options: SearchOptions) -> list[list[Match]]:
        """Return the matches that Milvus's index finds."""
        # with compressed vectors, more candidates are compared exactly
        limit = k + TIES if self._index.lossless else min(MAX_K, 4 * k + 64)
        fields = ["metadata"] if self._index.lossless and not options.with_vector else ["metadata", "vector"]
        params = self._index.search_params(self.spec, limit, options.effort, filtered=bool(expression))
        answers: list[list[Match]] = []
        for queries_at_once in _batches(list(queries), max(1, MATCHES // limit)):
            results = self._call(
                "search",
                data=[rows.stored_vector(query, self.spec) for query in queries_at_once],
                anns_field="vector",
                limit=limit,
                filter=expression,
                output_fields=fields,
                search_params=params,
            )
            answers += [self._matches(query, hits)[:k] for query, hits in zip(queries_at_once, results, strict=True)]
        return answers

    def _matches(self, query: np.ndarray, hits: Sequence[Mapping[str, Any]]) -> list[Match]:
        vectors = [rows.to_vector(hit["entity"]) if "vector" in hit["entity"] else None for hit in hits]
        if hits and not self._index.lossless:
            stacked = np.array(vectors, np.float32)
            # the difference itself: the expanded square loses near neighbors to rounding
            scores = -np.linalg.norm(stacked - query, axis=1) if self.spec.metric == "l2" else stacked @ query
        else:
            scores = np.array([hit["distance"] for hit in hits])
            if self.spec.metric == "l2":  # Milvus returns the square
                scores = -np.sqrt(np.maximum(0.0, scores))
        made = [
            Match(hit["id"], score, json.loads(hit["entity"]["metadata"]), vector)
            for hit, score, vector in zip(hits, scores.tolist(), vectors, strict=True)
        ]
        return sorted(made, key=lambda match: (-match.score, match.id))

    def _sample(self) -> np.ndarray:
        ids = [row["id"] for row in self._query('id != ""', ["id"], IDS)]
        vectors: list[np.ndarray] = []
        for batch in _batches([ids[place] for place in random_items(len(ids), self.spec.dim)]):
            check_cancelled()
            vectors += [rows.to_vector(row) for row in self._query(rows.among(batch), ["vector"])]
        return np.array(vectors, np.float32).reshape(-1, self.spec.dim)


def _batches(values: list[Any], size: int = BATCH) -> Iterator[list[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _equal(one: str, other: str) -> bool:
    return canonical(json.loads(one)) == canonical(json.loads(other))
