"""Metadata is stored as the JSON that the standard library makes of it, or refused."""

import json
import types
import uuid
from enum import Enum

import numpy as np
import pytest

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.base import Item
from nnclr_hub.store.checks import metadata_json

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
    ],
)
def test_what_is_not_json_is_refused(value):
    with pytest.raises(InvalidRequest):
        stored({"value": [value]})
