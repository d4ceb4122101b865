"""Filters for Milvus: facets of the metadata, expressions over them, and an evaluation in Python for the rest.

Milvus servers disagree on JSON: whether true equals 1, what `not` does with a missing key, and how quotes, backslashes
and % in strings are read. So in addition to the metadata, which is stored as text, each item has `facets`, an object
with one or two entries per metadata key:

    v<hash of the key>   the value as a string with its type in front: s<hex of the UTF-8> a string, n<digits> a
                         number, b1 b0 z true, false and null, o an object or a list
    n<hash of the key>   the value as a float, if it is a number

An expression contains no character of the user's input as it is, so nothing can be injected and nothing needs quoting.
Hex keeps the order and the prefixes of strings. Equality compares types too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from nnclr_hub.store import where as grammar

# bytes of a string in its facet; longer strings are compared in Python
KEPT = 120
# Milvus refuses JSON beyond 65,536 bytes
MAX_FACETS = 65_000
# from here on, neighboring integers are equal as floats
_EXACT = 2**53
_BIG = '(facets["big"] == "1")'
# false for every item, because ids have at least one character
_NEVER = '(id == "")'
_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


# ------------------------------------------------------------------------------ facets


def facets(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what expressions see of an item's metadata."""
    made: dict[str, Any] = {}
    for key, value in metadata.items():
        code = _code(key)
        made[f"v{code}"] = _tagged(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            made[f"n{code}"] = _as_float(value)
    # an item with hundreds of keys passes every expression, and is evaluated in Python
    return made if len(json.dumps(made)) <= MAX_FACETS else {"big": "1"}


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
    return "o"


def _digits(value: float) -> str:
    """Return a text that is equal for equal numbers, int or float."""
    value = _as_sqlite(value)
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**63 else repr(value)


def _as_sqlite(value: float) -> float:
    """Return a number as SQLite reads it: integers above 64 bits become floats."""
    return value if isinstance(value, float) or abs(value) < 2**63 else _as_float(value)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return 1.7976931348623157e308 if value > 0 else -1.7976931348623157e308


# ------------------------------------------------------------------------------ expressions


@dataclass(frozen=True)
class Plan:
    """A filter for Milvus.

    expression: true for every item that passes the filter, except those with too many keys; "" for all.
    exact: whether it is false for all other items.
    """

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


def plan(where: Mapping[str, Any] | None, *, lists: bool = True) -> Plan:
    """Compile a filter.

    Args:
        where: the filter.
        lists: whether the server supports `in` for JSON.

    Raises:
        InvalidFilter: the filter is invalid, exactly as in EmbeddedStore.
    """
    grammar.to_sql(where)
    parts: list[str] = []
    exact = True
    where = where or {}
    for condition in where.get("must", ()):
        clause, precise = _condition(condition, lists)
        parts.append(clause)
        exact &= precise
    if where.get("should"):
        clauses = [_condition(condition, lists) for condition in where["should"]]
        parts.append(_any(clause for clause, _ in clauses))
        exact &= all(precise for _, precise in clauses)
    for condition in where.get("must_not", ()):
        clause, precise = _condition(condition, lists, guarded=True)
        if precise:
            parts.append(f"(not {clause})")
        exact &= precise
    return Plan(f"({' and '.join(parts)})" if parts else "", exact)


def _any(clauses: Any) -> str:
    return f"({' or '.join(clauses)})"


def _condition(condition: Mapping[str, Any], lists: bool, guarded: bool = False) -> tuple[str, bool]:
    """Return a clause that is true whenever the condition is, and whether it is true only then.

    Args:
        condition: valid.
        lists: whether the server supports `in` for JSON.
        guarded: make the clause false, not unknown, where the key is missing, so that `not` can be applied to it.
    """
    field = f'facets["v{_code(condition["key"])}"]'
    if "exists" in condition:
        present = f"(exists {field})"
        return (present if condition["exists"] else f"(not {present})"), True
    if "range" in condition:
        return _range(condition["key"], condition["range"], guarded)
    if "prefix" in condition:
        whole = condition["prefix"].encode()
        clause, exact = f'({field} like "s{whole[:KEPT].hex()}%")', len(whole) <= KEPT
    else:
        values = condition["in"] if "in" in condition else [condition["match"]]
        clause, exact = _equals_any(field, values, lists)
    return (_guard(field, clause) if guarded else clause), exact


def _guard(field: str, clause: str) -> str:
    return f"((exists {field}) and {clause})"


def _equals_any(field: str, values: Sequence[Any], lists: bool) -> tuple[str, bool]:
    tags = list(dict.fromkeys(f'"{_tagged(value)}"' for value in values))
    exact = all(not isinstance(value, str) or len(value.encode()) < KEPT for value in values)
    if not tags:
        return _NEVER, True
    if lists and len(tags) > 1:
        return f"({field} in [{', '.join(tags)}])", exact
    return _any(f"({field} == {tag})" for tag in tags), exact


def _range(key: str, bounds: Mapping[str, Any], guarded: bool) -> tuple[str, bool]:
    text, number = f'facets["v{_code(key)}"]', f'facets["n{_code(key)}"]'
    clauses: list[str] = []
    exact = True
    for name, bound in bounds.items():
        if isinstance(bound, str):
            field, whole = text, bound.encode()
            precise = len(whole) < KEPT
            value = f'"s{whole[:KEPT].hex()}"'
            # only strings: the tags of other types begin with other letters
            clauses.append(f'({text} < "t")' if name in ("gt", "gte") else f'({text} >= "s")')
        else:
            field, precise, value = number, abs(bound) < _EXACT, repr(_as_float(bound))
        operator = _OPERATORS[name] if precise else _OPERATORS[name][0] + "="
        clause = f"({field} {operator} {value})"
        clauses.append(_guard(field, clause) if guarded else clause)
        exact &= precise
    # under `not`, a clause that is unknown for a missing field is harmless: the guarded clause next to it is false
    return f"({' and '.join(clauses)})", exact


# ------------------------------------------------------------------------------ evaluation in Python


def passes(where: Mapping[str, Any] | None, metadata: Mapping[str, Any]) -> bool:
    """Return whether an item passes a filter that `plan` has accepted."""
    where = where or {}
    should = where.get("should")
    return (
        all(_holds(condition, metadata) for condition in where.get("must", ()))
        and (not should or any(_holds(condition, metadata) for condition in should))
        and not any(_holds(condition, metadata) for condition in where.get("must_not", ()))
    )


def _holds(condition: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    present = condition["key"] in metadata
    if "exists" in condition:
        return present is condition["exists"]
    if not present:
        return False
    value = metadata[condition["key"]]
    if "match" in condition:
        return _equal(value, condition["match"])
    if "in" in condition:
        return any(_equal(value, one) for one in condition["in"])
    if "prefix" in condition:
        return isinstance(value, str) and value.startswith(condition["prefix"])
    return all(_within(value, name, bound) for name, bound in condition["range"].items())


def _kind(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return repr(value)
    return "number" if isinstance(value, int | float) else type(value).__name__


def _equal(value: Any, other: Any) -> bool:
    if _kind(value) != _kind(other):
        return False
    return _as_sqlite(value) == other if _kind(value) == "number" else value == other


def _within(value: Any, name: str, bound: Any) -> bool:
    if _kind(value) != _kind(bound):
        return False
    # both stores compare strings by their UTF-8, which is the order of their code points
    value = _as_sqlite(value) if _kind(value) == "number" else value
    return {"gt": value > bound, "gte": value >= bound, "lt": value < bound, "lte": value <= bound}[name]
