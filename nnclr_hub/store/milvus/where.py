"""Filters for Milvus: facets of the metadata, and expressions over them.

Milvus servers disagree on JSON: whether true equals 1, what `not` does with a missing key, and how quotes, backslashes
and % in strings are read. So in addition to the metadata, which is stored as text, each item has `facets`, an object
with some entries for each key and each path through objects:

    v<hash>   the value as a string with its type in front: s<hex of the UTF-8> a string, n<digits> a number, b1 b0 z
              true, false and null, l a list, o an object
    n<hash>   the value as a float, if it is a number
    d<hash>   milliseconds since 1970, rounded down, if the value is a date
    e<hash>   the elements of a list, each like v
    c<hash>   the number of elements of a list

An expression contains no character of the user's input as it is, so nothing can be injected and nothing needs quoting.
Hex keeps the order and the prefixes of strings. What an expression cannot decide is decided in Python.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from nnclr_hub.store import where as grammar
from nnclr_hub.store.where import EARTH, Condition, Group, Node

FORMAT = 2  # of facets
# bytes of a string in its facet; longer strings are compared in Python
KEPT = 120
# Milvus refuses JSON beyond 65,536 bytes
MAX_FACETS = 65_000
# from here on, neighboring integers are equal as floats
_EXACT = 2**53
_BIG = '(facets["big"] == "1")'
# ids have at least one character
_NEVER, _ALWAYS = '(id == "")', '(id != "")'
_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


# ------------------------------------------------------------------------------ facets


def facets(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what expressions see of an item's metadata."""
    made: dict[str, Any] = {}
    for key, value in (_paths(metadata, "") | dict(metadata)).items():
        code = _code(key)
        made[f"v{code}"] = _tagged(value)
        if grammar.is_number(value):
            made[f"n{code}"] = _as_float(value)
        if (moment := grammar.instant(value)) is not None:
            made[f"d{code}"] = moment // 1000
        if isinstance(value, list):
            made[f"e{code}"] = [_tagged(element) for element in value]
            made[f"c{code}"] = len(value)
    # an item with hundreds of keys passes every expression, and is evaluated in Python
    return made if len(json.dumps(made)) <= MAX_FACETS else {"big": "1"}


def indexes(keys: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return Milvus's path and type of each index of facets for these keys, by the name of the index.

    Lists have none: whether an index knows an empty list depends on the version of Milvus.
    """
    types = {"v": "varchar", "n": "double", "d": "double"}
    return {f"{kind}{_code(key)}": (_field(kind, key), type) for key in keys for kind, type in types.items()}


def _paths(value: Mapping[str, Any], before: str) -> dict[str, Any]:
    """Return the values inside of objects by their paths."""
    made: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping) and key and "." not in key:
            made |= {f"{before}{key}.{name}": one for name, one in inner.items() if name and "." not in name}
            made |= _paths(inner, f"{before}{key}.")
    return made


def _code(key: str) -> str:
    return blake2b(key.encode(), digest_size=8).hexdigest()


def _tagged(value: Any) -> str:
    if value is None:
        return "z"
    if isinstance(value, bool):
        return f"b{value:d}"
    if isinstance(value, str):
        return "s" + value.encode()[:KEPT].hex()
    if isinstance(value, int | float):
        return "n" + _digits(value)
    return "l" if isinstance(value, list) else "o"


def _digits(value: float) -> str:
    """Return a text that is equal for equal numbers, int or float."""
    value = grammar.rounded(value)
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**63 else repr(value)


def _as_float(value: float) -> float:
    return float(grammar.rounded(value))


# ------------------------------------------------------------------------------ expressions


@dataclass(frozen=True)
class Plan:
    """A filter for Milvus.

    group: the filter.
    expression: true for every item that passes the filter, except those with too many keys; "" for all.
    exact: whether it is false for all other items.
    """

    group: Group
    expression: str
    exact: bool

    @property
    def superset(self) -> str:
        """True for every item that passes, and perhaps for others; "" for all."""
        return f"({self.expression} or {_BIG})" if self.expression else ""

    @property
    def overflown(self) -> str:
        """True for items with too many keys for facets."""
        return _BIG


@dataclass(frozen=True)
class Dialect:
    """What a server understands.

    lists: whether it supports `in` for JSON.
    """

    lists: bool = True


@dataclass(frozen=True)
class _Clause:
    """An expression that is true whenever a condition holds, and one that is true only then."""

    upper: str
    lower: str

    @classmethod
    def of(cls, expression: str, exact: bool = True) -> _Clause:
        return cls(expression, expression if exact else _NEVER)


def plan(where: Mapping[str, Any] | None, dialect: Dialect) -> Plan:
    """Compile a filter.

    Raises:
        InvalidFilter: the filter is invalid, exactly as in EmbeddedStore.
    """
    group = grammar.parse(where)
    if group == grammar.EVERYTHING:
        return Plan(group, "", True)
    clause = _group(group, dialect, guarded=False)
    return Plan(group, clause.upper, clause.upper == clause.lower)


def _group(group: Group, dialect: Dialect, guarded: bool) -> _Clause:
    def compiled(node: Node, guarded: bool = guarded) -> _Clause:
        if isinstance(node, Group):
            return _group(node, dialect, guarded)
        return _condition(node, dialect, guarded)

    must = [compiled(node) for node in group.must]
    should = None if group.should is None else [compiled(node) for node in group.should]
    # clauses that are unknown for a missing key must be false before `not` is applied
    must_not = [compiled(node, True) for node in group.must_not]

    def joined(side: Callable[[_Clause], str], other: Callable[[_Clause], str]) -> str:
        parts = [side(clause) for clause in must]
        if should is not None:
            parts.append(_joined("or", map(side, should)) if should else _NEVER)
        parts += [f"(not {other(clause)})" for clause in must_not]
        return _joined("and", parts) if parts else _ALWAYS

    return _Clause(
        joined(lambda one: one.upper, lambda one: one.lower), joined(lambda one: one.lower, lambda one: one.upper)
    )


def _joined(word: str, clauses: Iterable[str]) -> str:
    return f"({f' {word} '.join(clauses)})"


def _condition(condition: Condition, dialect: Dialect, guarded: bool) -> _Clause:
    """Compile a condition.

    Args:
        condition: to compile.
        dialect: of the server.
        guarded: make the clause false, not unknown, where the key is missing.
    """
    kind, wanted = condition.kind, condition.value
    if kind == "ids":
        return _Clause.of(f"(id in [{', '.join(map(json.dumps, wanted))}])" if wanted else _NEVER)
    if kind == "geo":
        lat = _field("n", grammar.geo_keys(condition.key)[0])
        margin = math.degrees(wanted[2] / EARTH) * 1.001 + 1e-6
        low, high = wanted[0] - margin, wanted[0] + margin
        return _Clause(_guard(lat, f"(({lat} >= {low!r}) and ({lat} <= {high!r}))"), _NEVER)
    field = _field("v", condition.key)
    if kind == "exists":
        present = f"(exists {field})"
        return _Clause.of(present if wanted else f"(not {present})")
    if kind in ("contains", "contains_any", "contains_all"):
        return _elements(condition)
    if kind == "length":
        return _bounds(_field("c", condition.key), [(name, bound, True) for name, bound in wanted])
    if kind == "date":
        bounds = [(name, moment // 1000, name in ("gte", "lt") and not moment % 1000) for name, moment in wanted]
        return _bounds(_field("d", condition.key), bounds)
    if kind == "range":
        return _range(condition.key, wanted)
    if kind == "prefix":
        whole = wanted.encode()
        clause, exact = f'({field} like "s{whole[:KEPT].hex()}%")', len(whole) <= KEPT
    else:
        clause, exact = _equals_any(field, wanted if kind == "in" else [wanted], dialect.lists)
    return _Clause.of(_guard(field, clause) if guarded else clause, exact)


def _field(kind: str, key: str) -> str:
    return f'facets["{kind}{_code(key)}"]'


def _guard(field: str, clause: str) -> str:
    return f"((exists {field}) and {clause})"


def _is_whole(value: Any) -> bool:
    """Return whether the facet of a value contains all of it."""
    return not isinstance(value, str) or len(value.encode()) < KEPT


def _equals_any(field: str, values: Sequence[Any], lists: bool) -> tuple[str, bool]:
    tags = list(dict.fromkeys(f'"{_tagged(value)}"' for value in values))
    exact = all(map(_is_whole, values))
    if not tags:
        return _NEVER, True
    if lists and len(tags) > 1:
        return f"({field} in [{', '.join(tags)}])", exact
    return _joined("or", (f"({field} == {tag})" for tag in tags)), exact


def _elements(condition: Condition) -> _Clause:
    field = _field("e", condition.key)
    values = (condition.value,) if condition.kind == "contains" else condition.value
    if not values:  # every list contains all of nothing
        return _Clause.of(f"(exists {field})" if condition.kind == "contains_all" else _NEVER)
    each = [f'json_contains({field}, "{_tagged(value)}")' for value in values]
    joined = _joined("or" if condition.kind == "contains_any" else "and", each)
    return _Clause.of(_guard(field, joined), all(map(_is_whole, values)))


def _range(key: str, wanted: Sequence[tuple[str, Any]]) -> _Clause:
    parts: list[_Clause] = []
    for name, bound in wanted:
        if not isinstance(bound, str):
            parts.append(_bounds(_field("n", key), [(name, _as_float(bound), abs(bound) < _EXACT)]))
            continue
        text, whole = _field("v", key), bound.encode()
        part = _bounds(text, [(name, f"s{whole[:KEPT].hex()}", len(whole) < KEPT)])
        # only strings: the tags of other types begin with other letters
        strings = f'({text} < "t")' if name in ("gt", "gte") else f'({text} >= "s")'
        parts.append(_Clause(f"({part.upper} and {strings})", f"({part.lower} and {strings})"))
    return _Clause(_joined("and", (part.upper for part in parts)), _joined("and", (part.lower for part in parts)))


def _bounds(field: str, bounds: Sequence[tuple[str, Any, bool]]) -> _Clause:
    """Compile comparisons (name, bound, exact); without exactness, equality counts as inside."""
    clauses = []
    for name, bound, exact in bounds:
        operator = _OPERATORS[name] if exact else _OPERATORS[name][0] + "="
        clauses.append(f"({field} {operator} {json.dumps(bound) if isinstance(bound, str) else repr(bound)})")
    return _Clause.of(_guard(field, _joined("and", clauses)), all(exact for _, _, exact in bounds))
