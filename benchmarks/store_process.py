"""What a new process sees of a store: seconds until it answers, and memory. It prints one line of JSON.

    python benchmarks/store_process.py open STORE hnsw       # seconds until an index of that kind answers searches
    python benchmarks/store_process.py memory STORE          # after opening, the peak while compacting, and after it

Memory is the process's anonymous pages (RssAnon) minus those before the store was opened. Pages of files in the page
cache do not count, and neither do the libraries.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import faiss
import numpy as np
from store_ingest import NAME

from nnclr_hub.store import open_store
from nnclr_hub.store.base import Collection

PAUSE = 0.01
QUERIES = 256
REPLACED = 100


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("what", choices=("open", "memory"))
    arguments.add_argument("store")
    arguments.add_argument("kind", nargs="?")
    chosen = arguments.parse_args()
    print(json.dumps(opened(chosen.store, chosen.kind) if chosen.what == "open" else memory(chosen.store)))


def opened(folder: str, kind: str) -> dict[str, float]:
    """Measure seconds until the collection is available, and until an index of that kind answers."""
    began = time.perf_counter()
    with open_store(folder) as store:
        collection = store.get(NAME)
        there = time.perf_counter() - began
        while collection.info().index != kind:
            time.sleep(PAUSE)
        collection.search(np.ones(collection.spec.dim, np.float32), 10)
        answers = time.perf_counter() - began
    return {"there": there, "answers": answers}


def memory(folder: str) -> dict[str, Any]:
    """Measure bytes in addition to those before opening, and the kind of the index."""
    warm = faiss.IndexFlatIP(8)  # so that faiss's and numpy's threads have their stacks already
    warm.add(np.eye(8, dtype=np.float32))
    warm.search(np.eye(8, dtype=np.float32), 1)
    before = anonymous()
    with open_store(folder) as store:
        collection = store.get(NAME)
        _ask(collection)
        steady = anonymous() - before
        # the same few items again: compacting then has deleted rows, and builds the index from scratch
        collection.upsert(collection.scroll(limit=REPLACED).items)
        watch = Watch()
        collection.compact()
        peak = watch.stop() - before
        _ask(collection)
        after = anonymous() - before
        items, dim, kind = collection.count(), collection.spec.dim, collection.info().index
    return {"steady": steady, "peak": peak, "after": after, "vectors": items * dim * 4, "index": kind}


def _ask(collection: Collection) -> None:
    queries = np.random.default_rng(0).standard_normal((QUERIES, collection.spec.dim), np.float32)
    collection.search_batch(queries, 10)
    for query in queries:
        collection.search(query, 10)
    del queries
    gc.collect()


def anonymous() -> int:
    """Return the anonymous resident bytes of this process."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


class Watch:
    """Peak memory, sampled every few milliseconds in a thread."""

    def __init__(self) -> None:
        self._most = anonymous()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(PAUSE):
            self._most = max(self._most, anonymous())

    def stop(self) -> int:
        """Return the peak in bytes."""
        self._stopped.set()
        self._thread.join()
        return self._most


if __name__ == "__main__":
    main()
