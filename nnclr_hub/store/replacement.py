"""Replacing a collection by another: the alias NAME~next points to the one being built, NAME~was to the old one.

While NAME~next points to another collection than NAME, the process that builds it writes to both, and other processes
do not write to NAME. NAME~was exists only during the swap. On Milvus a swap takes several steps, and by NAME~was one
that a crash interrupted can be finished.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from nnclr_hub.errors import CollectionMoving, CollectionNotFound, InvalidRequest
from nnclr_hub.store.base import Collection, Item, VectorStore

NEXT = "~next"
WAS = "~was"


@dataclass(frozen=True)
class Replacement:
    """A collection that is being built to replace another, and its alias NAME~next."""

    alias: str
    collection: Collection


def replacement_of(store: VectorStore, name: str) -> Replacement | None:
    """Return what is being built to replace a collection, by any of its names; None if nothing is.

    Raises:
        CollectionNotFound: the collection does not exist.
    """
    collection, aliases = store.get(name), store.aliases()
    names = [name, collection.name, *(alias for alias, target in aliases.items() if target == collection.name)]
    # during a swap of several steps, other names may still point to the old one, which then has only NAME~was
    for alias in (f"{one.removesuffix(WAS)}{NEXT}" for one in names):
        # an interrupted swap leaves the alias on the collection that has already replaced the old one
        if alias in aliases and aliases[alias] != collection.name:
            with suppress(CollectionNotFound):  # another process has just finished the swap, or abandoned it
                return Replacement(alias, store.get(alias))
    return None


def required_replacement(store: VectorStore, name: str) -> Replacement:
    """Return what is being built to replace a collection.

    Raises:
        CollectionNotFound: the collection does not exist.
        InvalidRequest: nothing is.
    """
    replacement = replacement_of(store, name)
    if replacement is None:
        raise InvalidRequest(f"Collection {name!r} is not being re-embedded, so there is nothing to abandon.")
    return replacement


@contextmanager
def write_targets(store: VectorStore, name: str, built_here: Container[str] = ()) -> Iterator[list[Collection]]:
    """Provide the collections that a write goes to: the named one and, while it is being replaced, the new one too.

    Where several processes write, the targets are checked again after the block. A write that finished before
    NAME~next existed is read by the process that builds the replacement, because that starts to read later. Any other
    write may be missed, and is not acknowledged.

    Args:
        store: of the collection.
        name: of the collection.
        built_here: names of collections that this process is building.

    Raises:
        CollectionNotFound: the collection does not exist.
        CollectionMoving: another process is replacing the collection.
    """
    targets = _targets(store, name)
    names = [one.name for one in targets]
    if not store.single_writer and any(one not in built_here for one in names[1:]):
        raise _moving(name)
    yield targets
    if not store.single_writer and [one.name for one in _targets(store, name)] != names:
        raise _moving(name)


def upsert_into(store: VectorStore, name: str, collection: Collection, items: Sequence[Item]) -> None:
    """Store items in a collection that the name pointed to before, if it still does.

    Raises:
        CollectionMoving: see `write_targets`.
    """
    with write_targets(store, name) as (target, *_):
        if target.name != collection.name:
            raise _moving(name)
        collection.upsert(items)


def _targets(store: VectorStore, name: str) -> list[Collection]:
    replacement = replacement_of(store, name)
    return [store.get(name), *([replacement.collection] if replacement else [])]


def _moving(name: str) -> CollectionMoving:
    return CollectionMoving(
        f"Collection {name!r} is being re-embedded by another process, or just was, so this write may be lost with the "
        "old collection. Write again when the re-embedding is done, or cancel it with "
        f"`nnclr store reembed {name} --abandon`."
    )


def swap(store: VectorStore, name: str, replacement: Replacement) -> str:
    """Point the name, and all aliases of its collection, to the replacement; nothing may write at the same time.

    Returns:
        The name under which the old collection is kept.
    """
    old, new = store.get(name).name, replacement.collection.name
    store.alias(name + NEXT, new)
    store.alias(name + WAS, old)
    kept = store.promote(new, name) or old
    _clear(store, name)
    return kept


def finish_swaps(store: VectorStore, collection: str | None = None) -> None:
    """Finish swaps that were interrupted; nothing may write at the same time.

    Args:
        store: with the collections.
        collection: finish only swaps that involve it; None: all.
    """
    aliases = store.aliases()
    names = [alias.removesuffix(NEXT) for alias in aliases if alias.endswith(NEXT)]
    if collection is not None:
        names = [one for one in names if collection in (one, *(aliases.get(one + end) for end in ("", NEXT, WAS)))]
    # first the names that were promoted: clearing up after those removes the others
    for name in sorted(names, key=lambda name: name + WAS not in aliases):
        aliases = store.aliases()
        new = aliases.get(name + NEXT)
        if new is None:
            continue  # removed with another
        if name + WAS in aliases and not _exists(store, name):
            store.promote(new, name)  # on Milvus the old one may have lost the name already
        elif aliases.get(name) != new:
            continue  # it is still being built
        _clear(store, name)


def drop_with_replacement(store: VectorStore, name: str) -> tuple[str, ...]:
    """Drop a collection and its replacement; return the names of both. Nothing may write at the same time.

    Raises:
        CollectionNotFound: the collection does not exist.
        InvalidRequest: the name is an alias.
    """
    finish_swaps(store, name)  # a collection that has replaced it already is not half built
    replacement = replacement_of(store, name)
    store.drop(name)
    if replacement is None:
        return (name,)
    half_built = replacement.collection.name
    store.drop(half_built)
    return name, half_built


def _clear(store: VectorStore, name: str) -> None:
    """Move and remove aliases after the promotion.

    NAME~next is removed last: as long as it exists, this can be repeated. Aliases that are missing were removed by
    another process that took this swap for an interrupted one.
    """
    aliases = store.aliases()
    new = aliases.get(name + NEXT)
    if new is None:
        return
    old = aliases.get(name + WAS, new)
    for alias, target in aliases.items():
        if target == old != new and alias != name + WAS:
            store.alias(alias, new)
    # the replacement may have been started under another name of the collection
    others = [alias for alias, target in aliases.items() if target == new and alias.endswith(NEXT)]
    for alias in (name + WAS, *sorted(others, key=(name + NEXT).__eq__)):
        with suppress(CollectionNotFound):
            store.unalias(alias)


def _exists(store: VectorStore, name: str) -> bool:
    """Return whether the name is taken; between two steps of a swap, Milvus finds a collection for a free name."""
    if name in store.aliases():
        return True
    try:
        return store.get(name).name == name
    except CollectionNotFound:
        return False
