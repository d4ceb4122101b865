"""Filters from three fields, as the store accepts them."""

import pytest

from app.filters import AT_LEAST, EXISTS, IS, IS_NOT, ONE_OF, RELATIONS, STARTS, read_where, with_condition
from nnclr_hub.errors import InvalidFilter
from nnclr_hub.store.where import parse


def test_conditions_are_combined():
    where = with_condition(None, "label", IS, "cat")
    where = with_condition(where, "size", AT_LEAST, "1000")
    where = with_condition(where, "label", IS_NOT, "dog")
    assert where == {
        "must": [{"key": "label", "match": "cat"}, {"key": "size", "range": {"gte": 1000}}],
        "must_not": [{"key": "label", "match": "dog"}],
    }
    assert with_condition(None, "label", ONE_OF, "cat, 3, true")["must"][0]["in"] == ["cat", 3, True]
    assert with_condition(None, "path", STARTS, "12/")["must"][0]["prefix"] == "12/"


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("value", ["cat", "12", "-0.5", "{}", "a,b", ""])
def test_the_store_accepts_every_condition(relation, value):
    parse(with_condition(None, "label", relation, value))


def test_an_invalid_filter_is_rejected():
    for key, relation in (("", EXISTS), ("label", "smells like")):
        with pytest.raises(InvalidFilter):
            with_condition(None, key, relation, "cat")
    assert read_where("  ") is None
    for text in ("{", "[]", "3", '"label"'):
        with pytest.raises(InvalidFilter):
            read_where(text)
