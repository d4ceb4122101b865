"""A collection and what it must contain, with every question answered by a loop and a literal reading of filters."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from store.exhaustive import nearest, scores, unit
from store.filter_oracle import KEYS, Dice, counted, merged, passes, type_of

from nnclr_hub.store.base import Collection, Item

OTHER = "of another writer"  # key of their metadata
# asked again and again, so that what is remembered of them must follow every change
STANDING = [
    {"must": [{"key": "label", "exists": True}]},
    {"should": [{"key": "tags", "contains": "a"}, {"key": "n", "range": {"gte": 1}}]},
    {"must_not": [{"key": "place", "geo": {"lat": 0, "lon": 0, "radius": 3e6}}, {"key": "label", "match": "x" * 130}]},
]


class World:
    """A collection, and what it must contain, apart from the items of `writers`."""

    def __init__(self, collection: Collection, seed: int) -> None:
        self.dice = Dice(seed)
        self.collection = collection
        self.truth: dict[str, tuple[np.ndarray, dict, bytes | None]] = {}
        self.wanted = self.found = 0  # neighbors of approximate searches

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

    # ---- changes

    def step(self) -> None:
        """Change something at random."""
        dice, ids = self.dice, list(self.truth)
        kind = dice.below(9)
        if kind == 8:  # later filters are evaluated in the main part of an index
            self.collection.compact()
        elif kind < 3 or not ids:
            self._upsert([f"i{dice.below(80)}" for _ in range(dice.below(40))])
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

    def _upsert(self, ids: list[str]) -> None:
        """Write new items and replacements; of an id twice in one request the last counts."""
        dice, spec, items = self.dice, self.collection.spec, []
        for id in ids:
            vector = dice.rng.normal(size=spec.dim).astype(np.float32)
            items.append(Item(id, vector, dice.metadata(), dice.one([None, b"\xff\xd8\xff" + dice.rng.bytes(9)])))
            kept = unit(vector) if spec.metric == "cosine" else vector
            kept = kept.astype(np.float16 if spec.precision == "f16" else np.float32).astype(np.float32)
            self.truth[id] = kept, dict(items[-1].metadata), items[-1].thumbnail
        self.collection.upsert(items)

    def _edit(self, ids: list[str]) -> None:
        dice = self.dice
        patch = dice.metadata() | dict.fromkeys(dice.some(["label", "n", "tags"], 2))
        replace = dice.below(4) == 0
        where = dice.where(ids) if dice.below(2) else None
        chosen = dice.some(ids, 6) if where is None else self.passing(where)
        if where is None and dice.below(3) == 0:  # a patch for each
            patches, replace = {id: dice.metadata() | patch for id in chosen}, False
            assert self.collection.update_each(patches) == len(patches)
        else:
            patches = dict.fromkeys(chosen, patch)
            given = {"ids": chosen} if where is None else {"where": ours(where)}
            assert self.collection.update_metadata(patch, **given, replace=replace) == len(patches)
        for id, one in patches.items():
            vector, before, thumbnail = self.truth[id]
            self.truth[id] = vector, dict(one) if replace else merged(before, one), thumbnail

    def _without(self, ids: list[str]) -> None:
        self.truth = {id: one for id, one in self.truth.items() if id not in ids}

    # ---- questions

    def passing(self, where: dict) -> list[str]:
        return sorted(id for id, (_, about, _) in self.truth.items() if passes(where, id, about))

    def check(self) -> None:
        """Ask one question in every way."""
        dice, collection = self.dice, self.collection
        where = dice.where(list(self.truth))
        want = self.passing(where)
        assert collection.count(ours(where)) == len(want), where
        listed, cursor = [], None
        while not listed or cursor is not None:
            page = collection.scroll(cursor, 7, ours(where), with_vector=False)
            assert len(page.items) == 7 or page.cursor is None
            listed.append(page.items)
            cursor = page.cursor
        items = [item for some in listed for item in some]
        assert [(item.id, item.metadata) for item in items] == [(id, self.truth[id][1]) for id in want], where
        for item in collection.get([*want[:9], "absent"]):
            vector, metadata, thumbnail = self.truth[item.id]
            np.testing.assert_allclose(item.vector, vector, atol=2e-3)
            assert (item.metadata, item.thumbnail) == (metadata, thumbnail)
        self._check_facets(where, want)
        for exact in (False, True):
            self._check_search(where, want, exact)
        for standing in STANDING:
            matches = collection.search(dice.rng.normal(size=collection.spec.dim), 200, ours(standing))
            assert sorted(match.id for match in matches) == self.passing(standing), standing

    def _check_search(self, where: dict, want: list[str], exact: bool) -> None:
        spec, query = self.collection.spec, self.dice.rng.normal(size=self.collection.spec.dim).astype(np.float32)
        k, offset, tolerance = 1 + self.dice.below(12), self.dice.below(4), 1e-2 if spec.precision == "f16" else 1e-4
        best = nearest(spec.metric, {id: self.truth[id][0] for id in want}, query)[offset : offset + k]
        found = self.collection.search(query, k, ours(where), offset=offset, exact=exact, with_vector=True)
        assert len(found) == len(best) == len({match.id for match in found}), where
        assert {match.id for match in found} <= set(want), where
        assert [match.score for match in found] == sorted((match.score for match in found), reverse=True)
        if not found:
            return
        rows = np.stack([self.truth[match.id][0] for match in found])
        np.testing.assert_allclose([match.score for match in found], scores(spec.metric, rows, query), atol=tolerance)
        np.testing.assert_allclose([match.vector for match in found], rows, atol=2e-3)
        if exact or spec.index == "flat":
            np.testing.assert_allclose([match.score for match in found], [one for _, one in best], atol=tolerance)
        self.wanted += len(found)
        self.found += sum(match.score >= best[-1][1] - tolerance for match in found)
        middle = (found[0].score + found[-1].score) / 2
        some = self.collection.search(query, k, ours(where), offset=offset, exact=exact, score_threshold=middle)
        assert [match.id for match in some] == [match.id for match in found if match.score >= middle]

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
