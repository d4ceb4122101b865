"""Searches while items are replaced, deleted and compacted: always an item's old or new self, never neither."""

import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np
import pytest
from store.crash.small import LONG, SECONDS, open_small_store
from waiting import until

from nnclr_hub.store.base import CollectionSpec, Item, SearchOptions

DURATION = SECONDS / 4 if LONG else 0.4  # of each of four kinds
DIM, KEPT, PASSING, READERS, K = 16, 300, 40, 3, 10
VECTORS = np.random.default_rng(0).normal(size=(KEPT, DIM)).astype(np.float32)
LABELS = ("cat", "dog")


@dataclass
class Known:
    """What the writer has done, for the readers to hold their results against.

    begun, done: the highest version of each kept item whose upsert was begun, and that was acknowledged.
    deleted: ids whose deletion was acknowledged; they are never used again.
    """

    begun: list[int] = field(default_factory=lambda: [0] * KEPT)
    done: list[int] = field(default_factory=lambda: [0] * KEPT)
    deleted: set[str] = field(default_factory=set)
    stop: threading.Event = field(default_factory=threading.Event)
    searches: int = 0
    compactions: int = 0


def kept(n: int, version: int) -> Item:
    """A kept item: its vector stays, its version and label change."""
    return Item(f"kept{n}", VECTORS[n], {"version": version, "label": LABELS[version % 2], "kept": True})


def near(n: int) -> np.ndarray:
    """Close to a kept item's vector, so that it stands among the results if it exists."""
    return VECTORS[n] + np.float32(1e-3)


def write(collection, known: Known) -> None:
    """Replace kept items, and add and delete others."""
    rng = np.random.default_rng(1)
    passing: list[str] = []
    for turn in range(10**9):
        if known.stop.is_set():
            return
        numbers = rng.choice(KEPT, 5, replace=False).tolist()
        for n in numbers:
            known.begun[n] += 1
        collection.upsert([kept(n, known.begun[n]) for n in numbers])
        for n in numbers:
            known.done[n] = known.begun[n]
        passing.append(f"gone{turn}")
        collection.upsert([Item(passing[-1], near(turn % KEPT), {"version": 0, "label": "cat"})])
        if len(passing) > PASSING:
            gone = [passing.pop(0) for _ in range(PASSING // 2)]
            collection.delete(gone)
            known.deleted.update(gone)


def read(collection, known: Known, seed: int) -> None:
    """Searches for kept items, alone, in a batch and with filters."""
    rng = np.random.default_rng(seed)
    while not known.stop.is_set():
        numbers = rng.choice(KEPT, 4, replace=False).tolist()
        before = [known.done[n] for n in numbers]
        deleted = set(known.deleted)
        where = None if rng.random() < 0.5 else {"must": [{"key": "kept", "match": True}]}
        if rng.random() < 0.5:
            results = [collection.search(VECTORS[n], K, where) for n in numbers]
        else:
            results = collection.search_each(VECTORS[numbers], K, SearchOptions(where))
        after = [known.begun[n] for n in numbers]
        for n, low, high, found in zip(numbers, before, after, results, strict=True):
            ids = [match.id for match in found]
            assert len(set(ids)) == len(ids) == K, f"{K} exist; found {ids}"
            assert not deleted & set(ids), "deleted, and found"
            (self_,) = [match for match in found if match.id == f"kept{n}"] or [None]
            assert self_ is not None, f"kept{n} was found neither as it was nor as it is"
            assert low <= self_.metadata["version"] <= high, "an older item than was acknowledged"
        known.searches += len(numbers)


def care(collection, known: Known) -> None:
    """Compacts, over and over."""
    while not known.stop.is_set():
        collection.compact()
        known.compactions += 1
        if known.compactions % 5 == 0:
            collection.snapshot()


@pytest.mark.parametrize("index", ["hnsw", "auto", *(["flat", "ivf"] if LONG else [])])
def test_readers_see_every_item_at_every_moment(tmp_path, index):
    known = Known()
    with open_small_store(tmp_path) as store:
        collection = store.create("c", CollectionSpec(DIM, index=index))
        collection.upsert([kept(n, 0) for n in range(KEPT)])
        collection.compact()
        jobs = [(write,), (care,), *((read, seed) for seed in range(READERS))]
        with ThreadPoolExecutor(len(jobs)) as pool:
            running = [pool.submit(job, collection, known, *more) for job, *more in jobs]
            wait(running, DURATION, FIRST_EXCEPTION)
            until(lambda: any(one.done() for one in running) or (known.searches > 50 and known.compactions > 3))
            known.stop.set()
        for one in running:
            one.result()
        assert collection.verify().ok
        assert {item.id: item.metadata["version"] for item in collection.get([f"kept{n}" for n in range(KEPT)])} == {
            f"kept{n}": version for n, version in enumerate(known.done)
        }
