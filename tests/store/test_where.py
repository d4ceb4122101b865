"""Filters, edits of metadata and facets agree with a plain reading of them; bad filters are refused."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from store.filter_oracle import KEYS, Dice, counted, merged, passes, type_of

from nnclr_hub import EmbeddedStore
from nnclr_hub.errors import DeadlineExceeded
from nnclr_hub.store import open_store
from nnclr_hub.store.base import Collection, CollectionSpec, Item, VectorStore
from nnclr_hub.store.cancellation import cancellable
from nnclr_hub.store.settings import StoreSettings

SECONDS = float(os.environ.get("NNCLR_ORACLE_SECONDS", "120"))
OTHER = "of another writer"  # key of their metadata
# asked again and again, so that what is remembered of them must follow every change
STANDING = [
    {"must": [{"key": "label", "exists": True}]},
    {"should": [{"key": "tags", "contains": "a"}, {"key": "n", "range": {"gte": 1}}]},
    {"must_not": [{"key": "place", "geo": {"lat": 0, "lon": 0, "radius": 3e6}}, {"key": "label", "match": "x" * 130}]},
]


@pytest.fixture
def store(tmp_path):
    """A store in a folder."""
    with open_store(str(tmp_path / "store")) as opened:
        yield opened


class World:
    """A collection, and what it must contain, apart from the items of `writers`.

    Args:
        store: that has it.
        seed: of what is done.
    """

    def __init__(self, store: VectorStore, seed: int) -> None:
        self.dice = Dice(seed)
        self.collection: Collection = store.create(f"c{seed}", CollectionSpec(4, indexed=("label", "odd key'")))
        self.truth: dict[str, tuple[np.ndarray, dict]] = {}

    @contextmanager
    def writers(self, number: int) -> Iterator[None]:
        """Let threads write, edit and delete other items of the same collection."""
        stop = threading.Event()

        def write(seed: int) -> None:
            dice = Dice(seed)
            while not stop.wait(0.002):
                ids = [f"w{seed}-{dice.below(40)}" for _ in range(1 + dice.below(5))]
                self.collection.upsert(
                    [Item(id, dice.rng.normal(size=4), {**dice.metadata(), OTHER: seed}) for id in ids]
                )
                self.collection.update_metadata({"label": "mine"}, ids=ids)
                self.collection.delete(ids[:2])

        with ThreadPoolExecutor(number or 1) as pool:
            running = [pool.submit(write, seed) for seed in range(number)]
            try:
                yield
            finally:
                stop.set()
            for one in running:
                one.result()

    def step(self) -> None:
        """Change something at random."""
        dice, ids = self.dice, list(self.truth)
        kind = dice.below(9)
        if kind == 8:  # later filters are evaluated in the main part of an index
            self.collection.compact()
        elif kind < 3 or not ids:
            made = {f"i{dice.below(80)}": (dice.rng.normal(size=4), dice.metadata()) for _ in range(dice.below(30))}
            self.collection.upsert([Item(id, vector, about) for id, (vector, about) in made.items()])
            self.truth |= made
        elif kind == 3:
            gone = dice.some(ids, 5)
            assert self.collection.delete(gone) == len(set(gone))
            self._without(gone)
        elif kind == 4:
            where = {"must": [dice.condition(ids), dice.condition(ids)]}
            gone = self.passing(where)
            assert self.collection.delete(where=ours(where)) == len(gone)
            self._without(gone)
        elif kind == 5:
            self.collection.change_indexed(dice.some(["label", "n", "camera.model"]))
        else:
            self._edit(ids)

    def _edit(self, ids: list[str]) -> None:
        dice = self.dice
        patch = dice.metadata() | dict.fromkeys(dice.some(["label", "n", "tags"], 2))
        replace = dice.below(4) == 0
        where = dice.where(ids) if dice.below(2) else None
        chosen = dice.some(ids, 6) if where is None else self.passing(where)
        if where is None and dice.below(3) == 0:  # a patch for each
            patches = {id: dice.metadata() | patch for id in chosen}
            assert self.collection.update_each(patches) == len(patches)
            self.truth |= {id: (self.truth[id][0], merged(self.truth[id][1], one)) for id, one in patches.items()}
            return
        given = {"ids": chosen} if where is None else {"where": ours(where)}
        assert self.collection.update_metadata(patch, **given, replace=replace) == len(set(chosen))
        for id in chosen:
            vector, before = self.truth[id]
            self.truth[id] = vector, dict(patch) if replace else merged(before, patch)

    def _without(self, ids: list[str]) -> None:
        self.truth = {id: one for id, one in self.truth.items() if id not in ids}

    def passing(self, where: dict) -> list[str]:
        return sorted(id for id, (_, about) in self.truth.items() if passes(where, id, about))

    def check(self) -> None:
        """Ask one question in every way."""
        dice, collection = self.dice, self.collection
        where = dice.where(list(self.truth))
        want = self.passing(where)
        assert collection.count(ours(where)) == len(want), where
        listed, cursor = [], None
        while listed == [] or cursor is not None:
            page = collection.scroll(cursor, 7, ours(where), with_vector=False)
            listed.append(page.items)
            cursor = page.cursor
        items = [item for some in listed for item in some]
        assert [(item.id, item.metadata) for item in items] == [(id, self.truth[id][1]) for id in want], where
        query, k, offset = dice.rng.normal(size=4), 1 + dice.below(12), dice.below(4)
        scores = {id: float(_unit(self.truth[id][0]) @ _unit(query)) for id in want}
        best = sorted(want, key=lambda id: -scores[id])[offset : offset + k]
        assert [match.id for match in collection.search(query, k, ours(where), offset=offset)] == best, where
        self._check_facets(where, want)
        for standing in STANDING:
            matches = collection.search(query, 200, ours(standing))
            assert sorted(match.id for match in matches) == self.passing(standing), standing

    def _check_facets(self, where: dict, want: list[str]) -> None:
        for key, found in self.collection.facets(KEYS, ours(where), 1000).items():
            having, counts = counted([self.truth[id][1] for id in want], key)
            assert found.items == having, (key, where)
            assert {(type_of(value), value): number for value, number in found.values} == counts, (key, where)
            assert [number for _, number in found.values] == sorted(counts.values(), reverse=True)
            numbers = sum(number for (kind, _), number in counts.items() if kind == "number")
            assert sum(found.histogram.counts if found.histogram else [0]) == numbers


def ours(where: dict) -> dict:
    """Return the filter without the items of `World.writers`."""
    return {"must": [where] if where else [], "must_not": [{"key": OTHER, "exists": True}]}


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def test_everything_agrees_with_its_plain_reading(store):
    for seed in range(3):
        world = World(store, seed)
        with world.writers(seed):
            for _ in range(25):
                world.step()
                world.check()


@pytest.mark.slow
def test_everything_agrees_for_long(store):
    """NNCLR_ORACLE_SECONDS (120) of it, with none to three other writers."""
    end, seed = time.monotonic() + SECONDS, int(os.environ.get("NNCLR_ORACLE_SEED", "1000"))
    while time.monotonic() < end:
        world = World(store, seed)
        with world.writers(seed % 4):
            for _ in range(60):
                world.step()
                world.check()
        store.drop(f"c{seed}")
        seed += 1


def test_a_reopened_store_and_a_reader_see_the_same(tmp_path):
    with open_store(str(tmp_path)) as writer:
        world = World(writer, 7)
        with open_store(str(tmp_path), read_only=True) as reader:
            own, other = world.collection, reader.get("c7")
            for collection in (own, other) * 12:
                world.step()
                world.collection = collection
                world.check()
                world.collection = own
    with open_store(str(tmp_path)) as again:
        world.collection = again.get("c7")
        world.check()
        assert world.collection.verify().ok


def test_an_edit_is_seen_by_all_filters_at_once(tmp_path):
    """While one thread sets the same new value for all items, others never see two values."""
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(4))
        collection.upsert([Item(f"i{i}", np.eye(4)[i % 4], {"v": 0}) for i in range(300)])
        seen: list[list[tuple[int, int]]] = []
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                seen.append(collection.facets(["v"])["v"].values)
                value = seen[-1][0][0]
                assert collection.count({"must": [{"key": "v", "range": {"gte": value}}]}) == 300
                assert len(collection.search(np.ones(4), 300, {"must": [{"key": "v", "range": {"gte": value}}]})) == 300

        readers = [threading.Thread(target=read) for _ in range(2)]
        for thread in readers:
            thread.start()
        for value in range(1, 20):
            where = {"must": [{"key": "v", "match": value - 1}]}
            assert collection.update_metadata({"v": value}, where=where) == 300
        done.set()
        for thread in readers:
            thread.join()
        assert seen
        assert all(len(values) == 1 and values[0][1] == 300 for values in seen)


def test_filtered_search_is_exact_whether_few_or_many_pass(tmp_path):
    """A scan of the few, and the index with a selector for the many."""
    rng = np.random.default_rng(0)
    made = rng.normal(size=(6000, 4)).astype(np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(4))
        for start in range(0, 6000, 2000):
            collection.upsert([Item(f"i{i}", made[i], {"n": i}) for i in range(start, start + 2000)])
        collection.compact()
        collection.delete([f"i{i}" for i in range(0, 6000, 7)])
        for top in (30, 900, 5000):
            found = collection.search(made[1], 25, {"must": [{"key": "n", "range": {"lt": top}}]})
            alive = [i for i in range(top) if i % 7]
            want = sorted(alive, key=lambda i: -float(made[i] @ made[1]))[:25]
            assert [m.id for m in found] == [f"i{i}" for i in want]


def test_a_filter_is_cancelled_while_it_is_evaluated(tmp_path):
    def check() -> None:
        raise DeadlineExceeded

    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(2))
        collection.upsert([Item(str(i), np.ones(2, np.float32), {"n": i}) for i in range(3000)])
        where = {"should": [{"key": f"k{key}", "match": key} for key in range(64)]}
        for call in (
            collection.count,
            lambda where: collection.facets(["n"], where),
            lambda where: collection.scroll(where=where),
        ):
            with cancellable(check), pytest.raises(DeadlineExceeded):
                call(where)
        assert collection.count(where) == 0


def test_a_filter_that_was_answered_before_the_log_was_trimmed_is_answered_again(tmp_path):
    with EmbeddedStore(tmp_path, settings=StoreSettings(kept_changes=2)) as store:
        collection = store.create("c", CollectionSpec(4))
        where = {"must": [{"key": "n", "range": {"gte": 5}}]}
        collection.upsert([Item(f"i{n}", np.ones(4), {"n": n}) for n in range(10)])
        assert len(collection.search(np.ones(4), 99, where)) == collection.count(where) == 5
        for n in range(10, 20):
            collection.upsert([Item(f"i{n}", np.ones(4), {"n": n})])
        collection.delete(["i9"])
        collection.update_metadata({"n": 0}, ids=["i8"])
        collection.upsert([Item("last", np.ones(4)), Item("more", np.ones(4))])
        collection.compact()
        assert len(collection.search(np.ones(4), 99, where)) == collection.count(where) == 13
