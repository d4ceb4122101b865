"""Exact and near duplicates of a collection, against loops over everything."""

import numpy as np
import pytest

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.workbench.duplicates import exact_duplicates, near_duplicates
from nnclr_hub.workbench.metadata import PIXEL_HASH

DIM, COUNT = 8, 160


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


VECTORS = unit(np.random.default_rng(0).normal(size=(COUNT, DIM)))


@pytest.fixture
def store(tmp_path):
    with open_store(str(tmp_path)) as opened:
        yield opened


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    with open_store(str(tmp_path_factory.mktemp("store"))) as store:
        made = store.create("c", CollectionSpec(DIM))
        made.upsert([Item(f"i{n:03}", vector, {"even": n % 2 == 0}) for n, vector in enumerate(VECTORS)])
        yield made


def test_items_with_equal_pixels_are_exact_duplicates(store):
    odd = store.create("odd", CollectionSpec(DIM))
    assert exact_duplicates(odd) == near_duplicates(odd, 0.9) == []
    hashes = {"a": "p", "b": "q", "c": "p", "d": "r", "e": "q", "f": "p"}
    odd.upsert([Item(id, np.ones(DIM), {PIXEL_HASH: hash}) for id, hash in hashes.items()])
    odd.upsert(
        [
            Item(id, np.ones(DIM), metadata)
            for id, metadata in zip("ghij", [{}, {}, *[{PIXEL_HASH: None}] * 2], strict=True)
        ]
    )
    seen = []
    assert exact_duplicates(odd, lambda done, total: seen.append((done, total))) == [("a", "c", "f"), ("b", "e")]
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize(("threshold", "exact"), [(0.0, False), (0.8, True), (0.9, False), (0.97, True)])
def test_near_duplicates_have_complete_linkage(collection, threshold, exact):
    """At 0.0 every item has more neighbors than the first look asks for."""
    seen = []
    found = near_duplicates(collection, threshold, exact=exact, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (COUNT, COUNT)
    near = threshold - 1e-5 <= VECTORS @ VECTORS.T
    groups = [[int(id[1:]) for id in group] for group in found]
    assert all(near[np.ix_(group, group)].all() for group in groups)
    # no two groups, or items that are in none, could be merged
    grouped = [i for group in groups for i in group]
    assert len(grouped) == len(set(grouped))
    parts = [*groups, *([i] for i in range(COUNT) if i not in grouped)]
    strict = threshold + 1e-5 <= VECTORS @ VECTORS.T
    for i, one in enumerate(parts):
        assert not any(strict[np.ix_(one, other)].all() for other in parts[:i])


def test_a_calibrated_threshold_finds_copies_alone(store):
    random = np.random.default_rng(0)
    vectors = random.normal(size=(30, DIM))[random.integers(0, 30, 300)] + random.normal(size=(300, DIM))
    vectors[-20:] = vectors[:20] * (1 + 1e-3 * random.normal(size=(20, DIM)))
    made = store.create("c", CollectionSpec(DIM))
    made.upsert([Item(f"{i:03d}", row.astype(np.float32)) for i, row in enumerate(vectors)])
    assert near_duplicates(made) == [(f"{i:03d}", f"{i + 280:03d}") for i in range(20)]
    other = store.create("l2", CollectionSpec(DIM, metric="l2"))
    for refused in (lambda: near_duplicates(other), lambda: near_duplicates(made, 7)):
        with pytest.raises(InvalidRequest):
            refused()


def test_near_duplicates_apply_the_filter_and_refuse_an_invalid_score(collection):
    found = near_duplicates(collection, 0.8, where={"must": [{"key": "even", "match": True}]})
    assert {int(id[1:]) % 2 for group in found for id in group} == {0}
    for wrong in (1.5, -2, float("nan")):
        with pytest.raises(InvalidRequest):
            near_duplicates(collection, wrong)
