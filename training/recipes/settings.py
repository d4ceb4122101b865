"""Settings of a recipe as text: parse `--set KEY=VALUE` and report invalid values."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from difflib import get_close_matches
from typing import Any, Literal

from nnclr_hub.errors import UnknownSetting

FIT = math.inf  # number of epochs that the time limit decides


def setting(default: Any, help: str) -> Any:
    """Define a field of a recipe with the help that the command line shows."""
    return field(default=default, metadata={"help": help})


def assignments(settings: Sequence[str] | Mapping[str, Any]) -> Sequence[str]:
    """Return settings as ["key=value", ...]; {"key": value} is accepted too."""
    if isinstance(settings, Mapping):
        return [f"{name}={as_text(value)}" for name, value in settings.items()]
    return settings


def parse_settings(assignments: Sequence[str], hints: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Parse `key=value` texts into values of the right types.

    Args:
        hints: the type of every setting.
        now: present values, for examples in messages.

    Raises:
        UnknownSetting: an unknown key, with the nearest one, or an invalid value.
    """
    changes: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if key not in hints:
            close = get_close_matches(key, hints, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the settings are {', '.join(hints)}."
            raise UnknownSetting(f"No setting is named {key!r}; {hint}")
        if not equals:
            raise UnknownSetting(f"--set needs KEY=VALUE, for example {key}={as_text(now[key])}; got {assignment!r}.")
        changes[key] = _parse(key, text, hints[key])
    return changes


def as_text(value: Any) -> str:
    """Format a value as --set accepts it."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    if value == FIT:
        return "fit"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse(key: str, text: str, kind: Any) -> Any:
    if typing.get_origin(kind) is Literal or kind is str:
        return text
    try:
        if key == "epochs" and text == "fit":
            return FIT
        if kind is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        if typing.get_origin(kind) is tuple:
            number = typing.get_args(kind)[0]
            return tuple(number(part) for part in text.split(",") if part)
        number = kind(text)
        if math.isinf(number):  # inside the program, this means "fit"
            raise ValueError(text)
        return number
    except (ValueError, KeyError):
        if isinstance(kind, types.GenericAlias):
            name = f"comma-separated {'integers' if typing.get_args(kind)[0] is int else 'numbers'}"
        else:
            name = {int: "an integer", float: "a number", bool: "true or false"}[kind]
        raise UnknownSetting(f"{key} must be {name}; got {text!r}.") from None


def require(holds: bool, name: str, value: object, rule: str) -> None:
    """Raise UnknownSetting unless `holds`."""
    if not holds:
        raise UnknownSetting(f"{name} {rule}; got {as_text(value)}.")


def one_of(name: str, value: str, choices: Collection[str], hint: str = "") -> None:
    """Raise UnknownSetting, with the nearest choice or a hint, unless value is one of the choices."""
    if value not in choices:
        close = get_close_matches(value, choices, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else hint
        raise UnknownSetting(f"{name} must be one of {', '.join(choices)}; got {value}.{hint}")
