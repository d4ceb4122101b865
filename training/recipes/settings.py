"""Settings of a recipe as text: `--set KEY=VALUE`, and the sentences that say what a value may be."""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Sequence
from dataclasses import field
from difflib import get_close_matches
from typing import Any, Literal

from nnclr_hub.errors import UnknownSetting


def setting(default: Any, help: str) -> Any:
    """A field of a recipe with the sentence that the command line shows for it."""
    return field(default=default, metadata={"help": help})


def parse_settings(assignments: Sequence[str], hints: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """`key=value` texts as values of the right types.

    Args:
        assignments: as given.
        hints: the type of every setting.
        now: their values, for examples in messages.

    Raises:
        UnknownSetting: a key that is none, with the nearest one; or a value it cannot take.
    """
    changes: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if key not in hints:
            close = get_close_matches(key, hints, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(hints)}."
            raise UnknownSetting(f"No setting is called {key!r}: {hint}")
        if not equals:
            raise UnknownSetting(f"--set takes KEY=VALUE, for example {key}={as_text(now[key])}; got {assignment!r}.")
        changes[key] = _parse(key, text, hints[key])
    return changes


def as_text(value: Any) -> str:
    """A value as --set takes it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse(key: str, text: str, kind: Any) -> Any:
    if typing.get_origin(kind) is Literal or kind is str:
        return text
    try:
        if kind is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        if typing.get_origin(kind) is tuple:
            number = typing.get_args(kind)[0]
            return tuple(number(part) for part in text.split(",") if part)
        return kind(text)
    except (ValueError, KeyError):
        if isinstance(kind, types.GenericAlias):
            name = f"comma-separated {'whole ' if typing.get_args(kind)[0] is int else ''}numbers"
        else:
            name = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
        raise UnknownSetting(f"{key} takes {name}; got {text!r}.") from None


def require(holds: bool, name: str, value: object, rule: str) -> None:
    """Raises UnknownSetting unless `holds`."""
    if not holds:
        raise UnknownSetting(f"{name}={as_text(value)} {rule}.")


def one_of(name: str, value: str, choices: Collection[str]) -> None:
    """Raises UnknownSetting, with the nearest, unless value is one of the choices."""
    if value not in choices:
        close = get_close_matches(value, choices, n=1)
        hint = f": did you mean {close[0]!r}?" if close else "."
        raise UnknownSetting(f"{name}={value} is none of {', '.join(choices)}{hint}")
