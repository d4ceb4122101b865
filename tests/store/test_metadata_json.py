"""Metadata is stored as the JSON that the standard library makes of it, or refused."""

import json
import types
import uuid
from enum import Enum

import numpy as np
import pytest

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.checks import MAX_METADATA, check_items, metadata_json

NO_VECTOR = np.zeros(0, np.float32)


def stored(metadata):
    return json.loads(metadata_json(Item("a", NO_VECTOR, metadata)))


class Kind(Enum):
    CAT = "cat"
    NUL = "x\0y"


@pytest.mark.parametrize(
    "metadata",
    [
        {"n": [2**53 + 1, 2**63, -(2**64), 2**200, True, None, 1e16, 5e-324, -0.0]},
        {2: "number", True: "flag", None: "nothing"},
        {"null": "null", "text": 'ä\u2028\x7f"\\\n'},
        {"pair": ("a", 1), "of": types.SimpleNamespace(a=1).__dict__},
        {},
    ],
)
def test_metadata_is_what_the_standard_library_makes_of_it(metadata):
    assert stored(metadata) == json.loads(json.dumps(metadata))
    assert list(stored(metadata)) == list(json.loads(json.dumps(metadata)))


def test_other_mappings_and_values_become_their_json():
    assert stored(types.MappingProxyType({"b": 1, "a": None})) == {"b": 1, "a": None}
    assert stored({"kind": Kind.CAT, "id": uuid.UUID(int=1)}) == {"kind": "cat", "id": str(uuid.UUID(int=1))}
    assert stored({"broken \udcff": ["\udcff", None]}) == {"broken ?": ["?", None]}


def among_others(metadata):
    """Return five items; the third has this metadata."""
    plain = {"path": "a\nb", "n": 1}
    all_metadata = [plain, plain, metadata, plain, plain]
    return [Item(f"i{n}", np.ones(2, np.float32), one) for n, one in enumerate(all_metadata)]


@pytest.mark.parametrize(
    "metadata",
    [
        {"text": "\n\r\u2028", "deep": {"a": [{"b": "}{]["}]}},
        {"none": None},
        {"text": "\\u0000"},
        {2: "number"},
        {"broken \udcff": 1},
        {"long": "x" * 300, "deep": json.loads("[" * 99 + "]" * 99)},
        types.MappingProxyType({"a": 1}),
        {},
    ],
)
def test_items_of_one_request_have_the_metadata_that_each_has_alone(metadata):
    items = among_others(metadata)
    assert check_items(items, CollectionSpec(2))[1] == [metadata_json(item) for item in items]


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        "x\0y",
        Kind.NUL,
        {1, 2},
        b"bytes",
        np.float32(1),
        object(),
        json.loads("[" * 101 + "]" * 101),
        "x" * MAX_METADATA,
    ],
)
def test_what_is_not_json_is_refused(value):
    with pytest.raises(InvalidRequest):
        stored({"value": [value]})
    with pytest.raises(InvalidRequest):
        check_items(among_others({"value": [value]}), CollectionSpec(2))
