"""The store in a folder next to what it is made of: SQLite, faiss, and the bytes of the vectors.

    python benchmarks/store.py                                   # 100,000 x 256
    python benchmarks/store.py --items 1000000 --dim 128 --json figures.json
    python benchmarks/store.py --only search,filter --folder /data/bench    # reuses the store in that folder

Both sides of a ratio are measured in this run, in CPU time and with one thread where that is possible. Sections:

    ingest   durable upserts next to SQLite inserts of the same rows, 100 and 1,000 a request
    search   one query at a time and 64 at a time next to faiss's HNSW at the same recall
    filter   filters that 50%, 1% and .01% pass: the first time, again, and after a write; recall
    memory   a new process until its first answer; its anonymous memory when it searches and compacts; bytes on disk
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import faiss
import numpy as np
from report import Report, cpu_seconds, seconds, spread
from store_data import FILTERS, Clusters, Rows, exact, item_id, recall

from nnclr_hub import CollectionSpec, Item, open_store

SECTIONS = ("ingest", "search", "filter", "memory")
NAME, K, BATCH, SMALL = "bench", 10, 64, 20_000
SPEC = {"indexed": ("label",), "vectors": "raw"}


def items_of(rows: Rows) -> list[Item]:
    return [Item(*item) for item in zip(rows.ids(), rows.vectors, rows.metadata(), strict=True)]


def fill(folder: Path, data: Clusters, batch: int) -> float:
    """Fill a new collection; return the CPU seconds spent in upserts."""
    spent = 0.0
    with open_store(str(folder)) as store:
        collection = store.create(NAME, CollectionSpec(data.dim, **SPEC))
        for rows in data.chunks():
            items = items_of(rows)
            for start in range(0, len(items), batch):
                part = items[start : start + batch]
                spent += cpu_seconds(lambda part=part: collection.upsert(part))
        collection.compact()
    return spent


def fill_sqlite(file: Path, data: Clusters, batch: int) -> float:
    """Insert the same rows into SQLite with the same durability and one index; return the CPU seconds."""
    spent = 0.0
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
            "CREATE TABLE items(rid INTEGER PRIMARY KEY, id TEXT UNIQUE, metadata TEXT, vector BLOB);"
            "CREATE INDEX labels ON items(json_extract(metadata, '$.label'))"
        )

        def insert(items: list[Item]) -> None:
            rows = [(item.id, json.dumps(item.metadata), np.asarray(item.vector).tobytes()) for item in items]
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO items(id, metadata, vector) VALUES (?, ?, ?)", rows)
            connection.execute("COMMIT")

        for rows in data.chunks():
            items = items_of(rows)
            for start in range(0, len(items), batch):
                part = items[start : start + batch]
                spent += cpu_seconds(lambda part=part: insert(part))
    return spent


def ingest(report: Report, data: Clusters, turns: int) -> None:
    small = Clusters(min(SMALL, data.items), data.dim)
    for batch in (100, 1000):
        ratios = []
        for _ in range(turns):
            with tempfile.TemporaryDirectory() as scratch:
                theirs = fill_sqlite(Path(scratch) / "bare.sqlite", small, batch)
                ours = fill(Path(scratch) / "store", small, batch)
            ratios.append(ours / theirs)
        report.say(f"ingest_{batch}", ratios, f"ingest, {batch} a request: {spread(ratios)} times the CPU of SQLite")


def ids(matches: list[list[Any]]) -> list[list[str]]:
    return [[match.id for match in row] for row in matches]


def search(report: Report, collection: Any, data: Clusters, queries: int, turns: int) -> None:
    asked = data.queries(queries)
    truth = exact(data, asked, K)[""]
    found = recall(ids([collection.search(query, k=K) for query in asked]), truth)
    index = faiss.IndexHNSWFlat(data.dim, 32, faiss.METRIC_INNER_PRODUCT)
    for rows in data.chunks():
        index.add(rows.vectors)
    for effort in (16, 32, 64, 128, 256, 512):
        index.hnsw.efSearch = effort
        bare = recall([[item_id(row) for row in rows] for rows in index.search(asked, K)[1].tolist()], truth)
        if bare >= found:
            break
    report.say(
        "recall",
        {"store": found, "faiss": bare, "efSearch": effort, "index": collection.info().index},
        f"recall@{K}: store {found:.4f} ({collection.info().index}), faiss {bare:.4f} (HNSW, efSearch {effort})",
    )
    faiss.omp_set_num_threads(1)
    blocks = [asked[start : start + BATCH] for start in range(0, len(asked), BATCH)]
    sides: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "search_one": (
            lambda: [collection.search(query, k=K) for query in asked],
            lambda: [index.search(query[None], K) for query in asked],
        ),
        "search_batch": (
            lambda: [collection.search_batch(block, k=K) for block in blocks],
            lambda: [index.search(block, K) for block in blocks],
        ),
    }
    for name, (ours, theirs) in sides.items():
        pairs = [(cpu_seconds(ours), cpu_seconds(theirs)) for _ in range(turns + 1)][1:]  # the first turn warms up
        ratios, times = [our / their for our, their in pairs], [1000 * our / len(asked) for our, _ in pairs]
        report.say(name, ratios, f"{name}: {spread(times)} ms a query, {spread(ratios)} times faiss's HNSW")


def filters(report: Report, collection: Any, data: Clusters, queries: int) -> None:
    asked = data.queries(queries)
    truth = exact(data, asked, K, tuple(FILTERS))
    plain = statistics.median(cpu_seconds(lambda query=query: collection.search(query, k=K)) for query in asked)
    for name, where in FILTERS.items():
        first = cpu_seconds(lambda where=where: collection.search(asked[0], k=K, where=where))
        again, written, found = [], [], []
        for query in asked:
            again.append(cpu_seconds(lambda query=query, where=where: collection.search(query, k=K, where=where)))
            found.append(collection.search(query, k=K, where=where))
        for query in asked[:20]:
            collection.update_metadata({"seen": name}, ids=[item_id(1)])
            written.append(cpu_seconds(lambda query=query, where=where: collection.search(query, k=K, where=where)))
        figures = {
            "first_ms": 1000 * first,
            "again_ms": 1000 * statistics.median(again),
            "after_a_write_ms": 1000 * statistics.median(written),
            "unfiltered_ms": 1000 * plain,
            "recall": recall(ids(found), truth[name]),
        }
        shown = ", ".join(f"{key} {value:.3g}" for key, value in figures.items())
        report.say(f"filter {name}", figures, f"filter, {name} pass: {shown}")


def memory(report: Report, folder: Path, data: Clusters) -> None:
    lines: list[str] = []
    command = [sys.executable, __file__, "--process", str(folder)]
    taken = seconds(
        lambda: lines.extend(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines())
    )
    results = json.loads(lines[-1])
    results["disk"] = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    results = {name: size / (data.items * data.dim * 4) for name, size in results.items()}
    shown = ", ".join(f"{name} {times:.2f}" for name, times in results.items())
    report.say("memory", results, f"opened, searched and compacted in {taken:.1f} s; times the vectors' bytes: {shown}")


def anonymous() -> int:
    """Return the bytes of this process's anonymous memory, without pages of files."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["RssAnon"].split()[0])


def process(folder: str) -> None:
    """Open the store in this new process, and print its memory while it searches and compacts."""
    before, peak, done = anonymous(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], anonymous())

    with open_store(folder) as store:
        collection = store.get(NAME)
        item = collection.scroll(limit=1).items[0]
        collection.search(item.vector, k=K)
        steady = anonymous() - before
        collection.delete([item.id])  # so that there is something to compact
        thread = threading.Thread(target=watch)
        thread.start()
        collection.compact()
        done.set()
        thread.join()
        print(json.dumps({"steady": steady, "peak": peak[0] - before}))


def main() -> None:
    if sys.argv[1:2] == ["--process"]:
        return process(sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--only", default=",".join(SECTIONS), help="comma-separated sections")
    parser.add_argument("--queries", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3, help="repetitions of each comparison")
    parser.add_argument("--folder", type=Path, help="folder for the store; an existing store is used")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    chosen = parser.parse_args()
    sections = chosen.only.split(",")
    if unknown := set(sections) - set(SECTIONS):
        parser.error(f"--only takes some of {', '.join(SECTIONS)}; got {', '.join(sorted(unknown))}")
    report = Report(chosen.json)
    report.begin(items=chosen.items, dim=chosen.dim, turns=chosen.turns)
    data = Clusters(chosen.items, chosen.dim)
    if "ingest" in sections:
        ingest(report, data, chosen.turns)
    with tempfile.TemporaryDirectory() if chosen.folder is None else nullcontext(chosen.folder) as place:
        folder = Path(place) / "store"
        if set(sections) - {"ingest"} and not folder.exists():
            spent = fill(folder, data, 1000)
            report.say("fill", spent, f"filled and compacted: {spent:.1f} CPU s of upserts")
        if {"search", "filter"} & set(sections):
            with open_store(str(folder)) as store:
                if "search" in sections:
                    search(report, store.get(NAME), data, chosen.queries, chosen.turns)
                if "filter" in sections:
                    filters(report, store.get(NAME), data, max(1, chosen.queries // 4))
        if "memory" in sections:
            memory(report, folder, data)


if __name__ == "__main__":
    main()
