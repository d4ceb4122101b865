"""Any sequence of operations against a dict and numpy, drawn and, when it fails, shortened by hypothesis."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from store.crash.small import LONG, open_small_store, repeated
from store.crash.world import scores

from nnclr_hub.errors import CollectionNotFound, ItemNotFound
from nnclr_hub.store.base import Item
from nnclr_hub.store.spec import CollectionSpec, IndexName

EXAMPLES = 6
DIM = 6
LABELS = ("cat", "dog", "catfish")
ids = st.integers(0, 80).map("i{}".format)
seeds = st.integers(0, 2**31)
# filter and what it means
FILTERS: list[tuple[dict | None, Any]] = [
    (None, lambda _: True),
    ({"must": [{"key": "label", "match": "cat"}]}, lambda m: m.get("label") == "cat"),
    ({"must": [{"key": "label", "prefix": "cat"}]}, lambda m: str(m.get("label", "")).startswith("cat")),
    ({"must": [{"key": "n", "range": {"gte": 3, "lt": 6}}]}, lambda m: 3 <= m["n"] < 6),
    ({"must_not": [{"key": "label", "in": ["cat", "dog"]}]}, lambda m: m.get("label") not in ("cat", "dog")),
    ({"must": [{"key": "label", "exists": False}]}, lambda m: "label" not in m),
    (
        {"should": [{"key": "n", "match": 1}, {"key": "label", "match": "dog"}]},
        lambda m: m["n"] == 1 or m.get("label") == "dog",
    ),
    ({"must": [{"key": "n", "match": 99}]}, lambda _: False),
]
filters = st.sampled_from(FILTERS)


class StoreMachine(RuleBasedStateMachine):
    """One collection; `truth` holds vector (as it is kept) and metadata by id."""

    index: IndexName = "flat"

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.truth: dict[str, tuple[np.ndarray, dict, bytes | None]] = {}
        self.aliases: dict[str, str] = {}
        self.wanted = self.found = 0

    @initialize(metric=st.sampled_from(["cosine", "dot", "l2"]), precision=st.sampled_from(["f32", "f16"]))
    def create(self, metric, precision):
        self.metric = metric
        self.kept_as = np.float16 if precision == "f16" else np.float32
        self.tolerance = 1e-2 if precision == "f16" else 1e-4
        self.store = open_small_store(self.folder)
        self.store.create("c", CollectionSpec(DIM, metric=metric, index=self.index, precision=precision))
        self.store.create("d", CollectionSpec(DIM))

    @property
    def collection(self):
        return self.store.get("c")

    # ---- changes

    @rule(batch=st.lists(ids, min_size=1, max_size=40), seed=seeds)
    def upsert(self, batch, seed):
        """New items and replacements; of an id twice in one request the last counts."""
        rng = np.random.default_rng(seed)
        items = []
        for id in batch:
            metadata = {"n": int(rng.integers(0, 9))} | (
                {} if rng.random() < 0.2 else {"label": LABELS[rng.integers(0, 3)]}
            )
            vector = rng.normal(size=DIM).astype(np.float32)
            items.append(Item(id, vector, metadata, rng.bytes(9) if rng.random() < 0.5 else None))
            kept = vector / np.linalg.norm(vector) if self.metric == "cosine" else vector
            self.truth[id] = kept.astype(self.kept_as).astype(np.float32), metadata, items[-1].thumbnail
        self.collection.upsert(items)

    @rule(batch=st.lists(ids, max_size=15))
    def delete(self, batch):
        assert self.collection.delete(batch) == len(self.truth.keys() & set(batch))
        for id in batch:
            self.truth.pop(id, None)

    @rule()
    def snapshot(self):
        self.collection.snapshot()

    @rule()
    def compact(self):
        self.collection.compact()

    @rule()
    def reopen(self):
        self.store.close()
        self.store = open_small_store(self.folder)

    @rule()
    def crash(self):
        """Continue with a copy of the folder of the open store."""
        copy = Path(tempfile.mkdtemp())
        shutil.copytree(self.folder, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*-shm"))
        self.store.close()
        shutil.rmtree(self.folder)
        self.folder = copy
        self.store = open_small_store(self.folder)

    @rule(alias=st.sampled_from(["now", "best"]), name=st.sampled_from(["c", "d"]))
    def alias(self, alias, name):
        self.store.alias(alias, name)
        self.aliases[alias] = name

    @rule(alias=st.sampled_from(["now", "best"]))
    def unalias(self, alias):
        if alias in self.aliases:
            self.store.unalias(alias)
            del self.aliases[alias]
        else:
            with pytest.raises(CollectionNotFound):
                self.store.unalias(alias)

    # ---- questions

    @rule(seed=seeds, k=st.sampled_from([1, 3, 10, 100]), where=filters, exact=st.booleans())
    def search(self, seed, k, where, exact):
        query = np.random.default_rng(seed).normal(size=DIM).astype(np.float32)
        found = self.collection.search(query, k, where[0], exact=exact, with_vector=True)
        self.check_matches(query, k, where, found, exact)

    @rule(seed=seeds, k=st.sampled_from([1, 5]), where=filters, rows=st.integers(1, 5))
    def search_batch(self, seed, k, where, rows):
        queries = np.random.default_rng(seed).normal(size=(rows, DIM)).astype(np.float32)
        for query, found in zip(queries, self.collection.search_batch(queries, k, where[0]), strict=True):
            self.check_matches(query, k, where, found, exact=False)

    @rule(seed=seeds)
    def search_with_threshold(self, seed):
        query = np.random.default_rng(seed).normal(size=DIM).astype(np.float32)
        everything = self.collection.search(query, 100, exact=True)
        if len(everything) > 1:
            limit = (everything[0].score + everything[-1].score) / 2
            some = self.collection.search(query, 100, exact=True, score_threshold=limit)
            assert [match.id for match in some] == [match.id for match in everything if match.score >= limit]

    def check_matches(self, query, k, where, found, exact):
        passing = {id: vector for id, (vector, metadata, _) in self.truth.items() if where[1](metadata)}
        assert len(found) == min(k, len(passing)), "fewer than there are"
        assert len({match.id for match in found}) == len(found)
        assert {match.id for match in found} <= passing.keys()
        assert [match.score for match in found] == sorted((match.score for match in found), reverse=True)
        if not found:
            return
        of_found = scores(np.stack([passing[match.id] for match in found]), query, self.metric)
        np.testing.assert_allclose([match.score for match in found], of_found, atol=self.tolerance)
        for match in found:
            assert dict(match.metadata) == self.truth[match.id][1]
            if match.vector is not None:
                np.testing.assert_allclose(match.vector, passing[match.id], atol=2e-3)
        best = np.sort(scores(np.stack(list(passing.values())), query, self.metric))[::-1][: len(found)]
        if exact or self.index == "flat":
            np.testing.assert_allclose([match.score for match in found], best, atol=self.tolerance)
        else:
            self.wanted += len(found)
            self.found += int((of_found >= best[-1] - self.tolerance).sum())

    @rule(where=filters)
    def count(self, where):
        assert self.collection.count(where[0]) == sum(where[1](m) for _, m, _ in self.truth.values())

    @rule(where=filters, limit=st.sampled_from([1, 7, 1000]), with_vector=st.booleans())
    def scroll(self, where, limit, with_vector):
        """Page by page; stops early if the pages are many."""
        wanted = sorted(id for id, (_, metadata, _) in self.truth.items() if where[1](metadata))[: 8 * limit]
        listed, cursor = [], None
        while len(listed) < len(wanted):
            page = self.collection.scroll(cursor, limit, where[0], with_vector=with_vector)
            listed += page.items
            cursor = page.cursor
            assert len(page.items) == limit or cursor is None
        assert [item.id for item in listed] == wanted
        for item in listed:
            assert item.vector.shape == ((DIM,) if with_vector else (0,))
            assert dict(item.metadata) == self.truth[item.id][1]

    @rule(batch=st.lists(ids, max_size=9))
    def get(self, batch):
        items = self.collection.get(batch)
        assert [item.id for item in items] == [id for id in batch if id in self.truth]
        for item in items:
            vector, metadata, thumbnail = self.truth[item.id]
            np.testing.assert_allclose(item.vector, vector, atol=2e-3)
            assert (dict(item.metadata), item.thumbnail) == (metadata, thumbnail)

    @rule(id=ids)
    def thumbnail(self, id):
        if id in self.truth:
            assert self.collection.thumbnail(id) == self.truth[id][2]
        else:
            with pytest.raises(ItemNotFound):
                self.collection.thumbnail(id)

    @precondition(lambda self: self.aliases)
    @rule()
    def get_by_alias(self):
        for alias, name in self.aliases.items():
            assert self.store.get(alias).count() == (len(self.truth) if name == "c" else 0)

    # ---- always

    @invariant()
    def numbers_agree(self):
        if hasattr(self, "store"):
            info = self.collection.info()
            assert info.count == len(self.truth)
            assert info.indexed_seq == info.durable_seq
            assert info.state == "ready" or info.state.startswith("building")  # in the background
            assert self.store.aliases() == self.aliases

    def teardown(self):
        try:
            if hasattr(self, "store"):
                assert self.collection.verify().ok
                assert self.found >= 0.9 * self.wanted, f"recall {self.found / self.wanted:.3f}"
                self.store.close()
        finally:
            shutil.rmtree(self.folder)


SLOW = [pytest.param(index, marks=pytest.mark.slow) for index in ("flat", "ivf")]


@pytest.mark.parametrize("index", ["hnsw", "ivf_pq", "auto", *SLOW])
def test_the_store_does_what_a_dict_and_numpy_do(index):
    machine = type("StoreMachine", (StoreMachine,), {"index": index})
    for _ in repeated(0.2):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=30,
                deadline=None,
                derandomize=not LONG,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
            ),
        )
