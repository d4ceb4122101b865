"""The JSON schema of filters, for OpenAPI. `store.where` checks them, and also reports what is wrong."""

from __future__ import annotations

from typing import Any

from nnclr_hub.store.where import MAX_CONDITIONS, MAX_IN
from nnclr_hub.workbench.privacy import ROOT

KEY: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 128,
    "pattern": r'^[^"\\\u0000]+$',
    "not": {"const": ROOT},
}
_TEXT = {"type": "string", "pattern": r"^[^\u0000]*$"}
_VALUE = {"anyOf": [_TEXT, {"type": "number", "minimum": -9e18, "maximum": 9e18}]}
_SCALAR = {"anyOf": [*_VALUE["anyOf"], {"type": "boolean"}, {"type": "null"}]}
_KINDS = {
    "match": _SCALAR,
    "in": {"type": "array", "items": _SCALAR, "maxItems": MAX_IN},
    "range": {
        "type": "object",
        "properties": dict.fromkeys(("gt", "gte", "lt", "lte"), _VALUE),
        "additionalProperties": False,
        "minProperties": 1,
    },
    "exists": {"type": "boolean"},
    "prefix": _TEXT,
}
CONDITION: dict[str, Any] = {
    "type": "object",
    "properties": {"key": KEY, **_KINDS},
    "required": ["key"],
    "additionalProperties": False,
    "oneOf": [{"required": [kind]} for kind in _KINDS],
}
WHERE: dict[str, Any] = {
    "type": "object",
    "description": "filter on metadata: must, should and must_not, each a list of conditions; at most 64 together",
    "examples": [{"must": [{"key": "label", "match": "cat"}]}],
    "properties": {
        name: {"type": "array", "items": CONDITION, "maxItems": MAX_CONDITIONS}
        for name in ("must", "should", "must_not")
    },
    "additionalProperties": False,
}
