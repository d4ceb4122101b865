"""Filters on metadata (`where`), checked and compiled to SQL.

    {"must": [{"key": "label", "match": "cat"}, {"key": "size", "range": {"gte": 1000}}],
     "should": [...], "must_not": [...]}

A condition has a top-level key and one of

    match   equal to a string, number, boolean or null
    in      equal to one of a list
    range   gt, gte, lt, lte: numbers with numbers, strings with strings
    exists  true or false: whether the item has the key, whatever its value
    prefix  a string that starts with this

A condition on a key that an item lacks is false.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nnclr_hub.errors import InvalidFilter

Clause = tuple[str, list[Any]]
EVERYTHING: Clause = ("1", [])
_CLAUSES = ("must", "should", "must_not")
_KINDS = ("match", "in", "range", "exists", "prefix")
_COMPARISONS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
MAX_CONDITIONS = 64
MAX_IN = 500


def to_sql(where: Mapping[str, Any] | None) -> Clause:
    """Return an expression over the column `metadata` and its parameters; ("1", []) without a filter.

    Raises:
        InvalidFilter: the filter is invalid; the message says where.
    """
    if where is None:
        return EVERYTHING
    if not isinstance(where, Mapping):
        raise InvalidFilter(f"`where` must be an object with {', '.join(_CLAUSES)}, got {where!r:.80}.")
    unknown = [key for key in where if key not in _CLAUSES]
    if unknown:
        raise InvalidFilter(f"`where` takes {', '.join(_CLAUSES)}, got {unknown[0]!r}.")
    if any(not isinstance(conditions, list | tuple) for conditions in where.values()):
        raise InvalidFilter(f"{', '.join(_CLAUSES)} of `where` must be lists of conditions.")
    if (total := sum(map(len, where.values()))) > MAX_CONDITIONS:
        raise InvalidFilter(f"`where` takes at most {MAX_CONDITIONS} conditions, got {total}.")
    parts: list[str] = []
    parameters: list[Any] = []
    for name, joint, form in (("must", " AND ", "({})"), ("should", " OR ", "({})"), ("must_not", " OR ", "NOT ({})")):
        clauses = [_condition(condition) for condition in where.get(name, ())]
        if clauses:
            parts.append(form.format(joint.join(sql for sql, _ in clauses)))
            parameters += [value for _, values in clauses for value in values]
    return (" AND ".join(parts), parameters) if parts else EVERYTHING


def key_expression(key: str) -> str:
    """Return SQL for the value of a metadata key, identical to the expression of that key's index.

    Raises:
        InvalidFilter: the key is not a string that SQL can contain.
    """
    return f"json_extract(metadata, {_path(key)})"


def _path(key: str) -> str:
    if not isinstance(key, str) or not 0 < len(key) <= 128 or any(bad in key for bad in '"\\\0'):
        raise InvalidFilter(f"A metadata key has 1 to 128 characters, no quotes or backslashes; got {key!r:.80}.")
    _refuse_surrogates(key)
    # an expression index needs the path in the SQL itself, not as a parameter
    return "'$.\"" + key.replace("'", "''") + "\"'"


def _condition(condition: Any) -> Clause:
    """Compile one condition; it is 0 or 1 for every item, never NULL, so that NOT works."""
    if not isinstance(condition, Mapping) or "key" not in condition:
        raise InvalidFilter(f'A condition must look like {{"key": "label", "match": "cat"}}, got {condition!r:.80}.')
    kinds = [kind for kind in condition if kind != "key"]
    if len(kinds) != 1 or kinds[0] not in _KINDS:
        raise InvalidFilter(f"A condition has a key and one of {', '.join(_KINDS)}; got {', '.join(map(repr, kinds))}.")
    key, kind, value = condition["key"], kinds[0], condition[kinds[0]]
    kind_of = f"json_type(metadata, {_path(key)})"
    if kind == "exists":
        if not isinstance(value, bool):
            raise InvalidFilter(f"exists must be true or false, got {value!r:.80}.")
        return f"({kind_of} IS {'NOT ' if value else ''}NULL)", []
    if kind == "match":
        return _equals(key, kind_of, value)
    if kind == "in":
        if not isinstance(value, list | tuple) or len(value) > MAX_IN:
            raise InvalidFilter(f"in must be a list of at most {MAX_IN} values, got {value!r:.80}.")
        return _one_of(key, kind_of, value)
    if kind == "prefix":
        if not isinstance(value, str):
            raise InvalidFilter(f"prefix must be a string, got {value!r:.80}.")
        _refuse_surrogates(value)
        return _prefix(key, kind_of, value)
    return _range(key, kind_of, value)


def _prefix(key: str, kind_of: str, value: str) -> Clause:
    sql, parameters = f"{kind_of} IS 'text' AND substr({key_expression(key)}, 1, ?) = ?", [len(value), value]
    if value and ord(value[-1]) + 1 not in (0xD800, 0x110000):  # with a next character, SQLite can use an index
        sql += f" AND {key_expression(key)} >= ? AND {key_expression(key)} < ?"
        parameters += [value, value[:-1] + chr(ord(value[-1]) + 1)]
    return f"({sql})", parameters


def _equals(key: str, kind_of: str, value: Any) -> Clause:
    if value is None:
        return f"({kind_of} IS 'null')", []
    if isinstance(value, bool):
        return f"({kind_of} IS '{str(value).lower()}')", []
    return f"({_same_type(kind_of, value, 'match')} AND {key_expression(key)} = ?)", [value]


def _one_of(key: str, kind_of: str, values: Sequence[Any]) -> Clause:
    """Group values by type, so that SQL looks each item's value up in a list instead of comparing one after another."""
    parts, parameters = [], []
    together: dict[str, list[Any]] = {}
    for value in values:
        if value is None or isinstance(value, bool):
            parts.append(_equals(key, kind_of, value)[0])
        else:
            together.setdefault(_same_type(kind_of, value, "in"), []).append(value)
    for same_type, some in together.items():
        parts.append(f"({same_type} AND {key_expression(key)} IN ({','.join('?' * len(some))}))")
        parameters += some
    return f"({' OR '.join(parts) or '0'})", parameters


def _range(key: str, kind_of: str, value: Any) -> Clause:
    if not isinstance(value, Mapping) or not value or any(name not in _COMPARISONS for name in value):
        raise InvalidFilter(f"range must be an object with some of {', '.join(_COMPARISONS)}, got {value!r:.80}.")
    parts = [
        f"{_same_type(kind_of, bound, 'range')} AND {key_expression(key)} {_COMPARISONS[name]} ?"
        for name, bound in value.items()
    ]
    return f"({' AND '.join(parts)})", list(value.values())


def _same_type(kind_of: str, value: Any, kind: str) -> str:
    """Compile a check of the type: SQL takes true for 1, and compares text with numbers."""
    if isinstance(value, str):
        _refuse_surrogates(value)
        return f"{kind_of} IS 'text'"
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63:
        return f"ifnull({kind_of} IN ('integer', 'real'), 0)"
    raise InvalidFilter(f"{kind} must be a string or a number below 2**63, got {value!r:.80}.")


def _refuse_surrogates(text: str) -> None:
    """Refuse half surrogates and NUL, which stored metadata never contains."""
    try:
        if "\0" in text:
            raise InvalidFilter(f"A filter must not contain NUL characters, got {text!r:.80}.")
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidFilter(f"A filter must be valid UTF-8, got {text!r:.80}.") from error
