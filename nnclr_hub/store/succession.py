"""The collection that is being built to take another's place: the alias NAME~next means it.

As long as that alias is there, whoever writes to NAME writes to both.
"""

from __future__ import annotations

from dataclasses import dataclass

from nnclr_hub.store.base import Collection, VectorStore

SUFFIX = "~next"


@dataclass(frozen=True)
class Successor:
    """A collection in the making, and the alias by which it is found."""

    alias: str
    collection: Collection


def successor_of(store: VectorStore, name: str) -> Successor | None:
    """What is to take the place of a collection, whichever of its names is given; None if nothing is.

    Raises:
        CollectionNotFound: no collection of that name.
    """
    collection, aliases = store.get(name), store.aliases()
    names = [name, collection.name, *(alias for alias, meant in aliases.items() if meant == collection.name)]
    for alias in (f"{one}{SUFFIX}" for one in names):
        # a swap that a crash cut short leaves the alias on what has taken the place already
        if alias in aliases and aliases[alias] != collection.name:
            return Successor(alias, store.get(alias))
    return None


def drop_with_successor(store: VectorStore, name: str) -> tuple[str, ...]:
    """Drops a collection and what was to take its place; returns the names of both.

    Raises:
        CollectionNotFound: no collection of that name.
        InvalidRequest: it is an alias.
    """
    following = successor_of(store, name)
    store.drop(name)
    if following is None:
        return (name,)
    half_made = following.collection.name
    store.drop(half_made)
    return name, half_made
