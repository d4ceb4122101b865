"""Metadata filters that a user builds from three fields; the result is a `where` in the form of REST.

with_condition(None, "label", "is", "cat")      # {"must": [{"key": "label", "match": "cat"}]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nnclr_hub.errors import InvalidFilter

IS, IS_NOT, STARTS, ONE_OF, AT_LEAST, AT_MOST, EXISTS = (
    "is",
    "is not",
    "starts with",
    "is one of (comma-separated)",
    "is at least",
    "is at most",
    "exists",
)
RELATIONS = (IS, IS_NOT, STARTS, ONE_OF, AT_LEAST, AT_MOST, EXISTS)


def with_condition(where: Mapping[str, Any] | None, key: str, relation: str, value: str) -> dict[str, Any]:
    """Return the filter with one more condition, which must hold too.

    Args:
        relation: one of RELATIONS.
        value: as typed; a number, true, false and null have the meaning of JSON.

    Raises:
        InvalidFilter: the key is empty, or the relation is unknown.
    """
    if not isinstance(key, str) or not key:
        raise InvalidFilter("Enter the name of a metadata field, such as label.")
    conditions: dict[str, Any] = {
        IS: {"match": _value(value)},
        IS_NOT: {"match": _value(value)},
        STARTS: {"prefix": value},
        ONE_OF: {"in": [_value(one.strip()) for one in value.split(",")]},
        AT_LEAST: {"range": {"gte": _value(value)}},
        AT_MOST: {"range": {"lte": _value(value)}},
        EXISTS: {"exists": True},
    }
    if relation not in conditions:
        raise InvalidFilter(f"Unknown relation {relation!r:.40}; use one of {', '.join(RELATIONS)}.")
    part = "must_not" if relation == IS_NOT else "must"
    existing = dict(where or {})
    return {**existing, part: [*existing.get(part, []), {"key": key, **conditions[relation]}]}


def read_where(text: str) -> dict[str, Any] | None:
    """Parse the filter in a text field; return None if the field is empty.

    Raises:
        InvalidFilter: it is not a JSON object.
    """
    if not text.strip():
        return None
    try:
        where = json.loads(text)
    except ValueError as error:
        example = '{"must": [{"key": "label", "match": "cat"}]}'
        raise InvalidFilter(f"The filter is not valid JSON ({error}). Example: {example}.") from error
    if not isinstance(where, dict):
        raise InvalidFilter(f"The filter must be an object with must, should or must_not, got {where!r:.80}.")
    return where


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, dict | list) else value
