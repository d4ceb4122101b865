"""What every store says about names of collections and aliases, and how it calls a collection that was replaced."""

from __future__ import annotations

from collections.abc import Iterable

from nnclr_hub.errors import CollectionExists, CollectionNotFound, InvalidRequest


def replaced_name(to: str, taken: Iterable[str]) -> str:
    """Return `to.old`, or the first of `to.old2`, ... that is not taken."""
    known = set(taken)
    return next(free for n in range(1, len(known) + 2) if (free := f"{to}.old{n if n > 1 else ''}") not in known)


def collection_not_found(name: str, existing: Iterable[str]) -> CollectionNotFound:
    known = ", ".join(existing)
    hint = f"existing ones: {known}." if known else "the store is empty; index images first."
    return CollectionNotFound(f"Collection {name!r} does not exist; {hint}")


def alias_not_found(alias: str, existing: Iterable[str]) -> CollectionNotFound:
    known = ", ".join(existing)
    hint = f"existing ones: {known}." if known else "the store has no aliases."
    return CollectionNotFound(f"Alias {alias!r} does not exist; {hint}")


def collection_exists(name: str) -> CollectionExists:
    return CollectionExists(f"Collection {name!r} exists already; use it, drop it, or choose another name.")


def alias_exists(alias: str) -> CollectionExists:
    return CollectionExists(f"Alias {alias!r} exists already; choose another name, or remove the alias first.")


def is_collection(alias: str) -> CollectionExists:
    return CollectionExists(f"{alias!r} is a collection, so it cannot be an alias; choose another name.")


def is_alias(name: str, target: str) -> InvalidRequest:
    return InvalidRequest(f"{name!r} is an alias; use the name of its collection, {target!r}.")


def is_own_name(name: str) -> InvalidRequest:
    return InvalidRequest(f"{name!r} is already the collection's own name; promote another collection to it.")
