"""A collection moves to another encoder: built anew beside the old one from the kept sources, then swapped in.

    reembed(bench, "photos", "runs/my/encoder")

While it is built, the alias photos~next means the new collection, and what the workbench writes goes to both. What is
left to do is always the difference between the two, so a call that was interrupted is simply made again. Only the last
look holds writers up. Other processes that write to the same Milvus are refused until it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.errors import CollectionNotFound, ImageError, InvalidRequest, StoreError
from nnclr_hub.read_ahead import batches, read_ahead
from nnclr_hub.store.base import Collection, CollectionSpec, Progress, VectorStore
from nnclr_hub.store.succession import SUFFIX, WAS, Successor, finish_swaps, successor_of, swap
from nnclr_hub.workbench.differences import Change, differences
from nnclr_hub.workbench.indexing import BATCH, MAX_BATCH_BYTES
from nnclr_hub.workbench.left_out import LeftOut, called, refusal, refusal_of_all
from nnclr_hub.workbench.sources import read_source

if TYPE_CHECKING:
    from nnclr_hub.workbench.workbench import Workbench


@dataclass(frozen=True)
class Reembedded:
    """What a re-embedding came to.

    collection: the new one, which the name means now; None if there was nothing to do.
    items: how many it holds.
    embedded: how many of them this call embedded.
    left_out: items that are not in it, with the reason.
    kept: name under which the old one is kept.
    """

    collection: str | None
    items: int
    embedded: int
    left_out: tuple[tuple[str, str], ...] = ()
    kept: str | None = None


def reembed(
    bench: Workbench,
    name: str,
    model: str,
    *,
    skip_missing: bool = False,
    folders: Sequence[Path] | None = None,
    progress: Progress = lambda done, total: None,
) -> Reembedded:
    """Makes the name mean a collection of the same items, embedded by another model; goes on where a call stopped.

    An item is embedded if its file is there and has the pixels that were recorded (for items without a record: the
    size and modification time). Metadata and thumbnails are carried over. Aliases of the old collection move along.

    Args:
        name: of a collection, or an alias.
        model: source of the encoder.
        skip_missing: leave out items whose file is missing or changed, which else are refused at the end.
        folders: where files may be read, as an item's metadata could name any; None: anywhere.
        progress: called with (done, total), counted in items of the old collection.

    Raises:
        InvalidRequest: another model is in progress.
        StoreError: items cannot be embedded; what was done is kept for the next call, if anything was.
    """
    embedder = bench.models.get(model)
    if not bench.reembedding.acquire(blocking=False):
        raise InvalidRequest("A collection of this store is being re-embedded just now: wait until that is done.")
    try:
        return _reembed(bench, name, embedder, skip_missing, folders, progress)
    finally:
        bench.built_here.clear()
        bench.reembedding.release()


def _reembed(
    bench: Workbench,
    name: str,
    embedder: Embedder,
    skip_missing: bool,
    folders: Sequence[Path] | None,
    progress: Progress,
) -> Reembedded:
    with bench.gate.alone():
        finish_swaps(bench.store)
    store, old = bench.store, bench.store.get(name)
    if old.spec.fingerprint == embedder.fingerprint:
        return Reembedded(None, old.count(), 0, kept=None)
    with bench.gate.alone():  # a write that is under way goes to the old one alone: it has to be over
        following = _successor(store, name, old, embedder)
        bench.built_here.add(following.collection.name)
    new = following.collection
    read = partial(read_source, folders=folders)
    embedded, left_out = _catch_up(old, new, embedder, {}, read, bench.gate.alone, progress)
    with bench.gate.alone():
        more, left_out = _catch_up(old, new, embedder, left_out, read, nullcontext, lambda done, total: None)
        if left_out and len(left_out) == old.count():  # nor of earlier calls is anything there to go on with
            _give_up(store, following)
            raise refusal_of_all(name, embedder.name, left_out)
        if left_out and not skip_missing:
            raise refusal(name, embedder.name, old.count(), left_out, locked=not store.single_writer)
        # items that others deleted meanwhile, and copies of what could not be brought up to date
        extra = (change.id for change in differences(old, new) if change.metadata is None or change.id in left_out)
        for ids in batches(list(extra), BATCH):
            new.delete(ids)
        items, wanted = new.count(), old.count() - len(left_out)
        if items != wanted:
            raise StoreError(
                f"The new collection holds {items} items where {wanted} belong: another process writes to it; stop "
                "that one, and call again."
            )
        kept = swap(store, name, following)
    reasons = tuple((called(id, one.metadata), one.reason) for id, one in sorted(left_out.items()))
    return Reembedded(new.name, items, embedded + more, reasons, kept)


def abandon(bench: Workbench, name: str) -> str:
    """Drops what was built to take a collection's place; returns its name.

    Raises:
        InvalidRequest: nothing is being built.
    """
    with bench.gate.alone():
        finish_swaps(bench.store)
    following = successor_of(bench.store, name)
    if following is None:
        raise InvalidRequest(f"Collection {name!r} is not being re-embedded: there is nothing to abandon.")
    with bench.gate.alone():
        return _give_up(bench.store, following)


# ---- the two collections


def _give_up(store: VectorStore, following: Successor) -> str:
    half_made = following.collection.name
    store.drop(half_made)
    marker = following.alias.removesuffix(SUFFIX) + WAS  # of a swap that ended before it began
    if marker in store.aliases():
        store.unalias(marker)
    return half_made


def _successor(store: VectorStore, name: str, old: Collection, embedder: Embedder) -> Successor:
    """The collection in progress; made if there is none."""
    following = successor_of(store, name)
    if following is None:
        spec = replace(old.spec, dim=embedder.embed_dim, fingerprint=embedder.fingerprint, model=embedder.name)
        new = _made(store, f"{name}.{embedder.fingerprint[:8]}", spec)
        store.alias(name + SUFFIX, new.name)
        return Successor(name + SUFFIX, new)
    spec = following.collection.spec
    if spec.fingerprint != embedder.fingerprint:
        raise InvalidRequest(
            f"Collection {name!r} is being re-embedded with {spec.model} already: finish that with `nnclr store "
            f"reembed {name} --model {spec.model}`, or give it up with `nnclr store reembed {name} --abandon`."
        )
    return following


def _made(store: VectorStore, name: str, spec: CollectionSpec) -> Collection:
    """A new collection, its name with a number behind it where an older one is kept under that name."""
    candidate, number = name, 2
    while True:
        try:
            there = store.get(candidate)
        except CollectionNotFound:
            return store.create(candidate, spec)
        if there.name == candidate and there.spec == spec and there.count() == 0:
            return there  # made by a call that ended before its first item
        candidate, number = f"{name}.{number}", number + 1


# ---- from one to the other


def _catch_up(
    old: Collection,
    new: Collection,
    embedder: Embedder,
    known: Mapping[str, LeftOut],
    read: Callable[[Mapping[str, Any]], Image.Image | str],
    exclusively: Callable[[], AbstractContextManager[None]],
    progress: Progress,
) -> tuple[int, dict[str, LeftOut]]:
    """Embeds what the new collection lacks: how many, and which cannot be. What it has too many stays.

    Args:
        known: those that an earlier look found impossible; they are not read again.
        read: the image that an item with such metadata was made of, or why it is not to be had.
        exclusively: entered to store a batch.
    """
    total, embedded = old.count(), 0
    left_out: dict[str, LeftOut] = {}

    def source(change: Change) -> Image.Image | str:
        assert change.metadata is not None
        if change.id in known and known[change.id].metadata == change.metadata:
            return known[change.id].reason
        return read(change.metadata)

    wanted = (change for change in differences(old, new) if change.metadata is not None)
    for changes, sources in read_ahead(batches(wanted, BATCH, _size, MAX_BATCH_BYTES), source):
        results = _embedded(embedder, sources)
        left_out |= {
            change.id: LeftOut(change.metadata or {}, result)
            for change, result in zip(changes, results, strict=True)
            if isinstance(result, str)
        }
        with exclusively():
            embedded += _carry_over(old, new, changes, results)
        progress(min(changes[-1].passed, total), total)
    progress(total, total)
    return embedded, left_out


def _size(change: Change) -> int:
    """Bytes of the file that is read for it, as they were recorded; anybody may have recorded anything."""
    size = (change.metadata or {}).get("size")
    return size if isinstance(size, int) and size > 0 else 0


def _embedded(embedder: Embedder, sources: Sequence[Image.Image | str]) -> list[np.ndarray | str]:
    """The vector of each image; or why there is none, which may stand in the place of an image already."""
    pictures = [source for source in sources if not isinstance(source, str)]
    vectors = iter(embedder.embed_each(pictures) if pictures else [])
    found = [source if isinstance(source, str) else next(vectors) for source in sources]
    return [str(one) if isinstance(one, ImageError) else one for one in found]


def _carry_over(
    old: Collection, new: Collection, changes: Sequence[Change], vectors: Sequence[np.ndarray | str]
) -> int:
    """Stores what was embedded, with the metadata and thumbnails of the old items; returns how many.

    An item that was deleted or replaced since it was looked at is left to whoever did that.
    """
    kept = {item.id: item for item in old.get([change.id for change in changes])}
    items = [
        replace(kept[change.id], vector=vector)
        for change, vector in zip(changes, vectors, strict=True)
        if not isinstance(vector, str) and change.id in kept and kept[change.id].metadata == change.metadata
    ]
    if items:
        new.upsert(items)
    return len(items)
