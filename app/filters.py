"""Filters on metadata that a person builds from three fields; what comes out is a `where` as REST takes it.

with_condition(None, "label", "is", "cat")      # {"must": [{"key": "label", "match": "cat"}]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nnclr_hub.errors import InvalidFilter

IS, IS_NOT, STARTS, ONE_OF, AT_LEAST, AT_MOST, HAS = (
    "is",
    "is not",
    "starts with",
    "is one of (comma between)",
    "is at least",
    "is at most",
    "is there",
)
RELATIONS = (IS, IS_NOT, STARTS, ONE_OF, AT_LEAST, AT_MOST, HAS)


def with_condition(where: Mapping[str, Any] | None, key: str, relation: str, value: str) -> dict[str, Any]:
    """The filter with one condition more, which must hold as well.

    Args:
        relation: one of RELATIONS.
        value: as it was typed; a number, true, false and null mean what they do in JSON.

    Raises:
        InvalidFilter: no key, or no such relation.
    """
    if not isinstance(key, str) or not key:
        raise InvalidFilter("A filter needs the name of a metadata field, such as label.")
    conditions: dict[str, Any] = {
        IS: {"match": _value(value)},
        IS_NOT: {"match": _value(value)},
        STARTS: {"prefix": value},
        ONE_OF: {"in": [_value(one.strip()) for one in value.split(",")]},
        AT_LEAST: {"range": {"gte": _value(value)}},
        AT_MOST: {"range": {"lte": _value(value)}},
        HAS: {"exists": True},
    }
    if relation not in conditions:
        raise InvalidFilter(f"A filter has no relation {relation!r:.40}: choose one of {', '.join(RELATIONS)}.")
    part = "must_not" if relation == IS_NOT else "must"
    there = dict(where or {})
    return {**there, part: [*there.get(part, []), {"key": key, **conditions[relation]}]}


def read_where(text: str) -> dict[str, Any] | None:
    """The filter of a text field; None if that is empty.

    Raises:
        InvalidFilter: it is no JSON object.
    """
    if not text.strip():
        return None
    try:
        where = json.loads(text)
    except ValueError as error:
        example = '{"must": [{"key": "label", "match": "cat"}]}'
        raise InvalidFilter(f"The filter is no JSON ({error}): write it like {example}.") from error
    if not isinstance(where, dict):
        raise InvalidFilter(f"The filter is an object with must, should and must_not; got {where!r:.80}.")
    return where


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, dict | list) else value
