"""The libraries that `store_peers.py` compares with the store, each used as its documentation describes.

A store returns the id and the label of each result and keeps vectors on disk. A bare index returns row numbers and
keeps nothing. Graphs get the same build parameters where a library allows it: M = 32, efConstruction = 100 (2 M links
at the ground level). Vectors have unit length, and the metric is cosine or the dot product. Items have a label, a
`half` ("left" or "right") and a `part` (0 to 9999), which the filters of `store_data` use.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from store_data import FILTERS, PARTS

Hits = list[list[Any]]
M, EF_CONSTRUCTION = 32, 100
EFFORTS = (10, 16, 32, 64, 128, 256)
# the same filters as SQL
SQL = {"": "", "50%": "half = 'left'", "1%": f"part < {PARTS // 100}", "0.01%": "part = 7"}


class Peer(Protocol):
    """One library.

    package: to install. kind: "store" or "bare index". efforts: settings of its curve; None: it has no such setting.
    batches: it accepts many queries at once. durable: the durability of `add` when it returns.
    """

    package: ClassVar[str]
    kind: ClassVar[str]  # "store" or "bare index"
    efforts: ClassVar[tuple[int | None, ...]]
    batches: ClassVar[bool]
    durable: ClassVar[str]

    def __init__(self, folder: Path, dim: int) -> None:
        """Open what is in the folder, or begin there."""
        ...

    def add(self, rows: range, metadata: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        """Add a chunk of rows; the id of a row is its number."""
        ...

    def finish(self) -> None:
        """Build what remains to be built, and write what is not on disk."""

    def search(self, queries: np.ndarray, k: int, effort: int | None, filter: str) -> Hits:
        """Return the results of each query (n, D), best first: (id, label), or row numbers of a bare index."""
        ...

    def close(self) -> None:
        """Release the folder."""


class Ours(Peer):
    """This store; the index that its own rule chooses."""

    package, kind, batches, durable = "faiss-cpu", "store", True, "fsync at each request"
    efforts = (*EFFORTS, None)

    def __init__(self, folder: Path, dim: int) -> None:
        from nnclr_hub.store import open_store
        from nnclr_hub.store.base import CollectionSpec

        self._store = open_store(str(folder / "store"))
        if not self._store.list():
            self._store.create("peers", CollectionSpec(dim, indexed=("half", "part")))
        self._collection = self._store.get("peers")

    def add(self, rows: range, metadata: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        from nnclr_hub.store.base import Item

        self._collection.upsert([Item(str(row), v, m) for row, v, m in zip(rows, vectors, metadata, strict=True)])

    def finish(self) -> None:
        self._collection.compact()
        self._collection.snapshot()

    def search(self, queries: np.ndarray, k: int, effort: int | None, filter: str) -> Hits:
        where = FILTERS[filter] if filter else None
        if len(queries) == 1:
            found = [self._collection.search(queries[0], k, where, effort=effort)]
        else:
            found = self._collection.search_batch(queries, k, where, effort=effort)
        return [[(match.id, match.metadata["label"]) for match in matches] for matches in found]

    def close(self) -> None:
        self._store.close()


class QdrantEdge(Peer):
    """Qdrant Edge, the engine of Qdrant in the process, with payload indexes; effort is hnsw_ef."""

    package, kind, batches, durable, efforts = "qdrant-edge-py", "store", False, "flush at each request", EFFORTS

    def __init__(self, folder: Path, dim: int) -> None:
        import qdrant_edge as q

        self._q = q
        path = folder / "edge"
        if path.exists():
            self._shard = q.EdgeShard.load(str(path))
            return
        path.mkdir()
        graph = q.HnswIndexConfig(m=M, ef_construct=EF_CONSTRUCTION, full_scan_threshold=10_000, max_indexing_threads=1)
        vectors = q.EdgeVectorParams(size=dim, distance=q.Distance.Cosine)
        optimizers = q.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=10_000)
        self._shard = q.EdgeShard.create(str(path), q.EdgeConfig(vectors, hnsw_config=graph, optimizers=optimizers))
        for key, kind in (("half", q.PayloadSchemaType.Keyword), ("part", q.PayloadSchemaType.Integer)):
            self._shard.update(q.UpdateOperation.create_field_index(key, kind))

    def add(self, rows: range, metadata: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        points = [self._q.Point(row, v.tolist(), m) for row, v, m in zip(rows, vectors, metadata, strict=True)]
        self._shard.update(self._q.UpdateOperation.upsert_points(points))
        self._shard.flush()

    def finish(self) -> None:
        self._shard.optimize()
        self._shard.flush()

    def search(self, queries: np.ndarray, k: int, effort: int | None, filter: str) -> Hits:
        q = self._q
        conditions = {
            "50%": lambda: q.FieldCondition("half", match=q.MatchValue("left")),
            "1%": lambda: q.FieldCondition("part", range=q.RangeFloat(lt=PARTS // 100)),
            "0.01%": lambda: q.FieldCondition("part", match=q.MatchValue(7)),
        }
        where = q.Filter(must=[conditions[filter]()]) if filter else None
        options = {"filter": where, "params": q.SearchParams(hnsw_ef=effort), "with_payload": True}
        found = [self._shard.search(q.SearchRequest(q.Query.Nearest(one.tolist()), k, **options)) for one in queries]
        return [[(point.id, point.payload["label"]) for point in points] for points in found]

    def close(self) -> None:
        self._shard.close()


class SqliteVec(Peer):
    """sqlite-vec by APSW: it compares with every vector that passes, so it has no curve."""

    package, kind, batches, durable, efforts = "sqlite-vec", "store", False, "fsync at each request", (None,)

    def __init__(self, folder: Path, dim: int) -> None:
        import apsw
        import sqlite_vec

        self._db = apsw.Connection(str(folder / "vec.sqlite"))
        self._db.enable_load_extension(True)
        self._db.load_extension(sqlite_vec.loadable_path())
        self._db.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
        columns = f"id INTEGER PRIMARY KEY, v float[{dim}] distance_metric=cosine, half TEXT, part INTEGER, +label TEXT"
        self._db.execute(f"CREATE VIRTUAL TABLE IF NOT EXISTS peers USING vec0({columns})")

    def add(self, rows: range, metadata: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        values = [
            (row, v.tobytes(), m["half"], m["part"], m["label"])
            for row, v, m in zip(rows, vectors, metadata, strict=True)
        ]
        with self._db:
            self._db.executemany("INSERT INTO peers (id, v, half, part, label) VALUES (?, ?, ?, ?, ?)", values)

    def search(self, queries: np.ndarray, k: int, effort: int | None, filter: str) -> Hits:
        where = f"AND {SQL[filter]}" if filter else ""
        statement = f"SELECT id, label FROM peers WHERE v MATCH ? AND k = {k} {where}"
        return [list(self._db.execute(statement, (query.tobytes(),))) for query in queries]

    def close(self) -> None:
        self._db.close()


class LanceHnsw(Peer):
    """LanceDB with one graph over float32 and indexes of the columns; effort is ef."""

    package, kind, batches, durable, efforts = "lancedb", "store", False, "no fsync", EFFORTS

    def __init__(self, folder: Path, dim: int) -> None:
        import lancedb
        import pyarrow as pa

        self._pa, self._dim = pa, dim
        fields = {"id": pa.int64(), "label": pa.string(), "half": pa.string(), "part": pa.int64()}
        schema = pa.schema({**fields, "vector": pa.list_(pa.float32(), dim)})
        self._table = lancedb.connect(str(folder / "lance")).create_table("peers", schema=schema, exist_ok=True)

    def add(self, rows: range, metadata: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        made = self._pa.FixedSizeListArray.from_arrays(self._pa.array(vectors.ravel()), self._dim)
        columns = [[one[key] for one in metadata] for key in ("label", "half", "part")]
        self._table.add(self._pa.table([list(rows), *columns, made], schema=self._table.schema))

    def finish(self) -> None:
        from lancedb.index import Bitmap, BTree, HnswFlat

        self._table.optimize()
        graph = HnswFlat(distance_type="cosine", num_partitions=1, m=M, ef_construction=EF_CONSTRUCTION)
        self._table.create_index("vector", config=graph)
        self._table.create_index("half", config=Bitmap())
        self._table.create_index("part", config=BTree())

    def search(self, queries: np.ndarray, k: int, effort: int | None, filter: str) -> Hits:
        return [self._one(query, k, effort, filter) for query in queries]

    def _one(self, query: np.ndarray, k: int, effort: int | None, filter: str) -> list[tuple[int, str]]:
        asked = self._table.search(query).distance_type("cosine").nprobes(1).ef(effort).limit(k)
        if filter:
            asked = asked.where(SQL[filter], prefilter=True)
        rows = asked.select(["id", "label", "_distance"]).to_arrow()
        return list(zip(rows["id"].to_pylist(), rows["label"].to_pylist(), strict=True))


class Chroma(Peer):
    """Chroma with its graph; effort is ef_search."""

    package, kind, batches, durable, efforts = "chromadb", "store", True, "fsync at each request", EFFORTS

    def __init__(self, folder: Path, dim: int) -> None:
        import chromadb
        from chromadb.config import Settings

        client = chromadb.PersistentClient(str(folder / "chroma"), settings=Settings(anonymized_telemetry=False))
        graph = {"space": "cosine", "ef_construction": EF_CONSTRUCTION, "max_neighbors": M, "num_threads": 1}
        self._collection = client.get_or_create_collection(
            "peers", configuration={"hnsw": graph}, embedding_function=None
        )
        self._effort: int | None = None

    def add(self, rows: range, metadata: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        self._collection.upsert(ids=[str(row) for row in rows], embeddings=vectors, metadatas=list(metadata))

    def search(self, queries: np.ndarray, k: int, effort: int | None, filter: str) -> Hits:
        if effort != self._effort:
            self._collection.modify(configuration={"hnsw": {"ef_search": effort}})
            self._effort = effort
        where: Any = {"50%": {"half": "left"}, "1%": {"part": {"$lt": PARTS // 100}}, "0.01%": {"part": 7}}.get(filter)
        found = self._collection.query(query_embeddings=queries, n_results=k, where=where, include=["metadatas"])
        labels = [[one["label"] for one in metadata] for metadata in found["metadatas"] or []]
        return [list(zip(*pair, strict=True)) for pair in zip(found["ids"], labels, strict=True)]


class FaissHnsw(Peer):
    """Bare faiss, a graph over float32."""

    package, kind, batches, durable, efforts = "faiss-cpu", "bare index", True, "none", EFFORTS

    def __init__(self, folder: Path, dim: int) -> None:
        import faiss

        self._faiss = faiss
        self._index = faiss.IndexHNSWFlat(dim, M, faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = EF_CONSTRUCTION

    def add(self, rows: range, metadata: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        self._index.add(vectors)

    def search(self, queries: np.ndarray, k: int, effort: int | None, filter: str) -> Hits:
        parameters = self._faiss.SearchParametersHNSW(efSearch=effort)
        return self._index.search(queries, k, params=parameters)[1].tolist()


class HnswLib(Peer):
    """hnswlib, the reference implementation of the graph."""

    package, kind, batches, durable, efforts = "hnswlib", "bare index", True, "none", EFFORTS

    def __init__(self, folder: Path, dim: int) -> None:
        import hnswlib

        self._index = hnswlib.Index("ip", dim)
        self._index.init_index(1, ef_construction=EF_CONSTRUCTION, M=M)

    def add(self, rows: range, metadata: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        self._index.resize_index(self._index.get_current_count() + len(rows))
        self._index.add_items(vectors, np.array(rows), num_threads=1)

    def search(self, queries: np.ndarray, k: int, effort: int | None, filter: str) -> Hits:
        self._index.set_ef(effort or 10)
        return self._index.knn_query(queries, k, num_threads=1)[0].tolist()


class USearch(Peer):
    """USearch in memory, float32."""

    package, kind, batches, durable, efforts = "usearch", "bare index", True, "none", EFFORTS

    def __init__(self, folder: Path, dim: int) -> None:
        from usearch.index import Index

        self._index = Index(ndim=dim, metric="ip", dtype="f32", connectivity=M, expansion_add=EF_CONSTRUCTION)

    def add(self, rows: range, metadata: Sequence[dict[str, Any]], vectors: np.ndarray) -> None:
        self._index.add(np.array(rows, np.uint64), vectors, threads=1)

    def search(self, queries: np.ndarray, k: int, effort: int | None, filter: str) -> Hits:
        self._index.expansion_search = effort
        if len(queries) == 1:
            return [self._index.search(queries[0], k, threads=1).keys.tolist()]
        return self._index.search(queries, k, threads=1).keys.tolist()


PEERS: dict[str, type[Peer]] = {
    "nnclr_hub": Ours,
    "Qdrant Edge": QdrantEdge,
    "LanceDB HNSW": LanceHnsw,
    "Chroma": Chroma,
    "sqlite-vec": SqliteVec,
    "faiss HNSW": FaissHnsw,
    "hnswlib": HnswLib,
    "USearch": USearch,
}
