"""The care of a collection in Milvus: its index, verifying, repairing, compacting."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from nnclr_hub.errors import StoreError
from nnclr_hub.store.base import Progress, RepairReport, VerifyReport
from nnclr_hub.store.embedded.verification import NEIGHBORS, SAMPLE, Damaged, Sample, write_down
from nnclr_hub.store.milvus.client import SLOW_TIMEOUT, Connection
from nnclr_hub.store.milvus.held import Held
from nnclr_hub.store.milvus.names import encode
from nnclr_hub.store.milvus.rows import METRICS, is_damaged, to_vector
from nnclr_hub.store.milvus.search import NLIST, exhaustive
from nnclr_hub.store.milvus.where import plan
from nnclr_hub.store.spec import CollectionSpec

LOST = "nnclr-lost+found"


# ------------------------------------------------------------------------------ the index


def index_params(connection: Connection, spec: CollectionSpec) -> Any:
    """The index that Milvus has for `spec.index`; Milvus Lite has no product quantizer, but scalars of 8 bits."""
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

    wait: until the index is built; meanwhile searches compare with every vector. Milvus Lite builds while it loads.
    """
    if not connection.call("list_indexes", encode(name)):
        made = index_params(connection, spec)
        connection.call("create_index", encode(name), made, timeout=SLOW_TIMEOUT, sync=wait and not connection.is_lite)
    connection.call("load_collection", encode(name), timeout=SLOW_TIMEOUT)


def index_kind(collection: Held) -> str:
    """Milvus's name of the index, in small letters."""
    described = collection.call("describe_index", "vector")
    return str((described or {}).get("index_type", "none")).lower()


def compact(collection: Held) -> None:
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
                f"Milvus at {collection.connection.name} has not compacted {collection.name!r} within "
                f"{SLOW_TIMEOUT:.0f} s: it goes on by itself."
            )
        time.sleep(0.5)


# ------------------------------------------------------------------------------ verifying and repairing


def verify(collection: Held, progress: Progress) -> VerifyReport:
    """Reads every vector, compares it with its checksum, and a sample's neighbors with an exhaustive search.

    What Milvus's index lacks cannot be seen from outside but by searching, so `missing` stays empty.
    """
    total = collection.count()
    step = max(1, total // SAMPLE)
    damaged: list[str] = []
    ids: list[str] = []
    vectors: list[np.ndarray] = []
    done = 0
    for done, row in enumerate(collection.scan(plan(None), None, ["id", "vector", "crc"]), 1):
        if is_damaged(row, collection.spec):
            damaged.append(row["id"])
        elif (done - 1) % step == 0:
            ids.append(row["id"])
            vectors.append(to_vector(row))
        progress(done, total)
    if not ids:
        return VerifyReport(done, tuple(damaged), ())
    queries = np.stack(vectors)
    true = exhaustive(collection, queries, NEIGHBORS, None, plan(None))
    sample = Sample(ids, queries, [{match.id: match.score for match in matches} for matches in true])
    disagreements, recall = sample.compare(collection.search_batch(queries, NEIGHBORS))
    return VerifyReport(done, tuple(damaged), tuple(disagreements), (), recall)


def repair(collection: Held, progress: Progress) -> RepairReport:
    """Takes out items whose vector is damaged, and has Milvus build its index anew; searches fail meanwhile."""
    total = collection.count()
    damaged: list[Damaged] = []
    rows = collection.scan(plan(None), None, ["id", "vector", "metadata", "crc"])
    for done, row in enumerate(rows, 1):
        if is_damaged(row, collection.spec):
            damaged.append(Damaged(done, row["id"], row["metadata"]))
        progress(done, total)
    # beside a Milvus Lite file, or in the working folder
    place = Path(collection.connection.name).parent if collection.connection.is_file else Path()
    kept_in = write_down(place / LOST, collection.name, damaged)
    if damaged:
        collection.delete([one.id for one in damaged])
    name, call = encode(collection.name), collection.connection.call
    call("release_collection", name, timeout=SLOW_TIMEOUT)
    for index in call("list_indexes", name):
        call("drop_index", name, index, timeout=SLOW_TIMEOUT)
    make_ready(collection.connection, collection.name, collection.spec, wait=True)
    return RepairReport(collection.count(), tuple(one.id for one in damaged), kept_in)
