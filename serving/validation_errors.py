"""What is wrong with a request, in words: one clause for each place, of what pydantic found there.

clauses(error.errors())     # [Clause("body.k", "k", "k must be at most 10000")]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# by pydantic's type of error; what stands in braces comes from the error's context
_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not known here",
    "int": "must be a whole number",
    "float": "must be a number",
    "finite_number": "must be a finite number",
    "string": "must be a text",
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
    "greater_than": "must be more than {gt:g}",
    "less_than_equal": "must be at most {le:g}",
    "less_than": "must be less than {lt:g}",
    "too_short": "must have at least {min_length} entries, and has {actual_length}",
    "too_long": "must have at most {max_length} entries",
}
_FAMILY = re.compile(r"(int|float|string|bool|list|tuple|dict|model)_(type|parsing|from_float|unicode|attributes_type)")
# what pydantic puts into a place to say which member of a union it means
_MEMBER = re.compile(r"(str|int|float|bool|none|constrained-\w+)|.*[\[\(].*")
_PARTS = ("body", "query", "path", "header")


class Clause(NamedTuple):
    """What is wrong with one place.

    place: with the part of the request before it. name: without, as one would write it; "" for all of the body.
    text: the name, and what is wrong.
    """

    place: str
    name: str
    text: str


def clauses(parts: Sequence[Mapping[str, Any]]) -> list[Clause]:
    """A clause for each place; what the members of a union say of one place is one clause, or that of what lies in it.

    Args:
        parts: of `errors()` of a pydantic or FastAPI validation error, or of the same form.
    """
    found: dict[str, list[str]] = {}
    for part in parts:
        first, *others = map(str, part["loc"])
        words = found.setdefault(".".join([first, *(one for one in others if not _MEMBER.fullmatch(one))]), [])
        if (said := _words(part)) not in words:
            words.append(said)
    deepest = [place for place in found if not any(other.startswith(f"{place}.") for other in found)]
    return [Clause(place, _name(place), _text(_name(place), " or ".join(found[place]))) for place in deepest]


def _words(part: Mapping[str, Any]) -> str:
    """What is wrong there: words that follow the name of the place, or a sentence of its own behind a colon."""
    kind = str(part["type"])
    family = _FAMILY.fullmatch(kind)
    known = _WORDS.get(family[1] if family else kind)
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
    return f"{name or 'it'} {words}"
