"""How long searches take while rows are folded into a large index, in turns with the same searches without it.

    python benchmarks/store_fold.py --folder /data/fold                      # 1,000,000 x 256, adds 16,384 rows
    python benchmarks/store_fold.py --folder /data/fold --rebuild            # builds the whole index again

The fold runs as the background does it: with half of the threads and at low priority. It stops after each batch of
rows until as many seconds of searches without it have passed, so that other work on the machine affects both. The new
rows are in the delta all the time. One query is searched at a time, and its time is that of the clock.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import faiss
import numpy as np
from store_data import Clusters
from store_filters import fill
from store_ingest import NAME, items_of
from store_report import Report, spread

from nnclr_hub import EmbeddedStore
from nnclr_hub.store.base import Collection
from nnclr_hub.store.folder.maintenance import NICE
from nnclr_hub.store.index.main import threads
from nnclr_hub.store.settings import StoreSettings

K = 10
NEVER = 1 << 40  # the background thread folds nothing by itself
LEAST, EMPTY = 1.0, 10.0  # seconds of searches without the fold, and before there is a delta
QUERIES = 4000


class Fold:
    """A fold in a separate thread, which waits after each batch of rows."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._may_run = threading.Event()
        self.waits = threading.Event()
        self.done = self.total = 0
        self.ended = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def resume(self) -> None:
        """Let the next batch begin."""
        self.waits.clear()
        self._may_run.set()

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        self._wait()
        try:
            with threads(max(1, faiss.omp_get_max_threads() // 2)):
                self._collection.compact(self._progress)
        finally:
            self.ended = True
            self.waits.set()

    def _progress(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        self._wait()

    def _wait(self) -> None:
        self._may_run.clear()
        self.waits.set()
        self._may_run.wait()


def searches(collection: Collection, queries: np.ndarray, enough: Callable[[], bool]) -> np.ndarray:
    """Return the milliseconds (n,) of searches one after another."""
    taken: list[float] = []
    while not enough() or not taken:
        query = queries[len(taken) % len(queries)]
        began = time.perf_counter()
        collection.search(query, K)
        taken.append(1e3 * (time.perf_counter() - began))
    return np.array(taken)


def for_seconds(length: float) -> Callable[[], bool]:
    """Return a function that returns True once `length` seconds have passed from now on."""
    until = time.perf_counter() + length
    return lambda: time.perf_counter() > until


def measure(report: Report, name: str, collection: Collection, queries: np.ndarray, empty: np.ndarray) -> None:
    """Fold what is in the delta, and report the times with and without; `empty` are those without a delta."""
    fold = Fold(collection)
    fold.waits.wait()
    searches(collection, queries, for_seconds(LEAST))
    during, without, folding, taken = [], [], 0.0, 0.0
    while not fold.ended:
        without.append(searches(collection, queries, for_seconds(max(LEAST, taken))))  # the delta is full until the end
        began = time.perf_counter()
        fold.resume()
        during.append(searches(collection, queries, fold.waits.is_set))
        taken = time.perf_counter() - began
        folding += taken
        print(
            f"  {fold.done} of {fold.total} rows, {_summary(during[-1])}; without {_summary(without[-1])}", flush=True
        )
    ratios = [np.quantile(one, 0.99) / np.quantile(other, 0.99) for one, other in zip(during, without, strict=True)]
    times = {"during": np.concatenate(during), "without": np.concatenate(without), "empty": empty}
    p99 = {label: float(np.quantile(some, 0.99)) for label, some in times.items()}
    report.say(
        name,
        {label: _quantiles(some) for label, some in times.items()} | {"ratios": ratios, "seconds": folding},
        f"{name}: p99 during the fold over p99 without {p99['during'] / p99['without']:.2f}, by batches "
        f"{spread(ratios)}; over p99 without a delta {p99['during'] / p99['empty']:.2f}; {folding:.0f} s of folding; "
        + "; ".join(f"{label}: {_summary(some)}" for label, some in times.items()),
    )


def _quantiles(taken: np.ndarray) -> dict[str, float]:
    return {"searches": len(taken), "max": taken.max()} | {
        f"p{100 * share:g}": float(np.quantile(taken, share)) for share in (0.5, 0.9, 0.99, 0.999)
    }


def _summary(taken: np.ndarray) -> str:
    found = _quantiles(taken)
    return f"{len(taken)} searches, p50 {found['p50']:.2f}, p99 {found['p99']:.2f}, longest {found['max']:.1f} ms"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--dim", type=int, default=256)
    arguments.add_argument("--new", type=int, default=StoreSettings.max_recent, help="rows that a fold adds")
    arguments.add_argument("--turns", type=int, default=3, help="folds")
    arguments.add_argument("--rebuild", action="store_true", help="delete a row before each fold")
    arguments.add_argument("--folder", type=Path, required=True, help="of the store; an existing one is used")
    arguments.add_argument("--json", type=Path, help="write all numbers to this file")
    chosen = arguments.parse_args()
    report = Report(chosen.json)
    report.begin(rows=chosen.rows, dim=chosen.dim, new=chosen.new, turns=chosen.turns, rebuild=chosen.rebuild)
    data = Clusters(chosen.rows, chosen.dim)
    fill(chosen.folder, data)
    settings = StoreSettings(min_recent=NEVER, max_recent=NEVER, idle_recent=NEVER, snapshot_after=NEVER)
    with EmbeddedStore(chosen.folder, settings=settings) as store:
        collection = store.get(NAME)
        queries = data.queries(QUERIES)
        for turn in range(chosen.turns):
            searches(collection, queries, for_seconds(LEAST))
            empty = searches(collection, queries, for_seconds(EMPTY))
            known = collection.count()
            for rows in Clusters(chosen.new, chosen.dim, seed=known).chunks():
                items = items_of(rows)
                collection.upsert([type(one)(f"new-{known}-{one.id}", one.vector, one.metadata) for one in items])
            if chosen.rebuild:
                collection.delete([collection.scroll(limit=1).items[0].id])
            measure(report, f"fold {turn + 1}", collection, queries, empty)


if __name__ == "__main__":
    main()
