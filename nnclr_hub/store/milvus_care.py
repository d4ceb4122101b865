"""The care of a collection in Milvus: its index, verifying, repairing, compacting."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.errors import StoreError
from nnclr_hub.store.base import CollectionSpec, Progress, RepairReport, VerifyReport
from nnclr_hub.store.milvus_client import SLOW_TIMEOUT, Connection
from nnclr_hub.store.milvus_names import encode
from nnclr_hub.store.milvus_rows import METRICS, is_damaged, to_vector
from nnclr_hub.store.milvus_search import NLIST, scores
from nnclr_hub.store.milvus_where import plan

if TYPE_CHECKING:
    from nnclr_hub.store.milvus_collection import MilvusCollection

SAMPLE = 50
NEIGHBOURS = 10
LOST = "nnclr-lost+found"


# ------------------------------------------------------------------------------ the index


def index_params(connection: Connection, spec: CollectionSpec) -> Any:
    """The index that Milvus has for `spec.index`; Milvus Lite has no product quantiser, but scalars of 8 bits."""
    kinds: dict[str, tuple[str, dict[str, int]]] = {
        "auto": ("AUTOINDEX", {}),
        "flat": ("FLAT", {}),
        "hnsw": ("HNSW", {"M": 16, "efConstruction": 200}),
        "ivf": ("IVF_FLAT", {"nlist": NLIST[connection.is_lite]}),
        "ivf_pq": ("IVF_PQ", {"nlist": NLIST[connection.is_lite], "m": _parts(spec.dim), "nbits": 8}),
    }
    if connection.is_lite:
        # a file is for development and small sets, which a scan answers exactly
        kinds |= {"auto": ("FLAT", {}), "ivf_pq": ("IVF_SQ8", {"nlist": NLIST[True]})}
    kind, params = kinds[spec.index]
    made = connection.pymilvus.MilvusClient.prepare_index_params()
    made.add_index("vector", index_type=kind, metric_type=METRICS[spec.metric], params=params)
    return made


def _parts(dim: int) -> int:
    """Codes a vector: a divisor of its length, of four numbers each or as near to that as there is."""
    return max(parts for parts in range(1, max(1, dim // 4) + 1) if dim % parts == 0)


def make_ready(connection: Connection, name: str, spec: CollectionSpec, *, wait: bool = False) -> None:
    """Sees to it that a collection has its index and is loaded, also if a crash came between those steps.

    wait: until the index is built; meanwhile searches compare with every vector.
    """
    if not connection.call("list_indexes", encode(name)):
        made = index_params(connection, spec)
        connection.call("create_index", encode(name), made, timeout=SLOW_TIMEOUT, sync=wait)
    connection.call("load_collection", encode(name), timeout=SLOW_TIMEOUT)


def index_kind(collection: MilvusCollection) -> str:
    """Milvus's name of the index, in small letters."""
    described = collection.call("describe_index", "vector")
    return str((described or {}).get("index_type", "none")).lower()


def compact(collection: MilvusCollection) -> None:
    """Has Milvus merge segments without what was deleted; searches and writes go on.

    Raises:
        StoreError: Milvus does not finish in time.
    """
    collection.call("flush", timeout=SLOW_TIMEOUT)
    job = collection.call("compact", timeout=SLOW_TIMEOUT)
    end = time.monotonic() + SLOW_TIMEOUT
    while collection.connection.call("get_compaction_state", job) != "Completed":
        if time.monotonic() > end:
            raise StoreError(
                f"Milvus at {collection.connection.name} still compacts {collection.name!r} after {SLOW_TIMEOUT:.0f} s: "
                "it goes on by itself."
            )
        time.sleep(0.5)


# ------------------------------------------------------------------------------ verifying and repairing


def verify(collection: MilvusCollection, progress: Progress) -> VerifyReport:
    """Reads every vector, compares it with its checksum, and a sample's neighbours with an exhaustive search."""
    total = collection.count()
    damaged: list[str] = []
    sample_ids: list[str] = []
    sample: list[np.ndarray] = []
    step = max(1, total // SAMPLE)
    everything = plan(None)
    done = 0
    for done, row in enumerate(collection.scan(everything, None, ["id", "vector", "crc"]), 1):
        if is_damaged(row, collection.spec):
            damaged.append(row["id"])
        elif (done - 1) % step == 0:
            sample_ids.append(row["id"])
            sample.append(to_vector(row))
        progress(done, total)
    if not sample:
        return VerifyReport(done, tuple(damaged), ())
    disagreements, missing, recall = _compare(collection, sample_ids, np.stack(sample))
    return VerifyReport(done, tuple(damaged), disagreements, missing, recall)


def _compare(
    collection: MilvusCollection, ids: list[str], queries: np.ndarray
) -> tuple[tuple[str, ...], tuple[str, ...], float]:
    """Ids whose own best match is another than it must be, ids not found by their own vector, and the recall."""
    true = collection.search_batch(queries, NEIGHBOURS, exact=True)
    found = collection.search_batch(queries, NEIGHBOURS)
    disagreements, missing, hits, asked = [], [], 0, 0
    for id, query, best, got in zip(ids, queries, true, found, strict=True):
        own = float(scores(query[None], query[None], collection.spec)[0, 0])
        slack = 1e-3 * max(1.0, abs(best[0].score))
        if not got or abs(got[0].score - best[0].score) > slack:
            disagreements.append(id)
        # by dot product others may be nearer than the vector itself
        if own >= best[-1].score - slack and id not in [m.id for m in got] and id in [m.id for m in best]:
            missing.append(id)
        hits += len({match.id for match in best} & {match.id for match in got})
        asked += len(best)
    return tuple(disagreements), tuple(missing), hits / max(1, asked)


def repair(collection: MilvusCollection, progress: Progress) -> RepairReport:
    """Takes out items whose vector is damaged, and has Milvus build its index anew; searches fail meanwhile."""
    spec = collection.spec
    total = collection.count()
    damaged = []
    rows = collection.scan(plan(None), None, ["id", "vector", "metadata", "crc"])
    for done, row in enumerate(rows, 1):
        if is_damaged(row, spec):
            damaged.append({"id": row["id"], "metadata": json.loads(row["metadata"])})
        progress(done, total)
    kept = _keep(collection, damaged) if damaged else None
    collection.delete([one["id"] for one in damaged])
    name = encode(collection.name)
    call = collection.connection.call
    call("release_collection", name, timeout=SLOW_TIMEOUT)
    for index in call("list_indexes", name):
        call("drop_index", name, index, timeout=SLOW_TIMEOUT)
    make_ready(collection.connection, collection.name, spec, wait=True)
    return RepairReport(collection.count(), tuple(one["id"] for one in damaged), kept)


def _keep(collection: MilvusCollection, damaged: list[dict[str, Any]]) -> str:
    """Writes down what is about to be deleted: beside a Milvus Lite file, or in the working folder."""
    folder = Path(collection.connection.name).parent / LOST if collection.connection.is_file else Path(LOST)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{collection.name}-{time.time_ns()}.json"
    path.write_text(json.dumps({"spec": asdict(collection.spec), "items": damaged}, ensure_ascii=False, indent=1))
    return str(path)
