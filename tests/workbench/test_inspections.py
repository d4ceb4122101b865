"""Inspections that are kept with a store."""

import numpy as np
import pytest

from nnclr_hub.errors import InspectionNotFound, InvalidRequest
from nnclr_hub.store import open_store
from nnclr_hub.store.base import Item
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.workbench.inspections import (
    KEPT,
    get_inspection,
    inspect_collection,
    is_current,
    keep_inspection,
    list_inspections,
)


@pytest.fixture
def store(tmp_path):
    with open_store(str(tmp_path / "store")) as opened:
        yield opened


def fill(store, count: int = 60):
    """Return a collection of two groups of vectors."""
    collection = store.create("points", CollectionSpec(dim=8))
    random = np.random.default_rng(0)
    centers = np.eye(8)[:2] * 3
    vectors = [centers[i % 2] + random.normal(0, 0.3, 8) for i in range(count)]
    collection.upsert([Item(f"{i:03}", v.astype(np.float32), {"label": "ab"[i % 2]}) for i, v in enumerate(vectors)])
    return collection


def test_what_is_kept_is_what_was_found(store):
    collection = fill(store)
    made = inspect_collection(collection)
    keep_inspection(store.records, made)
    kept = get_inspection(store.records, collection)
    assert kept.ids == made.ids == tuple(f"{i:03}" for i in range(60))
    assert np.array_equal(kept.coordinates, made.coordinates)
    assert kept.coordinates.shape == (60, 2)
    assert np.array_equal(kept.clusters, made.clusters)
    assert np.array_equal(kept.outlier_scores, made.outlier_scores)
    assert kept.findings["images"] == 60
    left, right = kept.coordinates[::2], kept.coordinates[1::2]
    apart = np.linalg.norm(left.mean(0) - right.mean(0))
    assert apart > np.linalg.norm(left - left.mean(0), axis=1).mean(), "the two groups are apart on the map"


def test_the_newest_are_kept_and_say_whether_they_are_current(store):
    collection = fill(store)
    made = inspect_collection(collection)
    for _ in range(KEPT + 2):
        keep_inspection(store.records, made)
    assert list_inspections(store.records, collection) == list(range(KEPT + 2, 2, -1))
    assert is_current(get_inspection(store.records, collection), collection)
    collection.delete(["000"])
    assert not is_current(get_inspection(store.records, collection), collection)
    with pytest.raises(InspectionNotFound):
        get_inspection(store.records, collection, 1)


def test_a_collection_of_the_same_name_does_not_inherit_them(store):
    keep_inspection(store.records, inspect_collection(fill(store)))
    store.drop("points")
    collection = fill(store)
    assert list_inspections(store.records, collection) == []
    with pytest.raises(InspectionNotFound):
        get_inspection(store.records, collection)


def test_a_collection_with_one_item_is_refused(store):
    with pytest.raises(InvalidRequest):
        inspect_collection(fill(store, 1))
