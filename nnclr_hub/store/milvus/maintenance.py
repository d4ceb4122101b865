"""Maintenance of a collection in Milvus: its index, verify, repair, compact."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.errors import CollectionNotFound, StoreError, StoreUnreachable
from nnclr_hub.store.base import Progress
from nnclr_hub.store.embedded.verification import NEIGHBORS, SAMPLE, Damaged, Sample, keep_metadata
from nnclr_hub.store.index_kinds import AUTO, milvus_kind
from nnclr_hub.store.milvus.client import SLOW_TIMEOUT, Connection
from nnclr_hub.store.milvus.names import encode
from nnclr_hub.store.milvus.rows import METRICS, is_damaged, to_vector
from nnclr_hub.store.milvus.search import exhaustive
from nnclr_hub.store.milvus.where import indexes
from nnclr_hub.store.reports import RepairReport, VerifyReport
from nnclr_hub.store.spec import CollectionSpec

if TYPE_CHECKING:
    from nnclr_hub.store.milvus.collection import MilvusCollection

log = logging.getLogger(__name__)
LOST = "nnclr-lost+found"
INDEXES = "NNCLR_MILVUS_INDEXES"  # environment variable


# ------------------------------------------------------------------------------ the index


def index_params(connection: Connection, spec: CollectionSpec) -> Any:
    """Return Milvus's parameters of the index for `spec.index`."""
    lite = connection.is_lite
    name, params = milvus_kind(spec.index, lite=lite).milvus_index(spec.dim, lite=lite)
    if spec.index == AUTO and not lite:
        name, params = "AUTOINDEX", {}
    made = connection.pymilvus.MilvusClient.prepare_index_params()
    made.add_index("vector", index_type=name, metric_type=METRICS[spec.metric], params=params)
    return made


def make_ready(connection: Connection, name: str, spec: CollectionSpec, *, wait: bool = False) -> None:
    """Ensure that a collection has its index and is loaded, also after a crash between those steps.

    Args:
        connection: to Milvus.
        name: of the collection.
        spec: of the collection.
        wait: until the index is built; without it, searches compare with every vector for a while. Milvus Lite builds
            the index when it loads the collection.
    """
    if not connection.call("list_indexes", encode(name), "vector"):
        made = index_params(connection, spec)
        connection.call("create_index", encode(name), made, timeout=SLOW_TIMEOUT, sync=wait and not connection.is_lite)
    connection.call("load_collection", encode(name), timeout=SLOW_TIMEOUT)


def index_facets(connection: Connection, name: str, keys: Iterable[str], before: Iterable[str] = ()) -> None:
    """Create the indexes of metadata keys that a collection lacks, if $NNCLR_MILVUS_INDEXES is 1.

    They were never tested on a server, and Milvus has had errors by which filters with such an index return wrong rows
    (#40629, #46460, #51143 of milvus-io/milvus). Milvus Lite and servers before 2.5.11 refuse them.

    Args:
        connection: to Milvus.
        name: of the collection.
        keys: of the metadata that are indexed.
        before: keys that were indexed; indexes of those that no longer are get dropped.
    """
    wanted, old = indexes(keys if os.environ.get(INDEXES) == "1" else ()), indexes(before)
    try:
        known = connection.call("list_indexes", encode(name), "facets") if wanted or old else ()
        for index in sorted(old.keys() & set(known) - wanted.keys()):
            connection.call("drop_index", encode(name), index, timeout=SLOW_TIMEOUT)
        for index in sorted(wanted.keys() - set(known)):
            path, kind = wanted[index]
            made = connection.pymilvus.MilvusClient.prepare_index_params()
            made.add_index("facets", "INVERTED", index, params={"json_path": path, "json_cast_type": kind})
            connection.call("create_index", encode(name), made, timeout=SLOW_TIMEOUT, sync=False)
    except (StoreUnreachable, CollectionNotFound):
        raise
    except StoreError as error:
        log.warning("filters on %s are not indexed (%s)", name, error)


def index_kind(collection: MilvusCollection) -> str:
    """Return Milvus's name of the index, in lower case."""
    described = collection.call("describe_index", "vector")
    return str((described or {}).get("index_type", "none")).lower()


def compact(collection: MilvusCollection) -> None:
    """Let Milvus merge segments without deleted items, while searches and writes continue.

    Raises:
        StoreError: Milvus does not finish in time.
    """
    collection.call("flush", timeout=SLOW_TIMEOUT)
    job = collection.call("compact", timeout=SLOW_TIMEOUT)
    end = time.monotonic() + SLOW_TIMEOUT
    while collection.connection.call("get_compaction_state", job) != "Completed":
        if time.monotonic() > end:
            raise StoreError(
                f"Milvus at {collection.connection.name} did not finish compacting {collection.name!r} within "
                f"{SLOW_TIMEOUT:.0f} s; it continues in the background."
            )
        time.sleep(0.5)


# ------------------------------------------------------------------------------ verify and repair


def verify(collection: MilvusCollection, progress: Progress) -> VerifyReport:
    """Compare every vector with its checksum, and a sample's neighbors with an exhaustive search.

    Items that Milvus's index lacks can only be noticed by searches, so `missing` stays empty.
    """
    total = collection.count()
    step = max(1, total // SAMPLE)
    damaged: list[str] = []
    ids: list[str] = []
    vectors: list[np.ndarray] = []
    done = 0
    for done, row in enumerate(collection.scan(collection.plan(None), ["id", "vector", "crc"]), 1):
        if is_damaged(row, collection.spec):
            damaged.append(row["id"])
        elif (done - 1) % step == 0:
            ids.append(row["id"])
            vectors.append(to_vector(row))
        progress(done, total)
    if not ids:
        return VerifyReport(done, tuple(damaged), ())
    queries = np.stack(vectors)
    true = exhaustive(collection, queries, NEIGHBORS, collection.plan(None))
    sample = Sample(ids, queries, [{match.id: match.score for match in matches} for matches in true])
    disagreements, recall = sample.compare(collection.search_batch(queries, NEIGHBORS))
    return VerifyReport(done, tuple(damaged), tuple(disagreements), (), recall)


def repair(collection: MilvusCollection, progress: Progress) -> RepairReport:
    """Remove items with a damaged vector, and let Milvus rebuild its index; searches fail during the rebuild."""
    total = collection.count()
    damaged: list[Damaged] = []
    rows = collection.scan(collection.plan(None), ["id", "vector", "metadata", "crc"])
    for done, row in enumerate(rows, 1):
        if is_damaged(row, collection.spec):
            damaged.append(Damaged(done, row["id"], row["metadata"]))
        progress(done, total)
    # next to a Milvus Lite file, or in the working folder
    place = Path(collection.connection.name).parent if collection.connection.is_file else Path()
    kept_in = keep_metadata(place / LOST, collection.name, damaged)
    if damaged:
        collection.delete([one.id for one in damaged])
    name, call = encode(collection.name), collection.connection.call
    call("release_collection", name, timeout=SLOW_TIMEOUT)
    for index in call("list_indexes", name):
        call("drop_index", name, index, timeout=SLOW_TIMEOUT)
    make_ready(collection.connection, collection.name, collection.spec, wait=True)
    index_facets(collection.connection, collection.name, collection.spec.indexed)
    return RepairReport(collection.count(), tuple(one.id for one in damaged), kept_in)
