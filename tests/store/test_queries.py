"""Searches made of searches, and duplicates, against loops over everything."""

import numpy as np
import pytest

from nnclr_hub.errors import InvalidFilter, InvalidRequest, ItemNotFound
from nnclr_hub.store import open_store, queries
from nnclr_hub.store.base import CollectionSpec, Item, SearchOptions
from nnclr_hub.store.queries import best_per_group, search_like
from nnclr_hub.workbench.duplicates import exact_duplicates, near_duplicates, same_value
from nnclr_hub.workbench.image_record import PIXEL_HASH

DIM, COUNT, GROUPS = 8, 400, 60


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return unit(np.random.default_rng(0).normal(size=(COUNT, DIM)))


@pytest.fixture(scope="module")
def groups() -> np.ndarray:
    return np.random.default_rng(1).integers(0, GROUPS, COUNT)


@pytest.fixture(scope="module")
def collection(vectors, groups, tmp_path_factory):
    with open_store(str(tmp_path_factory.mktemp("store"))) as store:
        made = store.create("c", CollectionSpec(DIM))
        items = [
            Item(f"i{n:03}", vector, {"group": int(groups[n]), "even": n % 2 == 0} if n % 10 else {"even": True})
            for n, vector in enumerate(vectors)
        ]
        made.upsert(items)
        yield made


def names(order) -> list[str]:
    return [f"i{n:03}" for n in order]


@pytest.mark.parametrize(("positive", "negative"), [([3], []), ([3, 40, 7], []), ([5], [6]), ([1, 2], [3, 4, 5])])
def test_examples_pull_and_push_and_are_not_among_the_answers(collection, vectors, positive, negative):
    p = vectors[positive].mean(axis=0)
    query = p + (p - vectors[negative].mean(axis=0)) if negative else p
    scores = vectors @ unit(query)
    order = [n for n in np.argsort(-scores) if n not in positive + negative][:9]
    found = search_like(collection, names(positive), names(negative), k=9)
    assert [match.id for match in found] == names(order)
    assert [match.score for match in found] == pytest.approx(scores[order], abs=1e-5)
    by_vector = search_like(collection, 7 * vectors[positive], list(vectors[negative]), k=COUNT)
    assert [match.score for match in by_vector] == pytest.approx(np.sort(scores)[::-1], abs=1e-5)  # length counts not


def test_examples_keep_filter_threshold_and_vectors(collection, vectors):
    where = {"must": [{"key": "even", "match": True}]}
    options = SearchOptions(where, score_threshold=0.3, with_vector=True)
    found = search_like(collection, ["i001"], k=COUNT, options=options)
    scores = vectors @ vectors[1]
    wanted = [n for n in np.argsort(-scores) if n % 2 == 0 and scores[n] >= 0.3]
    assert [match.id for match in found] == names(wanted)
    np.testing.assert_allclose([match.vector for match in found], vectors[wanted], atol=1e-6)


def test_fewer_neighbors_than_k_only_where_fewer_exist(collection):
    assert len(search_like(collection, names(range(30)), k=COUNT)) == COUNT - 30


def test_wrong_examples_are_refused(collection, vectors):
    with pytest.raises(ItemNotFound, match="'x', 'y'"):
        search_like(collection, ["i001", "x"], ["y"])
    with pytest.raises(InvalidRequest):
        search_like(collection, [], ["i001"])
    with pytest.raises(InvalidRequest):
        search_like(collection, "i001")
    with pytest.raises(InvalidRequest):
        search_like(collection, [vectors[0], -vectors[0]])
    with pytest.raises(InvalidRequest):
        search_like(collection, ["i001", np.zeros(3)])
    with pytest.raises(InvalidRequest):
        search_like(collection, ["i001"], [np.full(DIM, np.nan)])
    with pytest.raises(InvalidRequest):
        search_like(collection, ["i001"], k=10_000)


def brute_force_groups(vectors, groups, query, k) -> list[str]:
    seen, best = set(), []
    for n in np.argsort(-(vectors @ query)):
        if n % 10 and groups[n] not in seen:
            seen.add(groups[n])
            best.append(n)
    return names(best[:k])


@pytest.mark.parametrize("largest", [10_000, 16])
@pytest.mark.parametrize("k", [1, 7, GROUPS, 500])
def test_the_best_of_each_group_is_that_of_a_loop_also_beyond_what_one_search_returns(
    collection, vectors, groups, k, largest, monkeypatch
):
    monkeypatch.setattr(queries, "MAX_K", largest)
    for seed in range(5):
        query = unit(np.random.default_rng(seed).normal(size=DIM))
        found = best_per_group(collection, query, "group", k)
        assert [match.id for match in found] == brute_force_groups(vectors, groups, query, k)
        assert all(match.vector is None for match in found)


def test_groups_keep_filter_threshold_and_vectors(collection, vectors, groups):
    where = {"must_not": [{"key": "even", "match": True}]}
    query = vectors[11]
    options = SearchOptions(where, score_threshold=0.2, with_vector=True)
    found = best_per_group(collection, query, "group", 100, options)
    assert found[0].id == "i011"
    assert all(int(match.id[1:]) % 2 and match.score >= 0.2 for match in found)
    np.testing.assert_allclose([match.vector @ query for match in found], [match.score for match in found], atol=1e-5)
    with pytest.raises(InvalidFilter):
        best_per_group(collection, query, "group", 3, SearchOptions({"must": "even"}))
    with pytest.raises(InvalidFilter):
        best_per_group(collection, query, "group", 3, SearchOptions(["even"]))


@pytest.fixture
def odd(tmp_path):
    """Values of every JSON type."""
    values = [1, 1.0, True, "1", None, [1, 2], [1, 2], {"a": 1}, 2**70, 2**70, "x", "x", "x"]
    with open_store(str(tmp_path)) as store:
        made = store.create("c", CollectionSpec(DIM))
        rows = unit(np.random.default_rng(2).normal(size=(len(values), DIM)))
        items = [Item(f"{n:02}", row, {"v": value}) for n, (row, value) in enumerate(zip(rows, values, strict=True))]
        made.upsert([*items, Item("none", rows[0])])
        yield made


def test_values_are_equal_as_json_is(odd):
    assert same_value(odd, "v") == [("10", "11", "12"), ("00", "01"), ("05", "06"), ("08", "09")]
    assert same_value(odd, "nothing") == []
    assert len(best_per_group(odd, np.ones(DIM), "v", 20)) == 7


def test_groups_that_no_filter_can_name_are_refused_where_they_hide_others(odd, monkeypatch):
    monkeypatch.setattr(queries, "MAX_K", 1)
    with pytest.raises(InvalidRequest):
        best_per_group(odd, odd.get(["05"])[0].vector, "v", 2)


def test_exact_duplicates_have_the_same_pixels(odd):
    vector = np.ones(DIM)
    odd.upsert([Item(id, vector, {PIXEL_HASH: hash}) for id, hash in (("a", "p"), ("b", "q"), ("c", "p"))])
    seen = []
    assert exact_duplicates(odd, progress=lambda done, total: seen.append((done, total))) == [("a", "c")]
    assert seen[-1] == (3, 3)


@pytest.mark.parametrize(
    ("threshold", "exact"),
    [(0.0, False), *((threshold, exact) for threshold in (0.8, 0.9, 0.97) for exact in (False, True))],
)
def test_near_duplicates_have_complete_linkage(collection, vectors, threshold, exact):
    """At 0.0 every item has more neighbors than the first look asks for."""
    seen = []
    found = near_duplicates(collection, threshold, exact=exact, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (COUNT, COUNT)
    near = vectors @ vectors.T >= threshold - 1e-5
    place = {name: i for i, name in enumerate(names(np.arange(COUNT)))}
    groups = [[place[id] for id in group] for group in found]
    assert all(near[np.ix_(group, group)].all() for group in groups)
    # no two groups, or items that are in none, could be merged
    grouped = [i for group in groups for i in group]
    assert len(grouped) == len(set(grouped))
    parts = [*groups, *([i] for i in range(COUNT) if i not in grouped)]
    strict = vectors @ vectors.T >= threshold + 1e-5
    for i, one in enumerate(parts):
        assert not any(strict[np.ix_(one, other)].all() for other in parts[:i])


def test_a_calibrated_threshold_finds_copies_alone(tmp_path):
    random = np.random.default_rng(0)
    vectors = random.normal(size=(30, DIM))[random.integers(0, 30, 300)] + random.normal(size=(300, DIM))
    vectors[-20:] = vectors[:20] * (1 + 1e-3 * random.normal(size=(20, DIM)))
    with open_store(str(tmp_path)) as store:
        made = store.create("c", CollectionSpec(DIM))
        made.upsert([Item(f"{i:03d}", row.astype(np.float32)) for i, row in enumerate(vectors)])
        assert near_duplicates(made) == [(f"{i:03d}", f"{i + 280:03d}") for i in range(20)]
        other = store.create("l2", CollectionSpec(DIM, metric="l2"))
        for refused in (lambda: near_duplicates(other), lambda: near_duplicates(made, 7)):
            with pytest.raises(InvalidRequest):
                refused()


def test_near_duplicates_apply_the_filter_and_refuse_an_invalid_score(collection, vectors):
    where = {"must": [{"key": "even", "match": True}]}
    found = near_duplicates(collection, 0.8, where=where)
    assert {int(id[1:]) % 2 for group in found for id in group} == {0}
    for wrong in (1.5, -2, float("nan")):
        with pytest.raises(InvalidRequest):
            near_duplicates(collection, wrong)


def test_an_empty_collection_has_no_duplicates_and_no_groups(tmp_path):
    with open_store(str(tmp_path)) as store:
        made = store.create("c", CollectionSpec(DIM))
        assert near_duplicates(made, 0.9) == same_value(made, "v") == []
        assert best_per_group(made, np.ones(DIM), "v") == []
