"""One collection takes another's place: NAME~next means the one that is being built, NAME~was the one that goes.

As long as NAME~next means another collection than NAME, whoever writes to NAME writes to both. NAME~was is there only
while the two are swapped: by it, a swap that was cut short can be finished.
"""

from __future__ import annotations

from dataclasses import dataclass

from nnclr_hub.errors import CollectionNotFound
from nnclr_hub.store.base import Collection, VectorStore

SUFFIX = "~next"
WAS = "~was"


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


def swap(store: VectorStore, name: str, successor: Successor) -> str:
    """Makes the name, and all aliases of what it means, mean the successor; nobody may write meanwhile.

    Returns:
        The name under which the old collection is kept.
    """
    old, new = store.get(name).name, successor.collection.name
    store.alias(name + SUFFIX, new)
    store.alias(name + WAS, old)
    kept = store.promote(new, name) or old
    _clear(store, name)
    return kept


def finish_swaps(store: VectorStore) -> None:
    """Does what is left of swaps that were cut short; nobody may write meanwhile."""
    aliases = store.aliases()
    names = [alias.removesuffix(SUFFIX) for alias in aliases if alias.endswith(SUFFIX)]
    # the names that were promoted first: to clear up after those does away with the others
    for name in sorted(names, key=lambda name: name + WAS not in aliases):
        aliases = store.aliases()
        new = aliases.get(name + SUFFIX)
        if new is None:
            continue  # cleared away with another
        if name + WAS in aliases and not _is_there(store, name):
            store.promote(new, name)  # not one step on every store: the old one may have lost the name already
        elif aliases.get(name) != new:
            continue  # it is still being built
        _clear(store, name)


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


def _clear(store: VectorStore, name: str) -> None:
    """What comes after the promotion. NAME~next goes last: as long as it is there, this can be done again."""
    aliases = store.aliases()
    new = aliases[name + SUFFIX]
    old = aliases.get(name + WAS, new)
    for alias, meant in aliases.items():
        if meant == old != new and alias != name + WAS:
            store.alias(alias, new)
    if name + WAS in aliases:
        store.unalias(name + WAS)
    # the collection may have been found by another of its names
    others = [alias for alias, meant in aliases.items() if meant == new and alias.endswith(SUFFIX)]
    for alias in sorted(others, key=(name + SUFFIX).__eq__):
        store.unalias(alias)


def _is_there(store: VectorStore, name: str) -> bool:
    try:
        store.get(name)
    except CollectionNotFound:
        return False
    return True
