"""Filters from three fields, as the store takes them."""

import pytest

from app.filters import AT_LEAST, HAS, IS, IS_NOT, ONE_OF, RELATIONS, STARTS, read_where, with_condition
from nnclr_hub.errors import InvalidFilter
from nnclr_hub.store.where import to_sql


def test_conditions_come_one_to_another():
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
def test_whatever_is_typed_the_store_can_read(relation, value):
    to_sql(with_condition(None, "label", relation, value))


def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidFilter, match="name of a metadata field"):
        with_condition(None, "", HAS, "")
    with pytest.raises(InvalidFilter, match="no relation 'smells like'"):
        with_condition(None, "label", "smells like", "cat")
    assert read_where("  ") is None
    for text in ("{", "[]", "3", '"label"'):
        with pytest.raises(InvalidFilter):
            read_where(text)
