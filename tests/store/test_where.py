"""Filters agree with a plain reading of their grammar, on random metadata; and bad ones are explained."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnclr_hub.errors import InvalidFilter
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item

values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, 2.5, -1.0]),
    st.sampled_from(["", "a", "ab", "b'\"x", "é"]),
)
keys = st.sampled_from(["label", "n", "odd key'", "missing"])
metadata = st.dictionaries(st.sampled_from(["label", "n", "odd key'"]), values, max_size=3)
numbers, strings = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, 2.0])), st.sampled_from(["", "a", "ab", "b"])
bounds = st.one_of(
    st.dictionaries(st.sampled_from(["gt", "gte", "lt", "lte"]), numbers, min_size=1),
    st.dictionaries(st.sampled_from(["gt", "gte", "lt", "lte"]), strings, min_size=1),
)
condition = st.one_of(
    st.fixed_dictionaries({"key": keys, "match": values}),
    st.fixed_dictionaries({"key": keys, "in": st.lists(values, max_size=3)}),
    st.fixed_dictionaries({"key": keys, "exists": st.booleans()}),
    st.fixed_dictionaries({"key": keys, "prefix": strings}),
    st.fixed_dictionaries({"key": keys, "range": bounds}),
)
filters = st.dictionaries(st.sampled_from(["must", "should", "must_not"]), st.lists(condition, max_size=3))


def holds(condition: dict, item: dict) -> bool:
    """One condition, read literally."""
    key = condition["key"]
    if "exists" in condition:
        return (key in item) == condition["exists"]
    if key not in item:
        return False
    value = item[key]

    def equal(a, b):
        return type_of(a) == type_of(b) and a == b

    def type_of(x):
        return "bool" if isinstance(x, bool) else "number" if isinstance(x, int | float) else type(x).__name__

    if "match" in condition:
        return equal(value, condition["match"])
    if "in" in condition:
        return any(equal(value, one) for one in condition["in"])
    if "prefix" in condition:
        return isinstance(value, str) and value.startswith(condition["prefix"])
    compare = {
        "gt": lambda a, b: a > b,
        "gte": lambda a, b: a >= b,
        "lt": lambda a, b: a < b,
        "lte": lambda a, b: a <= b,
    }
    return all(type_of(value) == type_of(b) and compare[name](value, b) for name, b in condition["range"].items())


def passes(where: dict, item: dict) -> bool:
    should = where.get("should", [])
    return (
        all(holds(c, item) for c in where.get("must", []))
        and (not should or any(holds(c, item) for c in should))
        and not any(holds(c, item) for c in where.get("must_not", []))
    )


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    with open_store(str(tmp_path_factory.mktemp("where"))) as store:
        yield store.create("c", CollectionSpec(4, indexed=("label", "odd key'")))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(metadata, min_size=1, max_size=12), filters)
def test_filters_agree_with_their_literal_reading(collection, items, where):
    """count, scroll and search alike; search finds as many as there are."""
    collection.delete([item.id for item in collection.scroll(limit=1000).items])
    rng = np.random.default_rng(0)
    collection.upsert([Item(f"i{i}", rng.normal(size=4), one) for i, one in enumerate(items)])
    want = {f"i{i}" for i, one in enumerate(items) if passes(where, one)}
    assert {item.id for item in collection.scroll(limit=1000, where=where).items} == want
    assert collection.count(where) == len(want)
    assert {match.id for match in collection.search(np.ones(4), 50, where)} == want


def test_filtered_search_is_exact_whether_few_or_many_pass(tmp_path):
    """Both of its ways: a scan of the few, and the index with a selector for the many."""
    rng = np.random.default_rng(0)
    made = rng.normal(size=(6000, 4)).astype(np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(4))
        for start in range(0, 6000, 2000):
            collection.upsert([Item(f"i{i}", made[i], {"n": i}) for i in range(start, start + 2000)])
        collection.compact()
        collection.delete([f"i{i}" for i in range(0, 6000, 7)])
        for top in (30, 5000):
            found = collection.search(made[1], 25, {"must": [{"key": "n", "range": {"lt": top}}]})
            alive = [i for i in range(top) if i % 7]
            want = sorted(alive, key=lambda i: -float(made[i] @ made[1]))[:25]
            assert [m.id for m in found] == [f"i{i}" for i in want]


@pytest.mark.parametrize(
    "where",
    [
        [],
        {"most": []},
        {"must": {"key": "a", "match": 1}},
        {"must": ["x"]},
        {"must": [{"match": 1}]},
        {"must": [{"key": "a"}]},
        {"must": [{"key": "a", "match": 1, "in": [2]}]},
        {"must": [{"key": "a", "like": "x"}]},
        {"must": [{"key": 'a"b', "match": 1}]},
        {"must": [{"key": "a", "match": {"x": 1}}]},
        {"must": [{"key": "a", "in": "abc"}]},
        {"must": [{"key": "a", "range": {"above": 1}}]},
        {"must": [{"key": "a", "range": {"gt": None}}]},
        {"must": [{"key": "a", "exists": 1}]},
        {"must": [{"key": "a", "prefix": 1}]},
        {"must": [{"key": "a", "match": 1}] * 65},
    ],
)
def test_a_bad_filter_is_explained(collection, where):
    with pytest.raises(InvalidFilter):
        collection.count(where)
