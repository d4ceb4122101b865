"""Queries per second at a recall of 0.98, filters, ingest and disk, next to other embedded stores and bare indexes.

    pip install qdrant-edge-py lancedb hnswlib sqlite-vec apsw
    python benchmarks/store_peers.py                              # 100,000 x 256 and all installed peers
    python benchmarks/store_peers.py --items 20000 --only nnclr_hub,hnswlib

Each peer is used as its documentation describes, in a process on one core. It adds the rows in requests of 1000,
builds, and answers the same queries with growing effort until ten results have a recall of 0.98. Times are CPU times of
the whole process, so other work on the machine matters little, and waiting for the disk is not counted. Graphs have
M = 32 and efConstruction = 100. A store returns the id and the label of each result and keeps vectors on disk; a bare
index returns row numbers and keeps nothing. Peers that are not installed are skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
if "--peer" in sys.argv:  # before any library starts its threads
    os.environ["OMP_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import numpy as np
from report import Report, cpu_seconds, installed
from store_data import FILTERS, PARTS, Clusters, exact

K, REQUEST, TARGET, PATIENCE = 10, 1000, 0.98, 4.0
M, EF_CONSTRUCTION = 32, 100
EFFORTS = (10, 16, 32, 64, 128, 256, 512)
SHARES = ("50%", "1%", "0.01%")
SQL = {"50%": "half = 'left'", "1%": f"part < {PARTS // 100}", "0.01%": "part = 7"}


class Peer:
    """A library. `add` gets rows with their numbers as ids; `search` returns row numbers, best first."""

    package: ClassVar[str]
    filters = True

    def __init__(self, folder: Path, dim: int) -> None: ...
    def add(self, rows: range, metadata: Sequence[dict[str, Any]], vectors: np.ndarray) -> None: ...
    def finish(self) -> None: ...
    def search(self, query: np.ndarray, effort: int, share: str) -> list[int]: ...


class Ours(Peer):
    package = "faiss-cpu"

    def __init__(self, folder: Path, dim: int) -> None:
        from nnclr_hub import CollectionSpec, open_store

        self._collection = open_store(str(folder)).create("peers", CollectionSpec(dim, indexed=("half", "part")))

    def add(self, rows: range, metadata: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        from nnclr_hub import Item

        self._collection.upsert([Item(str(row), v, m) for row, v, m in zip(rows, vectors, metadata, strict=True)])

    def finish(self) -> None:
        self._collection.compact()
        self._collection.snapshot()

    def search(self, query: np.ndarray, effort: int, share: str) -> list[int]:
        return [int(match.id) for match in self._collection.search(query, K, FILTERS.get(share), effort=effort)]


class QdrantEdge(Peer):
    """The engine of Qdrant in the process, with payload indexes; effort is hnsw_ef."""

    package = "qdrant-edge-py"

    def __init__(self, folder: Path, dim: int) -> None:
        import qdrant_edge as q

        self._q = q
        graph = q.HnswIndexConfig(m=M, ef_construct=EF_CONSTRUCTION, full_scan_threshold=10_000, max_indexing_threads=1)
        vectors = q.EdgeVectorParams(size=dim, distance=q.Distance.Cosine)
        optimizers = q.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=10_000)
        self._shard = q.EdgeShard.create(str(folder), q.EdgeConfig(vectors, hnsw_config=graph, optimizers=optimizers))
        for key, kind in (("half", q.PayloadSchemaType.Keyword), ("part", q.PayloadSchemaType.Integer)):
            self._shard.update(q.UpdateOperation.create_field_index(key, kind))

    def add(self, rows: range, metadata: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
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


class SqliteVec(Peer):
    """It compares with every vector that passes, so effort changes nothing."""

    package = "sqlite-vec"

    def __init__(self, folder: Path, dim: int) -> None:
        import apsw
        import sqlite_vec

        self._db = apsw.Connection(str(folder / "vec.sqlite"))
        self._db.enable_load_extension(True)
        self._db.load_extension(sqlite_vec.loadable_path())
        self._db.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
        columns = f"id INTEGER PRIMARY KEY, v float[{dim}] distance_metric=cosine, half TEXT, part INTEGER, +label TEXT"
        self._db.execute(f"CREATE VIRTUAL TABLE peers USING vec0({columns})")

    def add(self, rows: range, metadata: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        keys = ("half", "part", "label")
        values = [(r, v.tobytes(), *map(m.get, keys)) for r, v, m in zip(rows, vectors, metadata, strict=True)]
        with self._db:
            self._db.executemany("INSERT INTO peers (id, v, half, part, label) VALUES (?, ?, ?, ?, ?)", values)

    def search(self, query: np.ndarray, effort: int, share: str) -> list[int]:
        where = f"AND {SQL[share]}" if share else ""
        statement = f"SELECT id, label FROM peers WHERE v MATCH ? AND k = {K} {where}"
        return [row for row, _ in self._db.execute(statement, (query.tobytes(),))]


class LanceHnsw(Peer):
    """One graph over float32 and indexes of the columns; effort is ef."""

    package = "lancedb"

    def __init__(self, folder: Path, dim: int) -> None:
        import lancedb
        import pyarrow as pa

        self._pa, self._dim = pa, dim
        fields = {"id": pa.int64(), "label": pa.string(), "half": pa.string(), "part": pa.int64()}
        schema = pa.schema({**fields, "vector": pa.list_(pa.float32(), dim)})
        self._table = lancedb.connect(str(folder)).create_table("peers", schema=schema)

    def add(self, rows: range, metadata: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        made = self._pa.FixedSizeListArray.from_arrays(self._pa.array(vectors.ravel()), self._dim)
        columns = [[item[key] for item in metadata] for key in ("label", "half", "part")]
        self._table.add(self._pa.table([list(rows), *columns, made], schema=self._table.schema))

    def finish(self) -> None:
        from lancedb.index import Bitmap, BTree, HnswFlat

        self._table.optimize()
        graph = HnswFlat(distance_type="cosine", num_partitions=1, m=M, ef_construction=EF_CONSTRUCTION)
        for column, config in (("vector", graph), ("half", Bitmap()), ("part", BTree())):
            self._table.create_index(column, config=config)

    def search(self, query: np.ndarray, effort: int, share: str) -> list[int]:
        asked = self._table.search(query).distance_type("cosine").nprobes(1).ef(effort).limit(K)
        asked = asked.where(SQL[share], prefilter=True) if share else asked
        return asked.select(["id", "label", "_distance"]).to_arrow()["id"].to_pylist()


class FaissHnsw(Peer):
    package, filters = "faiss-cpu", False

    def __init__(self, folder: Path, dim: int) -> None:
        import faiss

        self._index = faiss.IndexHNSWFlat(dim, M, faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = EF_CONSTRUCTION

    def add(self, rows: range, metadata: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        self._index.add(vectors)

    def search(self, query: np.ndarray, effort: int, share: str) -> list[int]:
        self._index.hnsw.efSearch = effort
        return self._index.search(query[None], K)[1][0].tolist()


class HnswLib(Peer):
    package, filters = "hnswlib", False

    def __init__(self, folder: Path, dim: int) -> None:
        import hnswlib

        self._index = hnswlib.Index("ip", dim)
        self._index.init_index(1, ef_construction=EF_CONSTRUCTION, M=M)

    def add(self, rows: range, metadata: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        self._index.resize_index(self._index.get_current_count() + len(rows))
        self._index.add_items(vectors, np.array(rows), num_threads=1)

    def search(self, query: np.ndarray, effort: int, share: str) -> list[int]:
        self._index.set_ef(effort)
        return self._index.knn_query(query[None], K, num_threads=1)[0][0].tolist()


PEERS: dict[str, type[Peer]] = {
    "nnclr_hub": Ours,
    "Qdrant Edge": QdrantEdge,
    "LanceDB HNSW": LanceHnsw,
    "sqlite-vec": SqliteVec,
    "faiss HNSW": FaissHnsw,
    "hnswlib": HnswLib,
}


def work(name: str, items: int, dim: int, queries: int) -> None:
    """Measure one peer in this process, and print its results as JSON."""
    data = Clusters(items, dim)
    asked = data.queries(queries)
    truth = exact(data, asked, K, SHARES)
    with tempfile.TemporaryDirectory() as place:
        peer, adding = PEERS[name](Path(place), dim), 0.0
        for rows in data.chunks():
            metadata = rows.metadata()
            for start in range(0, len(metadata), REQUEST):
                stop = min(start + REQUEST, len(metadata))
                numbers, part = range(rows.start + start, rows.start + stop), np.array(rows.vectors[start:stop])
                adding += cpu_seconds(lambda n=numbers, m=metadata[start:stop], v=part: peer.add(n, m, v))
        found: dict[str, Any] = {"added/s": items / adding, "build s": cpu_seconds(peer.finish)}
        for share in ("", *(SHARES if peer.filters else ())):
            for effort in EFFORTS:
                rate, recall = point(peer, asked, truth[share], effort, share)
                found[share or "queries/s"] = f"{rate:.0f} ({recall:.3f})"
                if recall >= TARGET:
                    break
        found["disk MB"] = sum(file.stat().st_size for file in Path(place).rglob("*") if file.is_file()) / 1e6
        print(json.dumps(found), flush=True)
        os._exit(0)  # without waiting for the threads of the peers


def point(peer: Peer, queries: np.ndarray, truth: np.ndarray, effort: int, share: str) -> tuple[float, float]:
    """Return queries per CPU second, one by one, and the recall; a slow peer answers fewer queries."""
    began, results = time.process_time(), []
    for query in queries:
        results.append(peer.search(query, effort, share))
        if time.process_time() - began > PATIENCE:
            break
    rate = len(results) / max(1e-9, time.process_time() - began)
    wanted = [set(rows) - {-1} for rows in truth[: len(results)].tolist()]
    hits = sum(len(true.intersection(rows)) for true, rows in zip(wanted, results, strict=True))
    return rate, hits / max(1, sum(map(len, wanted)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--only", default=",".join(PEERS), help="comma-separated peers")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.peer:
        return work(chosen.peer, chosen.items, chosen.dim, chosen.queries)
    report = Report(chosen.json)
    report.begin(items=chosen.items, dim=chosen.dim, queries=chosen.queries)
    for name in chosen.only.split(","):
        if installed(PEERS[name].package) is None:
            print(f"{name}: skipped, {PEERS[name].package} is not installed", flush=True)
            continue
        sizes = ["--items", str(chosen.items), "--dim", str(chosen.dim), "--queries", str(chosen.queries)]
        command = [sys.executable, str(Path(__file__).resolve()), "--peer", name, *sizes]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{name}: failed, {done.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        cells = [f"{key} {value if isinstance(value, str) else f'{value:.3g}'}" for key, value in found.items()]
        report.say(name, found, f"{name}: {', '.join(cells)}")


if __name__ == "__main__":
    main()
