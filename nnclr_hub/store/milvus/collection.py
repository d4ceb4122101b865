"""MilvusCollection: one collection in Milvus."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace as replace_fields
from itertools import islice
from typing import Any

import numpy as np

from nnclr_hub.errors import InvalidRequest, ItemNotFound, OpenedForReading, StoreError, StoreUnreachable
from nnclr_hub.store.base import ById, Collection, Item, Match, Page, Progress, SearchOptions, Where
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.checks import check_ids, check_k, check_limit, check_name, check_options, check_queries
from nnclr_hub.store.edits import Edit, check_choice, check_expected, check_unchanged, each_editor, editor
from nnclr_hub.store.facets import Counts, Facet, check_facets, count_values, facet
from nnclr_hub.store.milvus import rows
from nnclr_hub.store.milvus.connection import SLOW_TIMEOUT, WRITE_TIMEOUT, Connection, encode
from nnclr_hub.store.percentiles import RandomScores, RandomVectors, random_items
from nnclr_hub.store.reports import CollectionInfo, RepairReport, VerifyReport
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.where import check_key, parse, value_of

log = logging.getLogger(__name__)

# items per request: 64 KiB of metadata each make 32 MiB
BATCH = 500
# items that `facets` and `exact` may read, because Milvus cannot do their work
MAX_READ = 100_000
# items that pass a filter and are compared here, where Milvus's index returns fewer than k
FEW = 2000
# ids per request, and in all, from which items are sampled: Milvus has no random order
IDS, SAMPLED = 10_000, 100_000
COUNT_SECONDS = 5.0  # for which a number of items is used again, to notice what other clients add and delete
NEIGHBORS, QUERIES = 10, 32  # of the recall estimate
MAX_K = 16_384  # Milvus's limit
MATCHES = 1000  # per request that includes their metadata
TIES = 8  # further matches per query, so that the order of equally near ones does not depend on k
TOLERANCE = 1e-3
ALL_COLUMNS = ["id", "vector", "metadata", "terms", "ranges", "thumbnail"]


class MilvusCollection(Collection):
    """See `store.base.Collection` for what the methods promise. The differences are:

    - Filters name declared keys (`spec.indexed`) only, and Milvus evaluates them; see `rows.expression`.
    - `facets`, and `exact` without a flat index, refuse more than 100,000 items. `verify` reads a sample.
    - A request of more than 8 MiB is written in several steps, each of them atomic. If one fails, the error says how
      many items are stored; repeating the request stores the rest.
    - Reads see what this client has written before. They see writes of other clients within about a second.
    - The numbers of changes count what this client has written since it opened the collection.

    Args:
        name: our name, not Milvus's.
        spec: as it was created with.
        connection: shared by all collections of a store.
        undeclared: keys of `spec.indexed` that are not declared for all items; see `change_indexed`.
        read_only: refuse writes.
    """

    def __init__(
        self,
        name: str,
        spec: CollectionSpec,
        connection: Connection,
        *,
        undeclared: Sequence[str] = (),
        read_only: bool = False,
    ) -> None:
        self.name = name
        self.spec = spec
        self.connection = connection
        self.undeclared = tuple(undeclared)
        self._read_only = read_only
        self._index = rows.index_of(spec, connection)
        self._writing = threading.RLock()  # an edit reads and writes whole rows, between which no other write may come
        self._counting = threading.Lock()
        self._changes = self._vector_changes = 0
        self._counted: tuple[int, float] | None = None  # number of items, and when it is to be counted again
        self._recall: tuple[float, int] | None = None  # estimate, and the number of items it was made at
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
        self._refuse_if_read_only()
        with self._writing:  # also while rows are made: `change_indexed` must not come in between
            stored = self._upsert(rows.to_requests(items, self.spec), f"{len(items)} items are stored")
        return self._changed(stored, vectors=True)

    def delete(self, ids: Sequence[str] | None = None, *, where: Where | None = None) -> int:
        self._refuse_if_read_only()
        existing = 0
        with self._writing:
            for batch in _batches(self._select(ids, where)):
                existing += len(self._query(_among(batch), ["id"]))
                # all ids, not only the existing ones: another client may just have added one
                self._call("delete", ids=batch, timeout=WRITE_TIMEOUT)
                self.refresh()
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
        self._refuse_if_read_only()
        edit = editor(metadata, replace=replace, keep=keep)
        with self._writing:
            return self._edit(self._select(ids, where), edit)

    def update_each(self, metadata: ById, *, expected: ById | None = None, keep: Sequence[str] = ()) -> int:
        self._refuse_if_read_only()
        edit = each_editor(metadata, keep=keep)
        check_expected(expected, metadata)
        with self._writing:
            return self._edit(check_ids(list(metadata)), edit, expected)

    def change_indexed(self, keys: Sequence[str]) -> None:
        """Declare these metadata keys for filters, and no others.

        Every item that has a new key is written again. If that is interrupted, repeat the call: until it succeeds,
        filters refuse the new keys. A write of another client to the same item at the same moment may be lost.
        """
        self._refuse_if_read_only()
        spec = replace_fields(self.spec, indexed=tuple(keys))
        for key in spec.indexed:
            check_key(key)
        with self._writing:
            before = set(self.spec.indexed) - set(self.undeclared)
            self._describe(spec, [key for key in spec.indexed if key not in before])
        if not self.undeclared:
            return
        cursor = ""
        while True:
            check_cancelled()
            with self._writing:
                page = self._query(f'id > "{cursor}"', ALL_COLUMNS, BATCH)
                renewed = [(row, self._rewritten(row, row["metadata"])) for row in page]
                self._upsert(rows.in_requests([new for row, new in renewed if set(new["terms"]) - set(row["terms"])]))
            if len(page) < BATCH:
                break
            cursor = page[-1]["id"]
        self._describe(spec, ())

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
        names, expression = check_facets(keys, limit, bins), self._expression(where)
        self._refuse_many("Counting values", expression, "give a filter that fewer items pass")
        counts: dict[str, Counts] = {key: {} for key in names}
        items = dict.fromkeys(names, 0)
        for row in self._scan(expression, ["id", "metadata"]):
            metadata = json.loads(row["metadata"])
            for key in names:
                items[key] += count_values(counts[key], [value_of(metadata, key)])
        return {key: facet(key, items[key], counts[key], limit, bins) for key in names}

    def scroll(
        self, cursor: str | None = None, limit: int = 100, where: Where | None = None, *, with_vector: bool = True
    ) -> Page:
        check_limit(limit)
        after = "" if cursor is None else check_name(cursor, "Cursor")
        fields = ["id", "metadata", "vector"] if with_vector else ["id", "metadata"]
        page = list(islice(self._scan(self._expression(where), fields, after, limit + 1), limit + 1))
        items = [rows.to_item(row) for row in page[:limit]]
        return Page(items, items[-1].id if len(page) > limit else None)

    def nearest(self, vectors: Sequence[np.ndarray] | np.ndarray, k: int, options: SearchOptions) -> list[list[Match]]:
        queries = check_queries(vectors, self.spec)
        check_options(options)
        k, expression = check_k(k), self._expression(options.where)
        if options.exact and self._index.effort:
            self._refuse_many("An exact search", expression, "give a filter that fewer items pass, or more effort")
            answers = self._exhaustive(queries, k, expression)
        else:
            answers = self._indexed(queries, k, expression, options)
        if options.score_threshold is not None:
            answers = [[match for match in matches if match.score >= options.score_threshold] for matches in answers]
        if not options.with_vector:
            answers = [[replace_fields(match, vector=None) for match in matches] for matches in answers]
        return answers

    def random_vectors(self) -> RandomVectors:
        changes = self._vector_changes, self._recount()
        return RandomVectors(self._sample(SAMPLED), changes[1], changes)

    def vector_changes(self) -> tuple[int, ...]:
        with self._counting:
            counted = self._counted
            if counted is not None and time.monotonic() >= counted[1]:
                self._counted = counted[0], time.monotonic() + COUNT_SECONDS  # for other threads, while this one counts
                counted = None
        return self._vector_changes, self._recount() if counted is None else counted[0]

    def thumbnail(self, id: str) -> bytes | None:
        stored = self._rows([check_name(id, "Item id")], ["id", "thumbnail"])
        if id not in stored:
            raise ItemNotFound(f"Collection {self.name!r} has no item {id!r}.")
        return rows.to_thumbnail(stored[id]["thumbnail"])

    # ---- state and maintenance

    def info(self) -> CollectionInfo:
        count = self.count()
        return replace_fields(self.listed(count), recall_estimate=self._recall_estimate(count))

    def listed(self, count: int | None = None) -> CollectionInfo:
        """Return `info` by one request; a count may lag by a second, and the recall is only given if it is known."""
        state = "read-only: opened read-only" if self._read_only else "ready"
        known = self._recall[0] if self._recall else None
        count, index = self._count("", "Session") if count is None else count, self._index.kind.lower()
        return CollectionInfo(self.name, self.spec, count, self._changes, self._changes, state, index, known)

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
        """Read a sample of at most 1,000 vectors back, measure the recall, and compare scores with the vectors.

        Milvus checks its own files, so `damaged` and `missing` stay empty.
        """
        sample = self._sample(IDS)
        recall, found = self._measured(sample)
        wrong: list[str] = []
        for query, matches in zip(sample, found, strict=False):
            vectors = np.array([match.vector for match in matches], np.float32).reshape(-1, self.spec.dim)
            scores = _scores(query[None], vectors, self.spec)[0]
            pairs = zip(matches, scores, strict=True)
            wrong += [match.id for match, score in pairs if abs(match.score - score) > _within(score)]
        progress(len(sample), len(sample))
        return VerifyReport(len(sample), (), tuple(sorted(set(wrong))), (), recall)

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

    def refresh(self) -> None:
        """Make the next read see everything that any client has written so far."""
        with self._counting:
            self._unseen += 1

    # ---- writing, inside

    def _refuse_if_read_only(self) -> None:
        if self._read_only:
            raise OpenedForReading

    def _select(self, ids: Sequence[str] | None, where: Where | None) -> list[str]:
        """Return the ids of items that are chosen by ids or by a filter."""
        chosen, group = check_choice(ids, where)
        if chosen is None or group is not None:
            chosen = [row["id"] for row in self._scan(self._expression(where), ["id"])]
        return chosen

    def _edit(self, ids: list[str], edit: Edit, expected: ById | None = None) -> int:
        before = {id: row["metadata"] for id, row in self._rows(ids, ["id", "metadata"]).items()}
        check_unchanged(expected, ((id, json.loads(text)) for id, text in before.items()))
        # all are checked before the first is written
        edits = {id: edit(id, json.loads(text)) for id, text in before.items()}
        for id, text in edits.items():
            rows.metadata_columns(id, text, self.spec)
        edited = [id for id, text in edits.items() if json.loads(text) != json.loads(before[id])]
        stored = 0
        for batch in _batches(edited):
            current = self._rows(batch, ALL_COLUMNS)
            requests = rows.in_requests([self._rewritten(current[id], edits[id]) for id in batch if id in current])
            stored += self._upsert(requests, f"{len(edited)} items are changed", stored)
        self._changed(stored, vectors=False)
        return len(before)

    def _rewritten(self, row: Mapping[str, Any], text: str) -> dict[str, Any]:
        """Return a stored row for an upsert with other metadata, whose JSON is given."""
        vector = rows.stored_vector(rows.to_vector(row), self.spec)
        return {**row, "vector": vector, **rows.metadata_columns(row["id"], text, self.spec)}

    def _upsert(self, requests: Iterator[list[dict[str, Any]]], done: str = "", stored: int = 0) -> int:
        """Write requests; return the number of their items. An error says how many were done."""
        begun = stored
        for request in requests:
            try:
                self._call("upsert", request, timeout=WRITE_TIMEOUT)
            except StoreError as error:
                if stored and done:
                    error.args = (f"{error} The first {stored} of {done}.",)
                raise
            stored += len(request)
        return stored - begun

    def _describe(self, spec: CollectionSpec, undeclared: Sequence[str]) -> None:
        properties = {rows.SPEC_PROPERTY: rows.spec_to_text(spec, undeclared)}
        self._call("alter_collection_properties", properties=properties, timeout=SLOW_TIMEOUT)
        self.spec, self.undeclared = spec, tuple(undeclared)

    def _changed(self, items: int, *, vectors: bool) -> int:
        with self._counting:
            self._changes += items
            self._vector_changes += items if vectors else 0
            return self._changes

    # ---- reading, inside

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        return self.connection.call(method, encode(self.name), *args, **options)

    def _read(self, method: str, level: str = "", **options: Any) -> Any:
        """Call a reading method, which sees everything that this client has written unless a level is given."""
        unseen = self._seen if level else self._unseen
        level = level or ("Strong" if unseen > self._seen else "Session")
        answer = self._call(method, consistency_level=level, **options)
        with self._counting:
            self._seen = max(self._seen, unseen)
        return answer

    def _expression(self, where: Where | None) -> str:
        declared = [key for key in self.spec.indexed if key not in self.undeclared]
        return rows.expression(parse(where), declared, self.name)

    def _query(self, expression: str, fields: list[str], limit: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of an expression; with a limit, the first ones in the order of their ids."""
        options: dict[str, Any] = {}
        if limit is not None:  # makes the server return the first rows; Milvus Lite has another name for it
            option = "iterator" if self.connection.is_lite else "reduce_stop_for_best"
            options = {"limit": limit, option: "True"}
        return list(self._read("query", filter=expression, output_fields=fields, **options))

    def _rows(self, ids: Sequence[str], fields: list[str]) -> dict[str, dict[str, Any]]:
        """Return columns of the items with these ids that exist, by id."""
        unique = list(dict.fromkeys(ids))
        return {row["id"]: row for batch in _batches(unique) for row in self._query(_among(batch), fields)}

    def _scan(self, expression: str, fields: list[str], after: str = "", hint: int = BATCH) -> Iterator[dict[str, Any]]:
        """Yield the rows of an expression in the order of their ids, after an id; the caller uses about `hint`."""
        size = min(BATCH, hint)
        while True:
            check_cancelled()
            behind = f'(id > "{after}")'
            page = self._query(f"{behind} and {expression}" if expression else behind, fields, size)
            yield from page
            if len(page) < size:
                return
            after, size = page[-1]["id"], BATCH

    def _count(self, expression: str, level: str = "") -> int:
        return int(self._read("query", level, filter=expression, output_fields=["count(*)"])[0]["count(*)"])

    def _recount(self) -> int:
        items = self._count("")
        with self._counting:
            self._counted = items, time.monotonic() + COUNT_SECONDS
        return items

    def _refuse_many(self, what: str, expression: str, instead: str) -> None:
        items = self._count(expression)
        if items > MAX_READ:
            raise InvalidRequest(
                f"{what} in Milvus reads every item, and {self.name!r} has {items:,}, more than {MAX_READ:,} items; "
                f"{instead}."
            )

    def _indexed(self, queries: np.ndarray, k: int, expression: str, options: SearchOptions) -> list[list[Match]]:
        """Return the matches that Milvus's index finds."""
        # of compressed vectors, more candidates are compared exactly
        limit = k + TIES if self._index.lossless else min(MAX_K, 4 * k + 64)
        fields = ["metadata"] if self._index.lossless and not options.with_vector else ["metadata", "vector"]
        whole = limit <= MATCHES
        params = self._index.search_params(self.spec, limit, options.effort, filtered=bool(expression))
        answers: list[list[Match]] = []
        for queries_at_once in _batches(list(queries), max(1, MATCHES // limit)):
            results = self._read(
                "search",
                data=[rows.stored_vector(query, self.spec) for query in queries_at_once],
                anns_field="vector",
                limit=limit,
                filter=expression,
                output_fields=fields if whole else [],
                search_params=params,
            )
            for query, hits in zip(queries_at_once, results, strict=True):
                distances = {hit["id"]: hit["distance"] for hit in hits}
                entities = (
                    {hit["id"]: hit["entity"] for hit in hits}
                    if whole
                    else self._rows(list(distances), ["id", *fields])
                )
                answers.append(self._matches(query, entities, distances)[:k])
        least = min(map(len, answers), default=k)
        if expression and self._index.effort and least < k and least < self._count(expression) <= FEW:
            # Milvus searches items that it has just stored in a separate index, which returns too few of them
            return self._exhaustive(queries, k, expression)
        return answers

    def _matches(self, query: np.ndarray, entities: Mapping[str, Any], distances: Mapping[str, float]) -> list[Match]:
        """Return rows by id as matches, the best first; those deleted since the search are not in `entities`."""
        vectors = {id: rows.to_vector(row) for id, row in entities.items() if "vector" in row}
        if entities and not self._index.lossless:
            scores = _scores(query[None], np.stack(list(vectors.values())), self.spec)[0].tolist()
        elif self.spec.metric == "l2":  # Milvus returns the square
            scores = [-float(np.sqrt(max(0.0, distances[id]))) for id in entities]
        else:
            scores = [float(distances[id]) for id in entities]
        pairs = zip(entities.items(), scores, strict=True)
        made = [Match(id, score, json.loads(row["metadata"]), vectors.get(id)) for (id, row), score in pairs]
        return sorted(made, key=lambda match: (-match.score, match.id))

    def _exhaustive(self, queries: np.ndarray, k: int, expression: str) -> list[list[Match]]:
        """Return the true k nearest, by reading every item that passes."""
        ids: list[str] = []
        texts: list[str] = []
        vectors: list[np.ndarray] = []
        for row in self._scan(expression, ["id", "vector", "metadata"]):
            ids.append(row["id"])
            texts.append(row["metadata"])
            vectors.append(rows.to_vector(row))
        if not ids:
            return [[] for _ in queries]
        every = np.stack(vectors)
        return [
            # a stable order: equally near ones by id, as they were read
            [
                Match(ids[i], float(scores[i]), json.loads(texts[i]), every[i])
                for i in np.argsort(-scores, kind="stable")[:k]
            ]
            for scores in _scores(queries, every, self.spec)
        ]

    def _sample(self, most: int) -> np.ndarray:
        """Return vectors (m, D) float32 of at most 1,000 random ones of the first `most` items."""
        ids: list[str] = []
        while len(ids) < most:
            check_cancelled()
            page = self._query(f'id > "{ids[-1] if ids else ""}"', ["id"], min(IDS, most))
            ids += [row["id"] for row in page]
            if len(page) < IDS:
                break
        vectors: list[np.ndarray] = []
        for batch in _batches([ids[place] for place in random_items(len(ids), self.spec.dim)]):
            check_cancelled()
            vectors += [rows.to_vector(row) for row in self._query(_among(batch), ["vector"])]
        return np.array(vectors, np.float32).reshape(-1, self.spec.dim)

    def _recall_estimate(self, items: int) -> float | None:
        """Return the share of the ten nearest that searches find; it is measured again when a tenth has changed."""
        if not self._index.effort:
            return 1.0
        if self._recall is None or abs(items - self._recall[1]) > self._recall[1] // 10:
            try:
                self._recall = self._measured(self._sample(IDS))[0], items
            except StoreUnreachable as error:  # a busy server should still report its state
                log.warning("the recall of %r cannot be measured: %s", self.name, error)
                return None
        return self._recall[0]

    def _measured(self, sample: np.ndarray) -> tuple[float, list[list[Match]]]:
        """Return the recall for 32 vectors of a sample (m, D), and their matches with vectors.

        The true neighbors are those that eight times the effort finds, or nearer ones in the sample.
        """
        queries = sample[:QUERIES]
        found = self.search_batch(queries, NEIGHBORS, with_vector=True)
        thorough = self.search_batch(queries, NEIGHBORS, effort=8 * self._index.default or None)
        hits = total = 0
        for query, matches, more in zip(queries, found, thorough, strict=True):
            near = -np.sort(-_scores(query[None], sample, self.spec)[0])[:NEIGHBORS]
            worst = max(float(near[-1]), more[-1].score if len(more) >= len(near) else -np.inf)
            # an equally near item in a neighbor's place is as good: copies of an image are equal
            hits += sum(match.score >= worst - _within(worst) / 10 for match in matches)
            total += len(near)
        return hits / total if total else 1.0, found


def _batches(values: list[Any], size: int = BATCH) -> Iterator[list[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _among(ids: Sequence[str]) -> str:
    """Return an expression for items by ids, which are checked and so contain nothing that needs an escape."""
    return f"id in {json.dumps(list(ids))}"


def _scores(queries: np.ndarray, vectors: np.ndarray, spec: CollectionSpec) -> np.ndarray:
    """Return scores (n, m) float32; a higher score is nearer."""
    if spec.metric != "l2":
        return queries @ vectors.T
    # the difference itself, one row at a time: the expanded square loses near neighbors to rounding
    return np.stack([-np.linalg.norm(vectors - query, axis=1) for query in queries])


def _within(score: float) -> float:
    return TOLERANCE * max(1.0, abs(score))
