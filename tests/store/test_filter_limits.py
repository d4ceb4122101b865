"""Filters have limits on what they compare, cost and remember; an empty list of alternatives matches nothing."""

import numpy as np
import pytest

from nnclr_hub.errors import InvalidFilter, InvalidRequest
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item


@pytest.fixture(params=["store", "x.milvus.db"])
def store(request, tmp_path):
    with open_store(str(tmp_path / request.param)) as opened:
        yield opened


@pytest.mark.parametrize(
    "number", [10**309, -(10**400), 2 * 10**308, [1, {"x": 10**310}]], ids=["large", "negative", "least", "nested"]
)
def test_numbers_that_no_filter_can_compare_are_refused_and_break_nothing(store, number):
    collection = store.create("c", CollectionSpec(4, indexed=("n",)))
    collection.upsert([Item("a", np.ones(4), {"n": 10**308, "m": -(2**63)}), Item("b", np.ones(4), {"n": 2**64})])
    for write in (
        lambda: collection.upsert([Item("c", np.ones(4)), Item("a", np.ones(4), {"n": number})]),
        lambda: collection.update_metadata({"n": number}, ids=["a"]),
        lambda: collection.update_metadata({"x": {"y": number}}, where={}),
        lambda: collection.update_each({"a": {"n": number}}),
    ):
        with pytest.raises(InvalidRequest):
            write()
    with pytest.raises(InvalidFilter):
        collection.count({"must": [{"key": "n", "match": number}]})
    assert collection.count({"must": [{"key": "n", "range": {"gt": 2**53 - 1}}]}) == 2


def test_an_empty_should_matches_nothing(store):
    """As an empty list of ids or values does: it may come from an empty selection."""
    collection = store.create("c", CollectionSpec(4, indexed=("n",)))
    collection.upsert([Item(str(i), np.ones(4), {"n": i}) for i in range(5)])
    empty = {"should": []}
    for where in (empty, {**empty, "must": []}, {"must": [{"key": "n", "exists": True}], **empty}, {"must": [empty]}):
        assert collection.count(where) == 0
        assert collection.search(np.ones(4), 3, where=where) == []
        assert collection.scroll(where=where).items == []
        assert collection.update_metadata({"n": 9}, where=where) == 0
        assert collection.delete(where=where) == 0
    assert collection.count({"must_not": [empty]}) == collection.count({"should": [{"must": []}]}) == 5
    assert collection.count({}) == collection.count({"must": [], "must_not": []}) == 5


def test_a_filter_on_many_keys_that_no_item_has_costs_no_memory_and_finds_new_ones(tmp_path):
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(2))
        metadata = [{"label": "a", "camera": {"model": i}} for i in range(2000)]
        collection.upsert([Item(str(i), np.ones(2, np.float32), about) for i, about in enumerate(metadata)])
        for before in ("", "label.", "camera.", "camera.model."):
            absent = [{"key": f"{before}k{i}", "match": 1} for i in range(64)]
            assert collection.count({"should": absent}) == 0
            assert collection.count({"must_not": absent[:60]}) == 2000
        assert collection.facets(["f"])["f"].items == 0
        collection.upsert([Item("new", np.ones(2), {"k0": 1, "camera": {"k1": 1}})])
        for key in ("k0", "camera.k1"):
            assert collection.count({"must": [{"key": key, "match": 1}]}) == 1
        collection.delete(["new"])
        assert collection.count({"must": [{"key": "k0", "match": 1}]}) == 0
