"""Filters on metadata (`where`): their grammar. Stores evaluate them.

    {"must": [{"key": "label", "match": "cat"}, {"key": "tags", "contains_any": ["indoor", "night"]}],
     "should": [...], "must_not": [...]}

A condition names a key and one of

    match         equal to a string, number, boolean or null
    in            equal to one of a list
    range         gt, gte, lt, lte: numbers with numbers, strings with strings
    exists        true or false: whether the item has the key, whatever its value
    prefix        a string that starts with this
    contains      a list with an element that equals this
    contains_any  a list with at least one of these elements
    contains_all  a list with each of these elements
    length        a list with this number of elements, or gt, gte, lt, lte of it
    date          gt, gte, lt, lte: a string with a date or time (ISO 8601), compared as instants; UTC without an offset
    geo           an object {"lat", "lon"} in degrees, at most `radius` meters from the given `lat` and `lon`

or is {"ids": [...]}, true for these items, at most 100,000 in a filter; or again an object with must, should and
must_not. A key is that of the metadata itself, or else a path through objects, `camera.model`. A condition on a key
that an item lacks is false. An empty `should` is false, too: none of no conditions holds.
"""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any

from nnclr_hub.errors import InvalidFilter, InvalidRequest
from nnclr_hub.json_text import is_utf8
from nnclr_hub.store.checks import check_ids

MAX_CONDITIONS = 64
MAX_IN = 500
MAX_IDS = 100_000  # in one filter: what a person chose on a map, or the items of a finding
MAX_DEPTH = 8
_LONG = 1000  # characters
EARTH = 6_371_008.8  # meters, the mean radius
_CLAUSES = ("must", "should", "must_not")
COMPARISONS = ("gt", "gte", "lt", "lte")
DATE_LENGTH = 50  # of usual dates, which are kept
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ABSENT: Any = object()  # the value of a key that an item lacks


@dataclass(frozen=True)
class Condition:
    """A condition on one key; on the id if `kind` is "ids"."""

    key: str
    kind: str  # as in the grammar
    value: Any  # lists are tuples, ranges are tuples of (comparison, bound), dates are microseconds since 1970


@dataclass(frozen=True)
class Group:
    """All of `must`, one of `should` unless it is None, and none of `must_not`."""

    must: tuple[Node, ...] = ()
    should: tuple[Node, ...] | None = None
    must_not: tuple[Node, ...] = ()

    @cached_property
    def name(self) -> str:
        """A text that differs for different filters; 1 and true are equal as parts of a tuple."""
        text = repr(self)
        return text if len(text) < _LONG else blake2b(text.encode()).hexdigest()  # stores keep the names

    def conditions(self) -> Iterable[Condition]:
        """Yield the conditions of the whole tree."""
        for node in (*self.must, *(self.should or ()), *self.must_not):
            if isinstance(node, Group):
                yield from node.conditions()
            else:
                yield node


Node = Condition | Group
EVERYTHING = Group()


def parse(where: Mapping[str, Any] | None) -> Group:
    """Return the checked form of a filter; equal filters have equal forms."""
    return EVERYTHING if where is None else _group(where, 1, {"conditions": MAX_CONDITIONS, "ids": MAX_IDS})


def _group(where: Any, depth: int, left: dict[str, int]) -> Group:
    """Return a group; `left` is what the rest of the filter may have."""
    if not isinstance(where, Mapping):
        raise InvalidFilter(f"`where` must be an object with {', '.join(_CLAUSES)}, got {where!r:.80}.")
    if unknown := [key for key in where if key not in _CLAUSES]:
        raise InvalidFilter(f"`where` takes {', '.join(_CLAUSES)}, got {unknown[0]!r:.80}.")
    if any(not isinstance(conditions, list | tuple) for conditions in where.values()):
        raise InvalidFilter(f"{', '.join(_CLAUSES)} of `where` must be lists of conditions.")
    if depth > MAX_DEPTH:
        raise InvalidFilter(f"`where` must not be nested deeper than {MAX_DEPTH} levels.")
    _count(left, "conditions", sum(map(len, where.values())), MAX_CONDITIONS)
    return Group(**{name: tuple(_node(one, depth, left) for one in conditions) for name, conditions in where.items()})


def _node(condition: Any, depth: int, left: dict[str, int]) -> Node:
    if isinstance(condition, Mapping) and condition.keys() & set(_CLAUSES):
        return _group(condition, depth + 1, left)
    if isinstance(condition, Mapping) and "ids" in condition:
        ids = condition["ids"]
        if len(condition) > 1 or not isinstance(ids, list | tuple):
            raise InvalidFilter(f"A condition on ids has only ids, a list; got {reprlib.repr(condition)}.")
        _count(left, "ids", len(ids), MAX_IDS)
        try:
            return Condition("", "ids", tuple(check_ids(ids)))
        except InvalidRequest as error:
            raise InvalidFilter(f"ids: {error}") from error
    if not isinstance(condition, Mapping) or "key" not in condition:
        raise InvalidFilter(f'A condition must look like {{"key": "label", "match": "cat"}}, got {condition!r:.80}.')
    kinds = [kind for kind in condition if kind != "key"]
    if len(kinds) != 1 or kinds[0] not in _READERS:
        named = ", ".join(f"{kind!r:.80}" for kind in kinds)
        raise InvalidFilter(f"A condition has a key and one of {', '.join(_READERS)}; got {named or 'only a key'}.")
    [kind] = kinds
    return Condition(check_key(condition["key"]), kind, _READERS[kind](condition[kind], kind))


def _count(left: dict[str, int], what: str, number: int, most: int) -> None:
    left[what] -= number
    if left[what] < 0:
        raise InvalidFilter(f"`where` takes at most {most:,} {what}, got {most - left[what]:,}.")


def check_key(key: Any) -> str:
    """Return a metadata key if it can be filtered by."""
    if not isinstance(key, str) or not 0 < len(key) <= 128 or any(bad in key for bad in '"\\\0'):
        raise InvalidFilter(f"A metadata key has 1 to 128 characters, no quotes or backslashes; got {key!r:.80}.")
    return _utf8(key)


# ------------------------------------------------------------------------------ values of conditions


def _require(valid: bool, kind: str, what: str, value: Any) -> None:
    if not valid:
        raise InvalidFilter(f"{kind} must be {what}, got {value!r:.80}.")


def _utf8(text: str) -> str:
    if not is_utf8(text) or "\0" in text:
        raise InvalidFilter(f"A filter must be valid UTF-8 without NUL characters, got {text!r:.80}.")
    return text


def _scalar(value: Any, kind: str) -> Any:
    return value if value is None or isinstance(value, bool) else _ordered(value, kind)


def _ordered(value: Any, kind: str) -> Any:
    if isinstance(value, str):
        return _utf8(value)
    _require(is_number(value) and abs(value) < 2**63, kind, "a string or a number below 2**63", value)
    return value


def _scalars(value: Any, kind: str) -> tuple[Any, ...]:
    valid = isinstance(value, list | tuple) and len(value) <= MAX_IN
    _require(valid, kind, f"a list of at most {MAX_IN} values", value)
    return tuple(_scalar(one, kind) for one in value)


def _bounds(value: Any, kind: str) -> tuple[tuple[str, Any], ...]:
    valid = isinstance(value, Mapping) and bool(value) and all(name in COMPARISONS for name in value)
    _require(valid, kind, f"an object with some of {', '.join(COMPARISONS)}", value)
    bounds = tuple((name, _ordered(bound, kind)) for name, bound in value.items())
    _require(len({isinstance(bound, str) for _, bound in bounds}) == 1, kind, "numbers only or strings only", value)
    return bounds


def _flag(value: Any, kind: str) -> bool:
    _require(isinstance(value, bool), kind, "true or false", value)
    return value


def _text(value: Any, kind: str) -> str:
    _require(isinstance(value, str), kind, "a string", value)
    return _utf8(value)


def _length(value: Any, kind: str) -> tuple[tuple[str, Any], ...]:
    bounds = _bounds(value if isinstance(value, Mapping) else {"gte": value, "lte": value}, kind)
    _require(all(is_number(bound) for _, bound in bounds), kind, "a number, or gt, gte, lt, lte of one", value)
    return bounds


def _dates(value: Any, kind: str) -> tuple[tuple[str, int], ...]:
    known = tuple((name, moment) for name, bound in _bounds(value, kind) if (moment := instant(bound)) is not None)
    _require(len(known) == len(value), kind, "in ISO 8601, such as 2026-01-31 or 2026-01-31T12:00:00Z", value)
    return known


def _circle(value: Any, kind: str) -> tuple[float, float, float]:
    names = ("lat", "lon", "radius")
    _require(isinstance(value, Mapping) and value.keys() == set(names), kind, "an object with lat, lon, radius", value)
    lat, lon, radius = (_ordered(value[name], kind) for name in names)
    valid = all(is_number(one) and math.isfinite(one) for one in (lat, lon, radius))
    valid = valid and -90 <= lat <= 90 and -180 <= lon <= 180 and radius >= 0
    _require(valid, kind, "a lat of -90 to 90, a lon of -180 to 180 and a radius in meters", value)
    return lat, lon, radius


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "match": _scalar,
    "in": _scalars,
    "range": _bounds,
    "exists": _flag,
    "prefix": _text,
    "contains": _scalar,
    "contains_any": _scalars,
    "contains_all": _scalars,
    "length": _length,
    "date": _dates,
    "geo": _circle,
}


# ------------------------------------------------------------------------------ values of an item


def paths(key: str) -> list[tuple[str, ...]]:
    """Return the ways from the metadata to a key's value, in the order in which they are tried."""
    steps = tuple(key.split("."))
    return [(key,), steps] if len(steps) > 1 and all(steps) else [(key,)]


def value_of(metadata: Mapping[str, Any], key: str, default: Any = ABSENT) -> Any:
    """Return the value of a key or path; the default if there is none."""
    for steps in paths(key):
        value: Any = metadata
        for step in steps:
            value = value.get(step, ABSENT) if isinstance(value, Mapping) else ABSENT
        if value is not ABSENT:
            return value
    return default


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def rounded(value: Any) -> Any:
    """Return a value as filters compare it: integers above 64 bits become floats."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        try:
            return float(value)
        except OverflowError:
            return sys.float_info.max if value > 0 else -sys.float_info.max
    return value


def instant(text: Any) -> int | None:
    """Return microseconds since 1970 of a date or time in ISO 8601; None for anything else."""
    if not isinstance(text, str):
        return None
    return _instant(text) if len(text) <= DATE_LENGTH else _instant.__wrapped__(text)


@lru_cache(1 << 12)  # the conditions of a filter read the same dates
def _instant(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
        since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    except (ValueError, OverflowError):
        return None
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def distance(lat: float, lon: float, other_lat: float, other_lon: float) -> float:
    """Return the meters between two places on a sphere."""
    north, east = math.radians(other_lat - lat) / 2, math.radians(other_lon - lon) / 2
    shrink = math.cos(math.radians(lat)) * math.cos(math.radians(other_lat))
    half = math.sin(north) ** 2 + shrink * math.sin(east) ** 2
    return 2 * EARTH * math.asin(math.sqrt(min(1.0, max(0.0, half))))
