"""Search in a collection against bare faiss on the same vectors, in one run.

    python benchmarks/search.py --items 50000 --dim 256 --k 10

Ratios are the result: how many times bare faiss's time a search with metadata, joined to the catalog, takes.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import faiss
import numpy as np

from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item

BATCH = 1000


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--items", type=int, default=50_000)
    arguments.add_argument("--dim", type=int, default=256)
    arguments.add_argument("--k", type=int, default=10)
    arguments.add_argument("--queries", type=int, default=200)
    chosen = arguments.parse_args()

    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(chosen.items, chosen.dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = vectors[rng.integers(0, chosen.items, chosen.queries)]
    bare = faiss.IndexFlatIP(chosen.dim)
    bare.add(vectors)
    with tempfile.TemporaryDirectory() as folder, open_store(folder) as store:
        collection = store.create("c", CollectionSpec(chosen.dim))
        began = time.perf_counter()
        for start in range(0, chosen.items, BATCH):
            rows = range(start, min(start + BATCH, chosen.items))
            collection.upsert([Item(f"i{i}", vectors[i], {"label": f"l{i % 100}"}) for i in rows])
        print(f"upsert: {chosen.items / (time.perf_counter() - began):.0f} vectors/s, durable, {BATCH} a request")
        where = {"must": [{"key": "label", "match": "l7"}]}
        ours = timed(queries, lambda query: collection.search(query, chosen.k))
        theirs = timed(queries, lambda query: bare.search(query[None], chosen.k))
        filtered = timed(queries, lambda query: collection.search(query, chosen.k, where))
    print(f"search: {ours * 1e3:.2f} ms; bare faiss flat: {theirs * 1e3:.2f} ms; ratio {ours / theirs:.2f}")
    print(f"search with a filter that 1% pass: {filtered * 1e3:.2f} ms; ratio {filtered / theirs:.2f}")
    print(f"machine: {platform.machine()}, {faiss.omp_get_max_threads()} threads; command: python {' '.join(sys.argv)}")


def timed(queries: np.ndarray, search: Callable[[np.ndarray], object]) -> float:
    """Median seconds a query."""
    taken = []
    for query in queries:
        began = time.perf_counter()
        search(query)
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


if __name__ == "__main__":
    main()
