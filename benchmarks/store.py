"""The store next to Qdrant's engine in the process, and to what it is made of: SQLite and a faiss graph.

    pip install qdrant-edge-py
    python benchmarks/store.py                                                  # 100,000 x 256
    python benchmarks/store.py --items 1000000 --dim 128 --only nnclr_hub --json figures.json
    python benchmarks/store.py --items 20000 --request 100 --only nnclr_hub,SQLite

Each side is used as its documentation describes, in a process on one core. It adds the rows, `--request` at a time,
builds, and answers the same queries with growing effort until ten results have a recall of 0.98. Times are CPU times of
the whole process, so other work on the machine matters little, and waiting for the disk is not counted. Graphs have
M = 32 and efConstruction = 100. A store returns the id and the label of each result and keeps vectors on disk; a bare
graph returns row numbers and keeps nothing; SQLite only stores the rows. Figures:

    items/s         added, durably by stores; build s: what remains to be done after that
    ms              of a query; "of 64" in batches; with filters the first time, again, and after a write; recall
    memory          of the vectors' bytes: disk, and a new process that searches and compacts, without pages of files
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
if "--side" in sys.argv:  # before any library starts its threads
    os.environ["OMP_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import numpy as np
from report import Report, cpu_seconds
from store_data import FILTERS, INDEXED, PARTS, Clusters, exact

from nnclr_hub import CollectionSpec, Item, open_store
from nnclr_hub.store.base import SearchOptions

K, BATCH, TARGET = 10, 64, 0.98
M, EF_CONSTRUCTION = 32, 100
EFFORTS = (10, 16, 32, 64, 128, 256, 512)
SHARES = ("50%", "1%", "0.01%")  # of FILTERS
NAME = "bench"
Metadata = Sequence[dict[str, Any]]


class Side:
    """A library. `add` gets rows with their numbers as ids; `search` returns row numbers, best first."""

    shares: ClassVar[tuple[str, ...]] = SHARES
    searches: ClassVar[bool] = True

    def __init__(self, folder: Path, dim: int) -> None: ...
    def add(self, rows: range, metadata: Metadata, vectors: np.ndarray) -> None: ...
    def finish(self) -> None: ...
    def search(self, query: np.ndarray, effort: int, share: str) -> list[int]: ...


class Ours(Side):
    """Effort is that of the calibrated index unless it has to grow."""

    shares = tuple(FILTERS)

    def __init__(self, folder: Path, dim: int) -> None:
        self._store = open_store(str(folder))
        self._collection = self._store.create(NAME, CollectionSpec(dim, indexed=INDEXED, vectors="raw"))

    def add(self, rows: range, metadata: Metadata, vectors: np.ndarray) -> None:
        self._collection.upsert([Item(str(row), v, m) for row, v, m in zip(rows, vectors, metadata, strict=True)])

    def finish(self) -> None:
        self._collection.compact()
        self._collection.snapshot()

    def search(self, query: np.ndarray, effort: int, share: str) -> list[int]:
        return [int(match.id) for match in self._collection.search(query, K, FILTERS.get(share), effort=effort)]

    def search_batch(self, queries: np.ndarray, effort: int) -> object:
        return self._collection.search_each(queries, K, SearchOptions(effort=effort))

    def write(self) -> None:
        self._collection.update_metadata({"seen": True}, ids=["1"])

    def close(self) -> None:
        self._store.close()


class Sqlite(Side):
    """The same rows with the same durability and indexes, without a search."""

    searches = False

    def __init__(self, folder: Path, dim: int) -> None:
        self._db = sqlite3.connect(folder / "bare.sqlite", isolation_level=None)
        self._db.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
            "CREATE TABLE items(rid INTEGER PRIMARY KEY, id TEXT UNIQUE, metadata TEXT, vector BLOB);"
            + "".join(f"CREATE INDEX {key} ON items(json_extract(metadata, '$.{key}'));" for key in INDEXED)
        )

    def add(self, rows: range, metadata: Metadata, vectors: np.ndarray) -> None:
        values = [(str(r), json.dumps(m), v.tobytes()) for r, m, v in zip(rows, metadata, vectors, strict=True)]
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO items(id, metadata, vector) VALUES (?, ?, ?)", values)
        self._db.execute("COMMIT")


class FaissHnsw(Side):
    shares = ()

    def __init__(self, folder: Path, dim: int) -> None:
        import faiss

        self._index = faiss.IndexHNSWFlat(dim, M, faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = EF_CONSTRUCTION

    def add(self, rows: range, metadata: Metadata, vectors: np.ndarray) -> None:
        self._index.add(vectors)

    def search(self, query: np.ndarray, effort: int, share: str) -> list[int]:
        return self.search_batch(query[None], effort)[0].tolist()

    def search_batch(self, queries: np.ndarray, effort: int) -> np.ndarray:
        self._index.hnsw.efSearch = effort
        return self._index.search(queries, K)[1]


class QdrantEdge(Side):
    """The engine of Qdrant in the process, with payload indexes; effort is hnsw_ef."""

    def __init__(self, folder: Path, dim: int) -> None:
        import qdrant_edge as q

        self._q = q
        graph = q.HnswIndexConfig(m=M, ef_construct=EF_CONSTRUCTION, full_scan_threshold=10_000, max_indexing_threads=1)
        vectors = q.EdgeVectorParams(size=dim, distance=q.Distance.Cosine)
        optimizers = q.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=10_000)
        self._shard = q.EdgeShard.create(str(folder), q.EdgeConfig(vectors, hnsw_config=graph, optimizers=optimizers))
        for key, kind in zip(INDEXED, (q.PayloadSchemaType.Keyword, q.PayloadSchemaType.Integer), strict=True):
            self._shard.update(q.UpdateOperation.create_field_index(key, kind))

    def add(self, rows: range, metadata: Metadata, vectors: np.ndarray) -> None:
        points = [self._q.Point(row, v.tolist(), m) for row, v, m in zip(rows, vectors, metadata, strict=True)]
        self._shard.update(self._q.UpdateOperation.upsert_points(points))
        self._shard.flush()

    def finish(self) -> None:
        self._shard.optimize()
        self._shard.flush()

    def search(self, query: np.ndarray, effort: int, share: str) -> list[int]:
        q = self._q
        conditions = {
            "50%": lambda: q.FieldCondition("half", match=q.MatchValue("left")),
            "1%": lambda: q.FieldCondition("part", range=q.RangeFloat(lt=PARTS // 100)),
            "0.01%": lambda: q.FieldCondition("part", match=q.MatchValue(7)),
        }
        where = q.Filter(must=[conditions[share]()]) if share else None
        options = {"filter": where, "params": q.SearchParams(hnsw_ef=effort), "with_payload": True}
        points = self._shard.search(q.SearchRequest(q.Query.Nearest(query.tolist()), K, **options))
        return [point.id for point in points if point.payload["label"]]


SIDES: dict[str, type[Side]] = {
    "nnclr_hub": Ours,
    "SQLite": Sqlite,
    "faiss HNSW": FaissHnsw,
    "Qdrant Edge": QdrantEdge,
}


def work(name: str, chosen: argparse.Namespace) -> None:
    """Measure one side in this process, and print its figures as JSON."""
    data = Clusters(chosen.items, chosen.dim)
    with tempfile.TemporaryDirectory() as place:
        side, adding = SIDES[name](Path(place), chosen.dim), 0.0
        for rows in data.chunks():
            metadata = rows.metadata()
            for start in range(0, len(metadata), chosen.request):
                some = slice(start, min(start + chosen.request, len(metadata)))
                numbers = range(rows.start + some.start, rows.start + some.stop)
                adding += cpu_seconds(side.add, numbers, metadata[some], np.array(rows.vectors[some]))
        found: dict[str, Any] = {"items/s": data.items / adding, "build s": cpu_seconds(side.finish)}
        if side.searches:
            found |= searches(side, data, chosen.queries)
        sizes = {"disk": sum(file.stat().st_size for file in Path(place).rglob("*") if file.is_file())}
        if isinstance(side, Ours):
            side.close()
            sizes |= reopened(place)
        found |= {kind: size / (4 * data.dim * data.items) for kind, size in sizes.items() if size}
        print(json.dumps(found), flush=True)
        os._exit(0)  # without waiting for the threads of the others


def searches(side: Side, data: Clusters, count: int) -> dict[str, float]:
    """Return milliseconds and recall without and with filters, at the lowest effort that reaches TARGET."""
    queries, found = data.queries(count), {}
    truth = exact(data, queries, K)
    for share in ("", *side.shares):
        start = f"{share}, " if share else ""
        if share:
            found[f"{start}first ms"] = 1000 * cpu_seconds(side.search, queries[0], EFFORTS[0], share)
        for effort in EFFORTS:
            spent, recall = point(side, queries, truth[share], effort, share)
            if recall >= TARGET:
                break
        found |= {f"{start}ms": spent, f"{start}recall": recall}
        if not share and isinstance(side, Ours | FaissHnsw):
            blocks = [queries[at : at + BATCH] for at in range(0, count, BATCH)]
            found[f"ms of {BATCH}"] = (
                1000 * sum(cpu_seconds(side.search_batch, block, effort) for block in blocks) / count
            )
        if share and isinstance(side, Ours):
            after = []
            for query in queries[:20]:
                side.write()
                after.append(cpu_seconds(side.search, query, effort, share))
            found[f"{start}after a write ms"] = 1000 * statistics.median(after)
    return found


def point(side: Side, queries: np.ndarray, truth: np.ndarray, effort: int, share: str) -> tuple[float, float]:
    """Return CPU milliseconds of a query, one by one, and the recall."""
    results: list[list[int]] = []
    taken = cpu_seconds(lambda: results.extend(side.search(query, effort, share) for query in queries))
    wanted = [set(rows) - {-1} for rows in truth.tolist()]
    hits = sum(len(true.intersection(rows)) for true, rows in zip(wanted, results, strict=True))
    return 1000 * taken / len(queries), hits / max(1, sum(map(len, wanted)))


def reopened(folder: str) -> dict[str, int]:
    """Return the memory of a new process that opens our store, searches and compacts."""
    command = [sys.executable, __file__, "--reopen", folder]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def reopen(folder: str) -> None:
    """Open the store in this new process, and print its memory while it searches and compacts."""

    def anonymous() -> int:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return 1024 * int(status["RssAnon"].split()[0])

    def watch() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], anonymous())

    before, peak, done = anonymous(), [0], threading.Event()
    with open_store(folder) as store:
        [item] = (collection := store.get(NAME)).scroll(limit=1).items
        collection.search(item.vector, k=K)
        peak[0] = anonymous()
        steady = peak[0] - before
        collection.delete([item.id])  # so that there is something to compact
        thread = threading.Thread(target=watch)
        thread.start()
        collection.compact()
        done.set()
        thread.join()
        print(json.dumps({"memory, searching": steady, "memory, compacting": peak[0] - before}))


def main() -> None:
    if sys.argv[1:2] == ["--reopen"]:
        return reopen(sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--request", type=int, default=1000, help="items of one request")
    parser.add_argument("--only", default=",".join(SIDES), help="comma-separated sides")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.side:
        return work(chosen.side, chosen)
    report = Report(chosen.json)
    sizes = {name: getattr(chosen, name) for name in ("items", "dim", "queries", "request")}
    report.begin(**sizes)
    for name in chosen.only.split(","):
        given = [word for key, value in sizes.items() for word in (f"--{key}", str(value))]
        command = [sys.executable, str(Path(__file__).resolve()), "--side", name, *given]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{name}: failed, {done.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        ours = report.results.get("nnclr_hub", {})
        timed = [key for key in found if key in ours and key.endswith(("/s", "ms", f"ms of {BATCH}"))]
        ratios = {key: f" (nnclr_hub: {ours[key] / found[key]:.2f} of it)" for key in timed}
        shown = [f"{key} {value:.3g}{ratios.get(key, '')}" for key, value in found.items()]
        report.say(name, found, f"{name}: {'; '.join(shown)}")


if __name__ == "__main__":
    main()
