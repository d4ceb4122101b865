"""Check the arguments of public functions by their annotations, so that a wrong type is refused before any work.

    @checked
    def load(folder: str | Path, resume: bool = False): ...

    load(3)     # InvalidRequest: folder must be a string or a path, got 3.

An argument is checked if each type of its annotation is one of KINDS, or a class that the function's module knows.
"""

from __future__ import annotations

import ast
import functools
from collections import abc
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from numbers import Integral, Real
from os import PathLike
from types import FunctionType
from typing import Any, NamedTuple, TypeVar, get_origin

from nnclr_hub.errors import InvalidRequest

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)
SECRETS = ("key", "api_key", "token")  # values that no message shows


class Kind(NamedTuple):
    """A type of arguments: how messages call it, and whether a value has it."""

    words: str
    fits: Callable[[Any], bool]


def _is_list(value: Any) -> bool:
    return hasattr(value, "__iter__") and not isinstance(value, str | bytes)


KINDS = {
    "bool": Kind("true or false", lambda value: type(value).__name__ in ("bool", "bool_")),  # the latter is NumPy's
    "int": Kind("a whole number", lambda value: isinstance(value, Integral) and not isinstance(value, bool)),
    "float": Kind("a number", lambda value: isinstance(value, Real) and not isinstance(value, bool)),
    "str": Kind("a string", lambda value: isinstance(value, str)),
    "Path": Kind("a path", lambda value: isinstance(value, str | PathLike)),
    "None": Kind("None", lambda value: value is None),
    **dict.fromkeys(("Sequence", "Iterable"), Kind("a list", _is_list)),
    **dict.fromkeys(("np.ndarray", "Tensor"), Kind("an array", lambda one: hasattr(one, "shape") or _is_list(one))),
    "Mapping": Kind("a dict", lambda value: isinstance(value, Mapping)),
    "Callable": Kind("a function", callable),
}


def checked(function: F) -> F:
    """Return a function that refuses arguments of other types than those of its annotations."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]

    @functools.cache
    def kinds() -> dict[str, list[Kind]]:  # at the first call, since classes may be defined later
        return dict(_kinds(function))

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        for name, value in chain(zip(names, args, strict=False), options.items()):
            known = kinds().get(name)
            if known and not any(kind.fits(value) for kind in known):
                got = type(value).__name__ if name in SECRETS else f"{value!r:.80}"
                raise InvalidRequest(f"{name} must be {' or '.join(kind.words for kind in known)}, got {got}.")
        return function(*args, **options)

    return wrapper  # type: ignore[return-value]


def checked_methods(kind: C) -> C:
    """Check the arguments of a class's public methods; a decorator of classes."""
    for name, method in list(vars(kind).items()):
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(kind, name, checked(method))
    return kind


def _kinds(function: Callable[..., Any]) -> Iterator[tuple[str, list[Kind]]]:
    texts = {name: text for name, text in function.__annotations__.items() if isinstance(text, str)}
    for name, text in texts.items():
        members = [_kind(one, function.__globals__) for one in _members(ast.parse(text, mode="eval").body)]
        known = [kind for kind in members if kind is not None]
        if len(known) == len(members):
            yield name, known


def _members(node: ast.expr) -> list[str]:
    """Return the types in an annotation, without those of their members."""
    if isinstance(node, ast.BinOp):
        return _members(node.left) + _members(node.right)
    return _members(node.value) if isinstance(node, ast.Subscript) else [ast.unparse(node)]


def _kind(name: str, known: Mapping[str, Any]) -> Kind | None:
    module, _, member = name.rpartition(".")
    found = getattr(known.get(module), member, None) if module else known.get(name)
    if name in KINDS or get_origin(found) is abc.Callable:
        return KINDS.get(name, KINDS["Callable"])
    if not isinstance(found, type) or found is Any or getattr(found, "_is_protocol", False):
        return None
    return Kind(f"a {name}", lambda value: isinstance(value, found))
