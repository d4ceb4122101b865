"""Filtered search while items are written, against unfiltered search of the same collection at the same time.

    python benchmarks/store_filters.py --rows 200000 --dim 256 --folder /tmp/filters

One thread adds items at a steady rate. The main thread runs blocks of single queries: without a filter, and with
filters that 50%, 1% and 0.01% of the items pass. Blocks of one filter alternate with blocks without, so that other work
on the machine affects both. Times are CPU times of the thread that searches.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from store_data import FILTERS, PARTS, Clusters, exact, recall
from store_ingest import NAME, items_of

from nnclr_hub.store import open_store
from nnclr_hub.store.base import Collection, CollectionSpec, Item

K = 10
BLOCK = 50  # queries
BATCH = 1000


def fill(folder: Path, data: Clusters) -> None:
    """Write the collection and build its index."""
    with open_store(str(folder)) as store:
        if store.list():
            return
        collection = store.create(NAME, CollectionSpec(data.dim, indexed=("label", "half", "part")))
        begun, cpu = time.perf_counter(), time.process_time()
        for rows in data.chunks():
            items = items_of(rows)
            for start in range(0, len(items), BATCH):
                collection.upsert(items[start : start + BATCH])
        print(f"written in {time.perf_counter() - begun:.0f} s, {time.process_time() - cpu:.0f} s of CPU", flush=True)
        collection.compact()
        print(f"index complete after {time.perf_counter() - begun:.0f} s", flush=True)


def write(collection: Collection, dim: int, rate: int, per_commit: int, stop: threading.Event) -> None:
    """Add items until `stop`; half of them replace earlier ones of this kind."""
    rng = np.random.default_rng(1)
    begun, done = time.perf_counter(), 0
    while not stop.is_set():
        vectors = rng.normal(size=(per_commit, dim)).astype(np.float32)
        ids = [f"new-{(done + i) // 2 if i % 2 else done + i}" for i in range(per_commit)]
        collection.upsert(
            [Item(id, row, {"label": "new", "part": 2 * PARTS}) for id, row in zip(ids, vectors, strict=True)]
        )
        done += per_commit
        stop.wait(max(0.0, begun + done / rate - time.perf_counter()))


def block(
    collection: Collection, queries: np.ndarray, where: Mapping[str, Any] | None
) -> tuple[float, list[list[str]]]:
    """Return the CPU seconds per query, and what was found."""
    begun = time.thread_time()
    found = [collection.search(query, K, where) for query in queries]
    return (time.thread_time() - begun) / len(queries), [[match.id for match in matches] for matches in found]


def measure(collection: Collection, data: Clusters, rounds: int) -> dict[str, Any]:
    """Return for each filter the time of a query, its share of one without, and the recall."""
    queries = data.queries(BLOCK)
    truth = exact(data, queries, K, tuple(FILTERS))
    made: dict[str, Any] = {}
    for name, where in FILTERS.items():
        begun = time.thread_time()
        collection.search(queries[0], K, where)
        first = time.thread_time() - begun
        pairs, found, plain = [], [], []
        for _ in range(rounds):
            before, plain = block(collection, queries, None)
            filtered, found = block(collection, queries, where)
            after, _ = block(collection, queries, None)
            pairs.append(((before + after) / 2, filtered))
        ratios = [without / filtered for without, filtered in pairs]
        made[name] = {
            "first_ms": 1e3 * first,
            "ms": 1e3 * statistics.median(filtered for _, filtered in pairs),
            "unfiltered_ms": 1e3 * statistics.median(without for without, _ in pairs),
            "ratio": statistics.median(ratios),
            "recall": recall(found, truth[name]),
            "unfiltered_recall": recall(plain, truth[""]),
            "fewest": min(map(len, found)),
        }
        print(name, {key: round(value, 3) for key, value in made[name].items()}, flush=True)
    return made


def main() -> None:
    """Measure, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--rate", type=int, default=500, help="items written per second")
    parser.add_argument("--per-commit", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    data = Clusters(given.rows, given.dim)
    fill(given.folder, data)
    begun = time.perf_counter()
    with open_store(str(given.folder)) as store:
        print(f"opened in {time.perf_counter() - begun:.2f} s", flush=True)
        collection = store.get(NAME)
        stop = threading.Event()
        writer = threading.Thread(target=write, args=(collection, given.dim, given.rate, given.per_commit, stop))
        if given.rate:
            writer.start()
        try:
            made = measure(collection, data, given.rounds)
        finally:
            stop.set()
            if given.rate:
                writer.join()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"rows": given.rows, "dim": given.dim, "rate": given.rate, "peak_mb": round(peak), **made}))


if __name__ == "__main__":
    main()
