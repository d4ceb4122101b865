"""The libraries that `store_peers.py` compares with the store, each used as its documentation describes.

A store returns the id and the label of each result and keeps vectors on disk. A bare index returns row numbers and
keeps nothing. Graphs get the same build parameters where a library allows it: M = 32, efConstruction = 200 (2 M links
at the ground level). Vectors have unit length, and the metric is cosine or the dot product.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

Hits = list[list[Any]]
M, EF_CONSTRUCTION = 32, 200
EFFORTS = (10, 16, 24, 32, 48, 64, 128, 256)


class Peer(Protocol):
    """One library.

    package: to install. kind: "store" or "bare index". efforts: settings of its curve; None: it has no such setting.
    batches: it accepts many queries at once. durable: the durability of `add` when it returns, as strace shows.
    """

    package: ClassVar[str]
    kind: ClassVar[str]  # "store" or "bare index"
    efforts: ClassVar[tuple[int | None, ...]]
    batches: ClassVar[bool]
    durable: ClassVar[str]

    def __init__(self, folder: Path, dim: int) -> None: ...

    def add(self, ids: list[str], labels: list[str], vectors: np.ndarray) -> None:
        """Add a chunk of rows; ids are decimal numbers of the rows."""
        ...

    def finish(self) -> None:
        """Build what remains to be built."""
        ...

    def search(self, queries: np.ndarray, k: int, effort: int | None) -> Hits:
        """Return the results of each query (n, D), best first: (id, label), or row numbers of a bare index."""
        ...


class Ours:
    """This store; the index that its own rule chooses."""

    package, kind, batches, durable = "faiss-cpu", "store", True, "fsync at each request"
    efforts = (None, *EFFORTS)

    def __init__(self, folder: Path, dim: int) -> None:
        from nnclr_hub.store import open_store
        from nnclr_hub.store.base import CollectionSpec

        self._store = open_store(str(folder / "store"))
        self._collection = self._store.create("peers", CollectionSpec(dim))

    def add(self, ids: list[str], labels: list[str], vectors: np.ndarray) -> None:
        from nnclr_hub.store.base import Item

        metadata = [{"label": label} for label in labels]
        self._collection.upsert([Item(*row) for row in zip(ids, vectors, metadata, strict=True)])

    def finish(self) -> None:
        self._collection.compact()

    def search(self, queries: np.ndarray, k: int, effort: int | None) -> Hits:
        if len(queries) == 1:
            found = [self._collection.search(queries[0], k, effort=effort)]
        else:
            found = self._collection.search_batch(queries, k, effort=effort)
        return [[(match.id, match.metadata["label"]) for match in matches] for matches in found]


class FaissHNSW:
    """Bare faiss, a graph over float32."""

    package, kind, batches, durable, efforts = "faiss-cpu", "bare index", True, "none", EFFORTS

    def __init__(self, folder: Path, dim: int) -> None:
        import faiss

        self._faiss = faiss
        self._index = faiss.IndexHNSWFlat(dim, M, faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = EF_CONSTRUCTION

    def add(self, ids: list[str], labels: list[str], vectors: np.ndarray) -> None:
        self._index.add(vectors)

    def finish(self) -> None:
        pass

    def search(self, queries: np.ndarray, k: int, effort: int | None) -> Hits:
        parameters = self._faiss.SearchParametersHNSW(efSearch=effort)
        return self._index.search(queries, k, params=parameters)[1].tolist()


class HnswLib:
    """hnswlib, the reference implementation of the graph."""

    package, kind, batches, durable, efforts = "hnswlib", "bare index", True, "none", EFFORTS

    def __init__(self, folder: Path, dim: int) -> None:
        import hnswlib

        self._index = hnswlib.Index("ip", dim)
        self._index.init_index(1, ef_construction=EF_CONSTRUCTION, M=M)

    def add(self, ids: list[str], labels: list[str], vectors: np.ndarray) -> None:
        self._index.resize_index(self._index.get_current_count() + len(ids))
        self._index.add_items(vectors, np.array(ids, np.int64))

    def finish(self) -> None:
        pass

    def search(self, queries: np.ndarray, k: int, effort: int | None) -> Hits:
        self._index.set_ef(effort)
        return self._index.knn_query(queries, k, num_threads=1)[0].tolist()


class USearch:
    """USearch in memory, float32."""

    package, kind, batches, durable, efforts = "usearch", "bare index", True, "none", EFFORTS

    def __init__(self, folder: Path, dim: int) -> None:
        from usearch.index import Index

        self._index = Index(ndim=dim, metric="ip", dtype="f32", connectivity=M, expansion_add=EF_CONSTRUCTION)

    def add(self, ids: list[str], labels: list[str], vectors: np.ndarray) -> None:
        self._index.add(np.array(ids, np.uint64), vectors)

    def finish(self) -> None:
        pass

    def search(self, queries: np.ndarray, k: int, effort: int | None) -> Hits:
        self._index.expansion_search = effort
        if len(queries) == 1:
            return [self._index.search(queries[0], k, threads=1).keys.tolist()]
        return self._index.search(queries, k, threads=1).keys.tolist()


class LanceIvfPq:
    """LanceDB with its default index; effort is nprobes; ten times the results are refined with full vectors."""

    package, kind, batches, durable = "lancedb", "store", False, "no fsync"
    efforts = (1, 2, 4, 8, 16, 32, 64)

    def __init__(self, folder: Path, dim: int) -> None:
        import lancedb
        import pyarrow as pa

        self._pa, self._dim = pa, dim
        schema = pa.schema({"id": pa.string(), "label": pa.string(), "vector": pa.list_(pa.float32(), dim)})
        self._table = lancedb.connect(str(folder / "lance")).create_table("peers", schema=schema)

    def add(self, ids: list[str], labels: list[str], vectors: np.ndarray) -> None:
        rows = self._pa.FixedSizeListArray.from_arrays(self._pa.array(vectors.ravel()), self._dim)
        self._table.add(self._pa.table([ids, labels, rows], schema=self._table.schema))

    def finish(self) -> None:
        self._table.optimize()
        self._table.create_index("vector", config=self._config())

    def search(self, queries: np.ndarray, k: int, effort: int | None) -> Hits:
        return [self._pairs(self._asked(self._table.search(query), k, effort).limit(k)) for query in queries]

    def _config(self) -> Any:
        from lancedb.index import IvfPq

        return IvfPq(distance_type="cosine")

    def _asked(self, query: Any, k: int, effort: int | None) -> Any:
        return query.distance_type("cosine").nprobes(effort).refine_factor(10)

    def _pairs(self, query: Any) -> list[tuple[str, str]]:
        rows = query.select(["id", "label", "_distance"]).to_arrow()
        return list(zip(rows["id"].to_pylist(), rows["label"].to_pylist(), strict=True))


class LanceHnsw(LanceIvfPq):
    """LanceDB with one graph over float32; effort is ef."""

    efforts = EFFORTS

    def _config(self) -> Any:
        from lancedb.index import HnswFlat

        return HnswFlat(distance_type="cosine", num_partitions=1, m=M, ef_construction=EF_CONSTRUCTION)

    def _asked(self, query: Any, k: int, effort: int | None) -> Any:
        return query.distance_type("cosine").nprobes(1).ef(effort)


class QdrantLocal:
    """Qdrant's local mode, in a folder: it compares with every vector, so it has no curve."""

    package, kind, batches, durable, efforts = "qdrant-client", "store", True, "fsync at each row", (None,)

    def __init__(self, folder: Path, dim: int) -> None:
        from qdrant_client import QdrantClient, models

        self._models = models
        self._client = QdrantClient(path=str(folder / "qdrant"))
        self._client.create_collection(
            "peers", vectors_config=models.VectorParams(size=dim, distance=models.Distance.COSINE)
        )

    def add(self, ids: list[str], labels: list[str], vectors: np.ndarray) -> None:
        payloads = [{"id": id, "label": label} for id, label in zip(ids, labels, strict=True)]
        points = self._models.Batch(ids=[int(id) for id in ids], vectors=vectors.tolist(), payloads=payloads)
        self._client.upsert("peers", points)

    def finish(self) -> None:
        pass

    def search(self, queries: np.ndarray, k: int, effort: int | None) -> Hits:
        asked = [self._models.QueryRequest(query=query.tolist(), limit=k, with_payload=True) for query in queries]
        found = self._client.query_batch_points("peers", asked)
        return [[(point.payload["id"], point.payload["label"]) for point in one.points] for one in found]


class MilvusLite:
    """Milvus Lite with HNSW; effort is ef, and it goes through gRPC."""

    package, kind, batches, durable, efforts = "milvus-lite", "store", True, "no fsync", EFFORTS

    def __init__(self, folder: Path, dim: int) -> None:
        import milvus_lite  # noqa: F401 - pymilvus imports it itself, but reports no clear error without it
        from pymilvus import DataType, MilvusClient

        self._client = MilvusClient(str(folder / "milvus.db"))
        schema = MilvusClient.create_schema()
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=128)
        schema.add_field("label", DataType.VARCHAR, max_length=128)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
        self._client.create_collection("peers", schema=schema)

    def add(self, ids: list[str], labels: list[str], vectors: np.ndarray) -> None:
        rows = zip(ids, labels, vectors, strict=True)
        self._client.upsert("peers", [{"id": id, "label": label, "vector": vector} for id, label, vector in rows])

    def finish(self) -> None:
        index, graph = self._client.prepare_index_params(), {"M": M, "efConstruction": EF_CONSTRUCTION}
        index.add_index("vector", index_type="HNSW", metric_type="COSINE", params=graph)
        self._client.flush("peers")
        self._client.create_index("peers", index)
        self._client.load_collection("peers")

    def search(self, queries: np.ndarray, k: int, effort: int | None) -> Hits:
        parameters = {"params": {"ef": effort}}
        found = self._client.search("peers", list(queries), limit=k, output_fields=["label"], search_params=parameters)
        return [[(hit["id"], hit["entity"]["label"]) for hit in hits] for hits in found]


class Chroma:
    """Chroma with its graph; effort is ef_search."""

    package, kind, batches, durable, efforts = "chromadb", "store", True, "fsync at each request", EFFORTS

    def __init__(self, folder: Path, dim: int) -> None:
        import chromadb
        from chromadb.config import Settings

        client = chromadb.PersistentClient(str(folder / "chroma"), settings=Settings(anonymized_telemetry=False))
        graph = {"space": "cosine", "ef_construction": EF_CONSTRUCTION, "max_neighbors": M}
        self._collection = client.create_collection("peers", configuration={"hnsw": graph}, embedding_function=None)
        self._effort: int | None = None

    def add(self, ids: list[str], labels: list[str], vectors: np.ndarray) -> None:
        self._collection.upsert(ids=ids, embeddings=vectors, metadatas=[{"label": label} for label in labels])

    def finish(self) -> None:
        pass

    def search(self, queries: np.ndarray, k: int, effort: int | None) -> Hits:
        if effort != self._effort:
            self._collection.modify(configuration={"hnsw": {"ef_search": effort}})
            self._effort = effort
        found = self._collection.query(query_embeddings=queries, n_results=k, include=["metadatas"])
        labels = [[one["label"] for one in metadata] for metadata in found["metadatas"] or []]
        return [list(zip(*pair, strict=True)) for pair in zip(found["ids"], labels, strict=True)]


PEERS: dict[str, type[Peer]] = {
    "nnclr_hub": Ours,
    "faiss HNSW": FaissHNSW,
    "hnswlib": HnswLib,
    "USearch": USearch,
    "LanceDB IVF_PQ": LanceIvfPq,
    "LanceDB HNSW": LanceHnsw,
    "Qdrant local": QdrantLocal,
    "Milvus Lite": MilvusLite,
    "Chroma": Chroma,
}
