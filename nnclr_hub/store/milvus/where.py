"""`where` for Milvus: facets to filter on, expressions over them, and a literal reading for what they cannot say.

Milvus's own reading of JSON differs from server to server: whether true equals 1, what `not` makes of a missing key,
how quotes, backslashes and % in strings are read. So beside the metadata, which are kept as text, each item has
`facets`, an object with one or two entries a metadata key:

    v<hash of the key>   the value as a string with its type in front: s<hex of the UTF-8> a string, n<digits> a
                         number, b1 b0 z true, false and null, o an object or a list
    n<hash of the key>   the value as a float, if it is a number

In an expression no character of the user's stands as it is, so nothing can be injected and nothing needs quoting. Hex
keeps the order and the prefixes of strings. Equality compares types too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from nnclr_hub.store import where as grammar

# bytes of a string that its facet keeps: the rest is left to the literal reading
KEPT = 120
# Milvus refuses JSON beyond 65,536 bytes
MAX_FACETS = 65_000
# from here on a float no longer tells neighboring integers apart
_EXACT = 2**53
_BIG = '(facets["big"] == "1")'
# holds for no item, whose ids have at least one character
_NEVER = '(id == "")'
_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


# ------------------------------------------------------------------------------ facets


def facets(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What expressions see of an item's metadata."""
    made: dict[str, Any] = {}
    for key, value in metadata.items():
        code = _code(key)
        made[f"v{code}"] = _tagged(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            made[f"n{code}"] = _as_float(value)
    # hundreds of keys: such an item passes every expression, and is read literally
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
    """Equal for equal numbers, be they int or float."""
    value = _as_sqlite(value)
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**63 else repr(value)


def _as_sqlite(value: float) -> float:
    """The other store's SQLite reads integers beyond 64 bits as floats."""
    return value if isinstance(value, float) or abs(value) < 2**63 else _as_float(value)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return 1.7976931348623157e308 if value > 0 else -1.7976931348623157e308


# ------------------------------------------------------------------------------ expressions


@dataclass(frozen=True)
class Plan:
    """What Milvus is asked.

    expression: every item that passes the filter, but for those with too many keys, is found by it; "" for all.
    exact: and no other is.
    """

    expression: str
    exact: bool

    @property
    def superset(self) -> str:
        """Finds every item that passes, and perhaps others; "" for all."""
        return f"({self.expression} or {_BIG})" if self.expression else ""

    @property
    def overflown(self) -> str:
        """Finds the items whose keys were too many for facets."""
        return _BIG


def plan(where: Mapping[str, Any] | None, *, lists: bool = True) -> Plan:
    """The expression for a filter.

    Args:
        lists: whether the server knows `in` for JSON.

    Raises:
        InvalidFilter: exactly as the other store does.
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
    """A clause that holds whenever the condition does, and whether only then.

    guarded: false, and not unknown, where the key is missing, so that it may stand under `not`.
    """
    field = f'facets["v{_code(condition["key"])}"]'
    if "exists" in condition:
        there = f"(exists {field})"
        return (there if condition["exists"] else f"(not {there})"), True
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
            # strings alone: other types' tags begin with other letters
            clauses.append(f'({text} < "t")' if name in ("gt", "gte") else f'({text} >= "s")')
        else:
            field, precise, value = number, abs(bound) < _EXACT, repr(_as_float(bound))
        operator = _OPERATORS[name] if precise else _OPERATORS[name][0] + "="
        clause = f"({field} {operator} {value})"
        clauses.append(_guard(field, clause) if guarded else clause)
        exact &= precise
    # under `not`, what is unknown of a missing field does not matter: its guarded neighbor is false, and so is both
    return f"({' and '.join(clauses)})", exact


# ------------------------------------------------------------------------------ the literal reading


def passes(where: Mapping[str, Any] | None, metadata: Mapping[str, Any]) -> bool:
    """Whether an item passes a filter that `plan` has found valid."""
    where = where or {}
    should = where.get("should")
    return (
        all(_holds(condition, metadata) for condition in where.get("must", ()))
        and (not should or any(_holds(condition, metadata) for condition in should))
        and not any(_holds(condition, metadata) for condition in where.get("must_not", ()))
    )


def _holds(condition: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    there = condition["key"] in metadata
    if "exists" in condition:
        return there is condition["exists"]
    if not there:
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
    # both stores order strings by their UTF-8, which is the order of their code points
    value = _as_sqlite(value) if _kind(value) == "number" else value
    return {"gt": value > bound, "gte": value >= bound, "lt": value < bound, "lte": value <= bound}[name]
