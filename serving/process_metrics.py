"""Metrics that are read when Prometheus asks: the process, the build, and the collections of the store.

register_collectors(metrics.registry, store)
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

import nnclr_hub
from nnclr_hub.errors import StoreError
from nnclr_hub.store.base import VectorStore
from nnclr_hub.store.reports import Statistics

# gauge -> the field of `Statistics`, and what it is
_GAUGES = {
    "nnclr_collection_items": ("items", "Items of a collection."),
    "nnclr_collection_file_bytes": ("file_bytes", "Bytes of a collection on disk."),
    "nnclr_collection_commits": ("commits", "Commits since the collection was opened."),
    "nnclr_collection_commit_seconds": ("commit_seconds", "Duration of the last commit."),
}


def register_collectors(registry: CollectorRegistry, store: VectorStore) -> None:
    """Add process_* (CPU, memory, open files), python_info, nnclr_build_info and nnclr_collection_* to a registry."""
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(_Build())
    registry.register(_Store(store))


class _Build(Collector):
    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("nnclr_build", "Version of nnclr_hub.", {"version": nnclr_hub.__version__})


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
        for name, (field, about) in _GAUGES.items():
            yield _gauge(name, about, {key: float(getattr(one, field)) for key, one in found.items()})
        lag = {key: float(one.durable_seq - one.indexed_seq) for key, one in found.items()}
        yield _gauge("nnclr_collection_lag", "Changes that are durable but not searchable yet.", lag)
        yield _index_bytes(found)
        free = [one.disk_free for one in found.values() if one.disk_free]
        disk = GaugeMetricFamily("nnclr_store_disk_free_bytes", "Free bytes on the disk of the store.")
        if free:
            disk.add_metric([], min(free))
        yield disk


def _gauge(name: str, about: str, values: dict[str, float]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=["collection"])
    for collection, value in values.items():
        family.add_metric([collection], value)
    return family


def _index_bytes(found: dict[str, Statistics]) -> Metric:
    family = GaugeMetricFamily(
        "nnclr_collection_index_bytes", "Memory of the index, by its kind.", labels=["collection", "kind"]
    )
    for collection, one in found.items():
        family.add_metric([collection, one.index], one.index_bytes)
    return family
