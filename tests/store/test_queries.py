"""Searches that are made of searches, against loops over everything."""

import numpy as np
import pytest
from store.exhaustive import DIM, unit, vectors

from nnclr_hub.errors import InvalidFilter, InvalidRequest, ItemNotFound
from nnclr_hub.store import open_store, queries
from nnclr_hub.store.base import CollectionSpec, Item, SearchOptions
from nnclr_hub.store.queries import best_per_group, search_like

COUNT, GROUPS = 400, 60
VECTORS = vectors(COUNT)
IN_GROUP = np.random.default_rng(1).integers(0, GROUPS, COUNT)
EVEN = {"must": [{"key": "even", "match": True}]}


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    with open_store(str(tmp_path_factory.mktemp("store"))) as store:
        made = store.create("c", CollectionSpec(DIM))
        groups = [{"group": int(IN_GROUP[n])} if n % 10 else {} for n in range(COUNT)]
        made.upsert([Item(f"i{n:03}", row, {"even": n % 2 == 0, **groups[n]}) for n, row in enumerate(VECTORS)])
        yield made


def names(order) -> list[str]:
    return [f"i{n:03}" for n in order]


@pytest.mark.parametrize(("positive", "negative"), [([3], []), ([3, 40, 7], []), ([5], [6]), ([1, 2], [3, 4, 5])])
def test_examples_pull_and_push_and_are_not_among_the_answers(collection, positive, negative):
    p = VECTORS[positive].mean(axis=0)
    query = p + (p - VECTORS[negative].mean(axis=0)) if negative else p
    scores = VECTORS @ unit(query)
    order = [n for n in np.argsort(-scores) if n not in positive + negative]
    found = search_like(collection, names(positive), names(negative), k=9)
    assert [match.id for match in found] == names(order[:9])
    assert [match.score for match in found] == pytest.approx(scores[order[:9]], abs=1e-5)
    by_vector = search_like(collection, 7 * VECTORS[positive], list(VECTORS[negative]), k=COUNT)
    assert [match.score for match in by_vector] == pytest.approx(np.sort(scores)[::-1], abs=1e-5)  # length counts not
    options = SearchOptions(EVEN, score_threshold=0.3, with_vector=True)
    found = search_like(collection, names(positive), names(negative), k=COUNT, options=options)
    wanted = [n for n in order if n % 2 == 0 and scores[n] >= 0.3]
    assert [match.id for match in found] == names(wanted)
    assert np.allclose([match.vector for match in found], VECTORS[wanted].reshape(-1, DIM), atol=1e-6)


def test_wrong_examples_are_refused(collection):
    with pytest.raises(ItemNotFound):
        search_like(collection, ["i001", "x"], ["y"])
    for positive, negative in (
        *(([], ["i001"]), ("i001", ()), ([VECTORS[0], -VECTORS[0]], ()), (["i001", np.zeros(3)], ())),
        (["i001"], [np.full(DIM, np.nan)]),
    ):
        with pytest.raises(InvalidRequest):
            search_like(collection, positive, negative)
    with pytest.raises(InvalidRequest):
        search_like(collection, ["i001"], k=10_000)


def test_queries_that_are_not_numbers_are_refused(collection):
    with pytest.raises(InvalidRequest, match=r"^k must be a whole number from 1 to 10000, got 3\.0\.$"):
        collection.search_each(VECTORS[:1], k=3.0)
    with pytest.raises(InvalidRequest, match=r"^Vectors must be a list or array of numbers, got 'abc'\.$"):
        collection.search_each("abc")
    for rows in (VECTORS[:2] + 1j, list(VECTORS[:2] + 1j)):  # their real parts are vectors
        with pytest.raises(InvalidRequest, match=r"^The vector of query 0 is not .* \(they are complex\)\.$"):
            collection.search_each(rows)


@pytest.mark.parametrize("largest", [10_000, 16])
def test_the_best_of_each_group_is_that_of_a_loop_also_beyond_what_one_search_returns(collection, largest, monkeypatch):
    monkeypatch.setattr(queries, "AT_ONCE", largest)
    for seed, k in enumerate((1, 7, GROUPS, 500)):
        query = unit(np.random.default_rng(seed).normal(size=DIM))
        best: dict[int, int] = {}
        for n in np.argsort(-(VECTORS @ query)):
            if n % 10:
                best.setdefault(IN_GROUP[n], n)
        found = best_per_group(collection, query, "group", k)
        assert [match.id for match in found] == names(best.values())[:k]
        assert all(match.vector is None for match in found)
    found = best_per_group(
        collection, VECTORS[10], "even", 9, SearchOptions(EVEN, score_threshold=0.2, with_vector=True)
    )
    assert [match.id for match in found] == ["i010"]
    assert np.allclose(found[0].vector, VECTORS[10], atol=1e-6)
    for wrong in ({"must": "even"}, ["even"]):
        with pytest.raises(InvalidFilter):
            best_per_group(collection, query, "group", 3, SearchOptions(wrong))


def test_groups_are_of_values_that_are_equal_as_json_is(tmp_path, monkeypatch):
    values = [1, 1.0, True, "1", None, [1, 2], [1, 2], {"a": 1}, 2**63, 2**63, "x", "x"]
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(DIM))
        assert best_per_group(collection, np.ones(DIM), "v") == []
        collection.upsert([Item(f"{n:02}", VECTORS[n], {"v": value}) for n, value in enumerate(values)])
        assert len(best_per_group(collection, np.ones(DIM), "v", 20)) == 7
        monkeypatch.setattr(queries, "AT_ONCE", 1)
        with pytest.raises(InvalidRequest):  # a list, which no filter can leave out, hides others
            best_per_group(collection, VECTORS[5], "v", 2)
