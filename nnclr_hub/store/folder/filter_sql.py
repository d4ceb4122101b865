"""Filters as SQL over SQLite's JSON functions.

    condition, parameters = filter_sql(parse(where))
    connection.execute(f"SELECT rid FROM items WHERE {condition}", parameters)

An indexed key is an index on the expression `value_sql(key)`, which SQLite then uses by itself.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from nnclr_hub.store.where import Condition, Group, Node, distance, instant, paths

_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_NUMBER = "IN ('integer', 'real')"


def add_functions(connection: sqlite3.Connection) -> None:
    """Add what SQL lacks; every connection that filters needs it."""
    connection.create_function("instant", 1, instant, deterministic=True)
    connection.create_function("distance", 4, distance, deterministic=True)


def filter_sql(group: Group) -> tuple[str, list[Any]]:
    """Return a condition on the table `items` and its parameters."""
    parameters: list[Any] = []
    return _group(group, parameters), parameters


def value_sql(key: str, function: str = "json_extract") -> str:
    """Return SQL for the value of a key: that of the key itself if an item has it, else of the path through objects."""
    found = [f"{function}(metadata, {_path(steps)})" for steps in paths(key)]
    if len(found) == 1:
        return found[0]
    return f"CASE WHEN json_type(metadata, {_path((key,))}) IS NOT NULL THEN {found[0]} ELSE {found[1]} END"


def type_sql(key: str) -> str:
    """Return SQL for the JSON type of a key's value; NULL if an item lacks the key."""
    return value_sql(key, "json_type")


def _path(steps: Sequence[str]) -> str:
    labels = "".join("." + json.dumps(step, ensure_ascii=False) for step in steps)
    return "'$" + labels.replace("'", "''") + "'"


def _group(group: Group, parameters: list[Any]) -> str:
    parts = [_node(node, parameters) for node in group.must]
    if group.should is not None:
        parts.append(" OR ".join(_node(node, parameters) for node in group.should) or "0")
    parts += [f"({_node(node, parameters)}) IS NOT TRUE" for node in group.must_not]
    return " AND ".join(f"({part})" for part in parts) or "1"


def _node(node: Node, parameters: list[Any]) -> str:
    condition = _group(node, parameters) if isinstance(node, Group) else _condition(node, parameters)
    return f"({condition})"


def _condition(condition: Condition, parameters: list[Any]) -> str:
    key, wanted = condition.key, condition.value
    if condition.kind == "ids":
        parameters.append(json.dumps(wanted))  # one parameter, because SQLite limits their number
        return "id IN (SELECT value FROM json_each(?))"
    value, kind = value_sql(key), type_sql(key)
    match condition.kind:
        case "exists":
            return f"({kind} IS NOT NULL) = {int(wanted)}"
        case "match":
            return _equals(value, kind, [wanted], parameters)
        case "in":
            return _equals(value, kind, wanted, parameters)
        case "range":
            texts = {isinstance(bound, str) for _, bound in wanted}
            if len(texts) > 1:  # nothing is above a number and below a text
                return "0"
            family = "= 'text'" if texts == {True} else _NUMBER
            return f"{_bounds(value, wanted, parameters)} AND {kind} {family}"
        case "prefix":
            parameters += [len(wanted), wanted]
            return f"{kind} = 'text' AND substr({value}, 1, ?) = ?"
        case "date":
            return f"{kind} = 'text' AND {_bounds(f'instant({value})', wanted, parameters)}"
        case "length":
            return f"{kind} = 'array' AND {_bounds(value_sql(key, 'json_array_length'), wanted, parameters)}"
        case "geo":
            lat, lon = f"{key}.lat", f"{key}.lon"
            parameters += wanted
            are_numbers = f"{type_sql(lat)} {_NUMBER} AND {type_sql(lon)} {_NUMBER}"
            return f"CASE WHEN {are_numbers} THEN distance({value_sql(lat)}, {value_sql(lon)}, ?, ?) <= ? END"
        case _:
            return f"{kind} = 'array' AND {_contains(key, condition.kind, wanted, parameters)}"


def _equals(value: str, kind: str, wanted: Sequence[Any], parameters: list[Any]) -> str:
    """Return that a value equals one of some scalars of JSON, where 1 equals 1.0, but neither "1" nor true."""
    texts = [one for one in wanted if isinstance(one, str)]
    numbers = [one for one in wanted if isinstance(one, int | float) and not isinstance(one, bool)]
    names = ["null" if one is None else str(one).lower() for one in wanted if one is None or isinstance(one, bool)]
    parts = []
    if texts:
        # a list or an object is the text of its JSON; looking at the type as well takes a quarter more time
        is_text = f" AND {kind} = 'text'" if any(text[:1] in ("[", "{") for text in texts) else ""
        parts.append(f"{value} IN {_list(texts, parameters)}{is_text}")
    if numbers:
        parts.append(f"{value} IN {_list(numbers, parameters)} AND {kind} {_NUMBER}")
    parts += [f"{kind} = '{name}'" for name in names]
    return " OR ".join(parts) or "0"


def _contains(key: str, kind: str, wanted: Any, parameters: list[Any]) -> str:
    """Return that a list contains one or all of some scalars. Each list is read once for all of them."""
    array = f"json_each(CASE WHEN {type_sql(key)} = 'array' THEN {value_sql(key)} ELSE '[]' END) AS e"
    scalars = [wanted] if kind == "contains" else wanted
    same = _equals("e.atom", "e.type", scalars, parameters)  # a list or an object has no atom
    if kind != "contains_all":
        return f"EXISTS (SELECT 1 FROM {array} WHERE {same})"
    named = [one is None or isinstance(one, bool) for one in scalars]
    # as a BLOB, the name of true differs from 1 and from the text "true"
    atom = "CASE WHEN e.type IN ('null', 'true', 'false') THEN CAST(e.type AS BLOB) ELSE e.atom END"
    return f"(SELECT count(DISTINCT {atom}) FROM {array} WHERE {same}) = {len(set(zip(named, scalars, strict=True)))}"


def _bounds(value: str, wanted: Sequence[tuple[str, Any]], parameters: list[Any]) -> str:
    return " AND ".join(f"{value} {_OPERATORS[name]} {_scalar(bound, parameters)}" for name, bound in wanted)


def _list(values: Sequence[Any], parameters: list[Any]) -> str:
    return f"({','.join([_scalar(value, parameters) for value in values])})"


def _scalar(value: Any, parameters: list[Any]) -> str:
    """Return SQL for a parameter. SQLite reads a float from its text, as it reads those of the metadata."""
    parameters.append(json.dumps(value) if isinstance(value, float) else value)
    return "json_extract(?, '$')" if isinstance(value, float) else "?"
