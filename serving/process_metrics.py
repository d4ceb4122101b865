"""Metrics that are read when Prometheus asks: the process, the build, and the collections of the store.

register_collectors(metrics.registry, store)
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Info, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import nnclr_hub
from nnclr_hub.errors import StoreError
from nnclr_hub.store.base import VectorStore

# gauge -> what it is, and its value in the `Statistics` of a collection
_GAUGES = {
    "nnclr_collection_items": ("Items of a collection.", lambda one: one.items),
    "nnclr_collection_file_bytes": ("Bytes of a collection on disk.", lambda one: one.file_bytes),
    "nnclr_collection_commits": ("Commits since the collection was opened.", lambda one: one.commits),
    "nnclr_collection_commit_seconds": ("Duration of the last commit.", lambda one: one.commit_seconds),
    "nnclr_collection_lag": (
        "Changes that are durable but not searchable yet.",
        lambda one: one.durable_seq - one.indexed_seq,
    ),
}


def register_collectors(registry: CollectorRegistry, store: VectorStore) -> None:
    """Add process_* (CPU, memory, open files), python_info, nnclr_build_info and nnclr_collection_* to a registry."""
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    Info("nnclr_build", "Version of nnclr_hub.", registry=registry).info({"version": nnclr_hub.__version__})
    registry.register(_Store(store))


class _Store(Collector):
    """Statistics of the open collections, which cost neither a query nor a lock.

    Args:
        store: whose collections are reported.
    """

    def __init__(self, store: VectorStore) -> None:
        self._store = store

    def describe(self) -> Iterator[Metric]:
        return iter(())  # so that registering does not read the store

    def collect(self) -> Iterator[Metric]:
        try:
            found = self._store.statistics()
        except (StoreError, OSError):
            found = {}  # the other metrics stay; /readyz and the log report why
        for name, (about, value) in _GAUGES.items():
            family = GaugeMetricFamily(name, about, labels=["collection"])
            for collection, one in found.items():
                family.add_metric([collection], float(value(one)))
            yield family
        index = GaugeMetricFamily(
            "nnclr_collection_index_bytes", "Memory of the index, by its kind.", labels=["collection", "kind"]
        )
        for collection, one in found.items():
            index.add_metric([collection, one.index], one.index_bytes)
        yield index
        free = [one.disk_free for one in found.values() if one.disk_free]
        disk = GaugeMetricFamily("nnclr_store_disk_free_bytes", "Free bytes on the disk of the store.")
        if free:
            disk.add_metric([], min(free))
        yield disk
