"""Check the arguments of public functions by their annotations, so that a wrong type is refused before any work.

An argument is checked if each type of its annotation is in KINDS, or is a class that the function's module knows. So
are the members of a list or tuple whose annotation names one type for them, such as `Sequence[str]`.
"""

from __future__ import annotations

import ast
import functools
from collections import abc
from collections.abc import Callable, Mapping
from numbers import Integral, Number, Real
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
    "Sequence": ("a list", lambda value: _is_iterable(value) and not isinstance(value, str | bytes)),
    "Mapping": ("a dict", lambda value: isinstance(value, Mapping)),
    "Callable": ("a function", callable),
}
ARRAYS = ("np.ndarray", "Tensor")
KINDS |= dict.fromkeys(("Iterable", *ARRAYS), KINDS["Sequence"])  # arrays may be nested lists


def checked(function: F) -> F:
    """Return a function that refuses an argument whose type is not in its annotation.

    Numbers of NumPy become those of Python, which faiss, SQLite and JSON require.
    """
    names = function.__code__.co_varnames[: function.__code__.co_argcount]

    @functools.cache
    def kinds(name: str) -> list[Kind]:  # at the first call, since classes may be defined later
        text = function.__annotations__.get(name)
        members = _members(ast.parse(text, mode="eval").body) if isinstance(text, str) else []
        found = [_kind(one, function.__globals__) for one in members]
        return [] if None in found else found  # type: ignore[return-value]

    def check(name: str, value: Any) -> Any:
        if not (known := kinds(name)):
            return value
        if any(fits(value) for _, fits in known):
            return value.item() if isinstance(value, Number) and hasattr(value, "item") else value  # type: ignore[attr-defined]
        got = type(value).__name__ if name in SECRETS else f"{value!r:.80}"
        words = " or ".join(dict.fromkeys(words for words, _ in known))
        hint = f"; even a single one is in a list: [{got}]" if "a list" in words and isinstance(value, str) else ""
        raise InvalidRequest(f"{name} must be {words}, got {got}{hint}.")

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        others = args[len(names) :]
        return function(*map(check, names, args), *others, **{name: check(name, options[name]) for name in options})

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


def _is_iterable(value: Any) -> bool:
    """Return whether a value has members; an array of no dimensions has none, although it has the method."""
    return hasattr(value, "__iter__") and getattr(value, "ndim", 1) > 0


def _members(node: ast.expr) -> list[ast.expr]:
    """Return the types in an annotation: Sequence[str] and Path of `Sequence[str] | Path`."""
    return _members(node.left) + _members(node.right) if isinstance(node, ast.BinOp) else [node]


def _kind(node: ast.expr, known: Mapping[str, Any]) -> Kind | None:
    name = ast.unparse(node.value if isinstance(node, ast.Subscript) else node)
    if name in ("Sequence", "Iterable") and isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name):
        member = None if node.slice.id in ARRAYS else _kind(node.slice, known)
        return KINDS[name] if member is None else _list_of(member)
    module, _, attribute = name.rpartition(".")
    found = getattr(known.get(module), attribute, None) if module else known.get(name)
    if name in KINDS or get_origin(found) is abc.Callable:
        return KINDS.get(name, KINDS["Callable"])
    if not isinstance(found, type) or found is Any:
        return None
    words = f"a{'n' if found.__name__[0] in 'AEIO' else ''} {found.__name__}"
    if not getattr(found, "_is_protocol", False):
        return words, lambda value: isinstance(value, found)
    # a class may have the members of a protocol without naming it, but not those of a collection or a store
    return (words, lambda value: found in type(value).__mro__) if Checked in found.__mro__ else None


def _list_of(member: Kind) -> Kind:
    words, fits = member
    _, is_list = KINDS["Sequence"]
    # others, such as arrays and generators, are read once, by the function
    is_each = lambda value: not isinstance(value, list | tuple | dict) or all(map(fits, value))  # noqa: E731
    _, name = words.split(maxsplit=1)  # without its article
    plural = f"{name}s" if name.islower() else f"{name} objects"
    return f"a list of {plural}", lambda value: is_list(value) and is_each(value)
