"""Check the arguments of public functions by their annotations, so that a wrong type is refused before any work.

An argument is checked if each type of its annotation is in KINDS, or is a class that the function's module knows.
"""

from __future__ import annotations

import ast
import functools
from collections import abc
from collections.abc import Callable, Mapping
from itertools import chain
from numbers import Integral, Real
from os import PathLike
from types import FunctionType
from typing import Any, ClassVar, Protocol, TypeVar, get_origin

from nnclr_hub.errors import InvalidRequest

F = TypeVar("F", bound=Callable[..., Any])
Kind = tuple[str, Callable[[Any], bool]]  # how messages call a type, and whether a value has it
SECRETS = ("key", "api_key", "token")  # values that no message shows
KINDS: dict[str, Kind] = {
    "bool": ("true or false", lambda value: type(value).__name__ in ("bool", "bool_")),  # the latter is NumPy's
    "int": ("a whole number", lambda value: isinstance(value, Integral) and not isinstance(value, bool)),
    "float": ("a number", lambda value: isinstance(value, Real) and not isinstance(value, bool)),
    "str": ("a string", lambda value: isinstance(value, str)),
    "Path": ("a path", lambda value: isinstance(value, str | PathLike)),
    "None": ("None", lambda value: value is None),
    "Sequence": ("a list", lambda value: hasattr(value, "__iter__") and not isinstance(value, str | bytes)),
    "Mapping": ("a dict", lambda value: isinstance(value, Mapping)),
    "Callable": ("a function", callable),
}
KINDS |= dict.fromkeys(("Iterable", "np.ndarray", "Tensor"), KINDS["Sequence"])  # arrays may be nested lists


def checked(function: F) -> F:
    """Return a function that refuses an argument whose type is not in its annotation."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]

    @functools.cache
    def kinds(name: str) -> list[Kind]:  # at the first call, since classes may be defined later
        text = function.__annotations__.get(name)
        members = _members(ast.parse(text, mode="eval").body) if isinstance(text, str) else []
        found = [_kind(one, function.__globals__) for one in members]
        return [] if None in found else found  # type: ignore[return-value]

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        for name, value in chain(zip(names, args, strict=False), options.items()):
            if (known := kinds(name)) and not any(fits(value) for _, fits in known):
                got = type(value).__name__ if name in SECRETS else f"{value!r:.80}"
                words = " or ".join(dict.fromkeys(words for words, _ in known))
                hint = (
                    f"; even a single one is in a list: [{got}]" if "a list" in words and isinstance(value, str) else ""
                )
                raise InvalidRequest(f"{name} must be {words}, got {got}{hint}.")
        return function(*args, **options)

    return wrapper  # type: ignore[return-value]


class Checked(Protocol):
    """Base of classes whose public methods are `checked`. The methods of subclasses are, too.

    UNCHECKED: methods that run for each search or batch, and check their arguments themselves.
    """

    UNCHECKED: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, method in list(vars(cls).items()):
            if isinstance(method, FunctionType) and not name.startswith("_") and name not in cls.UNCHECKED:
                setattr(cls, name, checked(method))


def _members(node: ast.expr) -> list[str]:
    """Return the types in an annotation: Sequence and Path of `Sequence[str] | Path`."""
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
    name = found.__name__
    return f"a{'n' if name[0] in 'AEIO' else ''} {name}", lambda value: isinstance(value, found)
