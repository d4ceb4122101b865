"""Vectors, a store of them with all that recovery needs, and neighbors by a loop over everything."""

import numpy as np

from nnclr_hub import EmbeddedStore
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.settings import StoreSettings

DIM = 8


def vectors(n: int, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed).normal(size=(n, DIM)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def brute_force(truth: dict[str, np.ndarray], query: np.ndarray, k: int, metric: str) -> list[tuple[str, float]]:
    """Return the matches by a loop over everything."""
    if metric == "l2":
        scored = [(id, -float(np.linalg.norm(vector - query))) for id, vector in truth.items()]
    else:
        scored = [(id, float(vector @ query)) for id, vector in truth.items()]
    return sorted(scored, key=lambda pair: -pair[1])[:k]


def filled(folder, n=300):
    with EmbeddedStore(folder, settings=StoreSettings(flat_below=100)) as store:
        collection = store.create("c", CollectionSpec(DIM, index="hnsw"))
        collection.upsert([Item(f"i{i}", v) for i, v in enumerate(vectors(n))])
        collection.compact()
        collection.snapshot()
        collection.delete(["i3"])
        collection.upsert([Item("i4", vectors(1, 99)[0])])
        collection.snapshot()
        collection.upsert([Item("late", vectors(1, 98)[0])])
    truth = {f"i{i}": v for i, v in enumerate(vectors(n))} | {"i4": vectors(1, 99)[0], "late": vectors(1, 98)[0]}
    del truth["i3"]
    return truth
