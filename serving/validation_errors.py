"""Messages for the validation errors of pydantic: one clause for each place in the request.

clauses(error.errors())     # [Clause("body.k", "k", "k must be at most 10000")]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# by pydantic's type of error; names in braces are filled in from the context of the error
_PHRASES = {
    "missing": "is missing",
    "extra_forbidden": "is not a known field",
    "int": "must be an integer",
    "float": "must be a number",
    "finite_number": "must be a finite number",
    "string": "must be a string",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "bool": "must be true or false",
    "list": "must be a list",
    "tuple": "must be a list",
    "dict": "must be an object",
    "model": "must be an object",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be greater than {gt:g}",
    "less_than_equal": "must be at most {le:g}",
    "less_than": "must be less than {lt:g}",
    "too_short": "must have at least {min_length} entries, got {actual_length}",
    "too_long": "must have at most {max_length} entries",
}
_FAMILY = re.compile(r"(int|float|string|bool|list|tuple|dict|model)_(type|parsing|from_float|unicode|attributes_type)")
# parts that pydantic adds to a place to name the member of a union
_MEMBER = re.compile(r"(str|int|float|bool|none|constrained-\w+)|.*[\[\(].*")
_PARTS = ("body", "query", "path", "header")


class Clause(NamedTuple):
    """The errors of one place.

    place: such as body.vector.1.
    name: such as vector[1]; "" for the whole body.
    text: the name and the error, such as "vector[1] must be a number".
    """

    place: str
    name: str
    text: str


def clauses(parts: Sequence[Mapping[str, Any]]) -> list[Clause]:
    """Return a clause for each place.

    The errors of all members of a union become one clause. A place is left out if a place inside it has an error.

    Args:
        parts: `errors()` of a pydantic or FastAPI validation error.
    """
    found: dict[str, list[str]] = {}
    for part in parts:
        first, *others = map(str, part["loc"])
        words = found.setdefault(".".join([first, *(one for one in others if not _MEMBER.fullmatch(one))]), [])
        if (phrase := _phrase(part)) not in words:
            words.append(phrase)
    deepest = [place for place in found if not any(other.startswith(f"{place}.") for other in found)]
    return [Clause(place, _name(place), _text(_name(place), " or ".join(found[place]))) for place in deepest]


def _phrase(part: Mapping[str, Any]) -> str:
    """Return the error as words that follow the name of the place, or as a colon and a sentence."""
    kind = str(part["type"])
    family = _FAMILY.fullmatch(kind)
    known = _PHRASES.get(family[1] if family else kind)
    if known is None:
        return ": " + str(part["msg"]).removeprefix("Value error, ").rstrip(".")
    return known.format_map(part.get("ctx", {}))


def _name(place: str) -> str:
    part, _, rest = place.partition(".")
    name = rest if part in _PARTS else place
    return re.sub(r"(^|\.)(\d+)(?=\.|$)", r"[\2]", name)


def _text(name: str, words: str) -> str:
    words = words.replace(" or must be ", " or ")
    if words.startswith(": "):
        return f"{name}{words}".removeprefix(": ")
    return f"{name or 'the body'} {words}"
