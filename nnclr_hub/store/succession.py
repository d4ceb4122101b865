"""One collection takes another's place: NAME~next means the one that is being built, NAME~was the one that goes.

As long as NAME~next means another collection than NAME, the process that builds it writes to both, and others do not
write to NAME. NAME~was is there only while the two are swapped: by it, a swap that was cut short can be finished.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from nnclr_hub.errors import CollectionMoving, CollectionNotFound
from nnclr_hub.store.base import Collection, Item, VectorStore

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
    # where a swap is more than one step, other names may still mean the old one, which only NAME~was then tells
    for alias in (f"{one.removesuffix(WAS)}{SUFFIX}" for one in names):
        # a swap that a crash cut short leaves the alias on what has taken the place already
        if alias in aliases and aliases[alias] != collection.name:
            return Successor(alias, store.get(alias))
    return None


@contextmanager
def written_together(store: VectorStore, name: str, built_here: Container[str] = ()) -> Iterator[list[Collection]]:
    """What a write to a collection goes to: it and, while one is built to take its place, that one as well.

    What several processes write to is looked at again afterwards. A write that was done before NAME~next was there is
    found by whoever builds, for that one looks later; any other may be missed, and is not acknowledged.

    Args:
        built_here: names of collections that this process is building.

    Raises:
        CollectionNotFound: no collection of that name.
        CollectionMoving: another process lets another collection take its place.
    """
    found = _both(store, name)
    names = [one.name for one in found]
    if not store.single_writer and any(one not in built_here for one in names[1:]):
        raise _moving(name)
    yield found
    if not store.single_writer and [one.name for one in _both(store, name)] != names:
        raise _moving(name)


def upsert_there(store: VectorStore, name: str, collection: Collection, items: Sequence[Item]) -> None:
    """Stores vectors in a collection that the name meant before, if it still means it.

    Raises:
        CollectionMoving: see `written_together`.
    """
    with written_together(store, name) as (meant, *_):
        if meant.name != collection.name:
            raise _moving(name)
        collection.upsert(items)


def _both(store: VectorStore, name: str) -> list[Collection]:
    following = successor_of(store, name)
    return [store.get(name), *([following.collection] if following else [])]


def _moving(name: str) -> CollectionMoving:
    return CollectionMoving(
        f"Collection {name!r} is being re-embedded, or just was, and this process has no part in the re-embedding, so "
        "its write may be lost with the old collection: write again when the re-embedding is done, or give the "
        f"re-embedding up with `nnclr store reembed {name} --abandon`."
    )


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


def finish_swaps(store: VectorStore, collection: str | None = None) -> None:
    """Does what is left of swaps that were cut short; nobody may write meanwhile.

    Args:
        collection: only of those that it has a part in; None: of all.
    """
    aliases = store.aliases()
    names = [alias.removesuffix(SUFFIX) for alias in aliases if alias.endswith(SUFFIX)]
    if collection is not None:
        names = [one for one in names if collection in (one, *(aliases.get(one + end) for end in ("", SUFFIX, WAS)))]
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
    """Drops a collection and what was to take its place; returns the names of both; nobody may write meanwhile.

    Raises:
        CollectionNotFound: no collection of that name.
        InvalidRequest: it is an alias.
    """
    finish_swaps(store, name)  # what has taken its place already is not half made
    following = successor_of(store, name)
    store.drop(name)
    if following is None:
        return (name,)
    half_made = following.collection.name
    store.drop(half_made)
    return name, half_made


def _clear(store: VectorStore, name: str) -> None:
    """What comes after the promotion. NAME~next goes last: as long as it is there, this can be done again.

    What is gone already another process has done: one that took this swap for one that was cut short.
    """
    aliases = store.aliases()
    new = aliases.get(name + SUFFIX)
    if new is None:
        return
    old = aliases.get(name + WAS, new)
    for alias, meant in aliases.items():
        if meant == old != new and alias != name + WAS:
            store.alias(alias, new)
    # the collection may have been found by another of its names
    others = [alias for alias, meant in aliases.items() if meant == new and alias.endswith(SUFFIX)]
    for alias in (name + WAS, *sorted(others, key=(name + SUFFIX).__eq__)):
        with suppress(CollectionNotFound):
            store.unalias(alias)


def _is_there(store: VectorStore, name: str) -> bool:
    """Whether anything is called so; a store may give what went by that name where nothing is any more."""
    if name in store.aliases():
        return True
    try:
        return store.get(name).name == name
    except CollectionNotFound:
        return False
