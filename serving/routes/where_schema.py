"""The JSON schema of filters, for OpenAPI. `store.where` checks them, and also reports what is wrong."""

from __future__ import annotations

from typing import Any

from nnclr_hub.store.where import MAX_CONDITIONS, MAX_DEPTH, MAX_IDS, MAX_IN
from nnclr_hub.workbench.privacy import ROOT

KEY: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 128,
    "pattern": r'^[^"\\\u0000]+$',
    "not": {"const": ROOT},
}
MAX_NUMBER = 2**63 - 1
_TEXT = {"type": "string", "pattern": r"^[^\u0000]*$"}
_VALUE = {"anyOf": [_TEXT, {"type": "number", "minimum": -MAX_NUMBER, "maximum": MAX_NUMBER}]}
_SCALAR = {"anyOf": [*_VALUE["anyOf"], {"type": "boolean"}, {"type": "null"}]}
_SCALARS = {"type": "array", "items": _SCALAR, "maxItems": MAX_IN}


def _bounds(value: dict[str, Any]) -> dict[str, Any]:
    properties = dict.fromkeys(("gt", "gte", "lt", "lte"), value)
    return {"type": "object", "properties": properties, "additionalProperties": False, "minProperties": 1}


def _number(low: float, high: float) -> dict[str, Any]:
    return {"type": "number", "minimum": low, "maximum": high}


_KINDS = {
    "match": _SCALAR,
    "in": _SCALARS,
    "range": _bounds(_VALUE),
    "exists": {"type": "boolean"},
    "prefix": _TEXT,
    "contains": _SCALAR,
    "contains_any": _SCALARS,
    "contains_all": _SCALARS,
    "length": {"anyOf": [_number(-MAX_NUMBER, MAX_NUMBER), _bounds(_number(-MAX_NUMBER, MAX_NUMBER))]},
    "date": _bounds({"type": "string", "description": "ISO 8601, such as 2026-01-31 or 2026-01-31T12:00:00Z"}),
    "geo": {
        "type": "object",
        "properties": {"lat": _number(-90, 90), "lon": _number(-180, 180), "radius": _number(0, MAX_NUMBER)},
        "required": ["lat", "lon", "radius"],
        "additionalProperties": False,
    },
}
CONDITION: dict[str, Any] = {
    "type": "object",
    "properties": {"key": KEY, **_KINDS},
    "required": ["key"],
    "additionalProperties": False,
    "oneOf": [{"required": [kind]} for kind in _KINDS],
}
_ID = {"type": "string", "pattern": r"^(?!\.{1,2}$)[A-Za-z0-9._~-]{1,128}$"}
IDS: dict[str, Any] = {
    "type": "object",
    "properties": {"ids": {"type": "array", "items": _ID, "maxItems": MAX_IDS}},
    "required": ["ids"],
    "additionalProperties": False,
}
_NESTED = {"$ref": "#/components/schemas/Where"}  # `openapi.document` gives the schema below this name
WHERE: dict[str, Any] = {
    "type": "object",
    "description": (
        "filter on metadata: must, should and must_not, each a list of conditions or of further filters; at most "
        f"{MAX_CONDITIONS} together and {MAX_IDS} ids, at most {MAX_DEPTH} levels deep; an empty should matches "
        "nothing, an empty filter everything"
    ),
    "examples": [{"must": [{"key": "label", "match": "cat"}]}],
    "properties": {
        name: {"type": "array", "items": {"anyOf": [CONDITION, IDS, _NESTED]}, "maxItems": MAX_CONDITIONS}
        for name in ("must", "should", "must_not")
    },
    "additionalProperties": False,
}
