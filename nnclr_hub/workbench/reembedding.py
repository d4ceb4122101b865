"""Re-embed a collection with another encoder: build a new collection from the source files, then swap it in.

    reembed(bench, "photos", "runs/my/encoder")

During the build, the alias photos~next means the new collection, and the workbench writes to both. The remaining work
is always the difference between the two collections, so an interrupted call continues when it is repeated. Writers wait
only during the last pass. Other processes that write to the same Milvus are refused until the swap is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.encoder.channel_image import AnyImage
from nnclr_hub.encoder.decoding_pool import decoding_processes
from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.encoder.image_reading import ImageReading
from nnclr_hub.errors import CollectionNotFound, ImageError, InvalidRequest, StoreError
from nnclr_hub.read_ahead import batches, read_ahead
from nnclr_hub.store.base import Collection, CollectionSpec, Item, Progress, VectorStore
from nnclr_hub.store.pages import pages
from nnclr_hub.store.replacement import NEXT, WAS, Replacement, finish_swaps, replacement_of, required_replacement, swap
from nnclr_hub.workbench.folder_index import BATCH, MAX_BATCH_BYTES
from nnclr_hub.workbench.sources import read_source

if TYPE_CHECKING:
    from nnclr_hub.workbench.workbench import Workbench


PAGE = 1000  # items to compare at once
NAMED = 5  # items that an error message names before it only counts


@dataclass(frozen=True)
class LeftOut:
    """An item's metadata, and why it cannot be embedded."""

    metadata: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class Reembedded:
    """The result of a re-embedding.

    collection: the new one, which the name now means; None if there was nothing to do.
    items: how many it holds.
    embedded: how many of them this call embedded.
    left_out: items that are not in it, with the reason.
    kept: the name of the old collection.
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
    """Make the name mean a collection of the same items, embedded by another model. Continues an interrupted call.

    An item is embedded if its file exists and has the recorded pixels (without a record: the recorded size and
    modification time). Metadata and thumbnails are copied. Aliases of the old collection move to the new one.

    Args:
        name: of a collection, or an alias.
        skip_missing: leave out items whose file is missing or changed, instead of failing at the end.
        folders: the only folders whose files may be read, since metadata could name any file; None: any folder.
        progress: called with (done, total), counted in items of the old collection.

    Raises:
        InvalidRequest: if a re-embedding with another model is in progress.
        StoreError: if items cannot be embedded; finished work is kept for the next call.
    """
    embedder = bench.models.get(model)
    if not bench.reembedding.acquire(blocking=False):
        raise InvalidRequest("Another collection of this store is being re-embedded; wait until that is done.")
    try:
        done = _reembed(bench, name, embedder, skip_missing, folders, progress)
        if bench.originals is not None:
            bench.originals.sweep()
        return done
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
    with bench.write_lock.alone():
        finish_swaps(bench.store)
    store, old = bench.store, bench.store.get(name)
    if old.spec.fingerprint == embedder.fingerprint:
        return Reembedded(None, old.count(), 0, kept=None)
    reading = ImageReading.of_source(old.spec.model)
    if embedder.reading != reading:
        raise InvalidRequest(
            f"Collection {name!r} reads {str(reading) or 'all channels of the first page'} of each image, and "
            f"{embedder.name} reads {str(embedder.reading) or 'all'}; re-embed it with "
            f"{reading.within(embedder.name)!r}, or index its images into another collection."
        )
    with bench.write_lock.alone():  # running writes go to the old collection only, so they must end first
        replacement = _replacement(store, name, old, embedder)
        bench.built_here.add(replacement.collection.name)
    new = replacement.collection
    read = partial(read_source, reading=embedder.reading, folders=folders, originals=bench.originals)
    embedded, left_out = _catch_up(old, new, embedder, {}, read, bench.write_lock.alone, progress)
    with bench.write_lock.alone():
        more, left_out = _catch_up(old, new, embedder, left_out, read, nullcontext, lambda done, total: None)
        if left_out and len(left_out) == old.count():  # and earlier calls left nothing to continue with
            _give_up(store, replacement)
            raise _none_embedded(name, embedder.name, left_out)
        if left_out and not skip_missing:
            raise _some_not_embedded(name, embedder.name, old.count(), left_out, locked=not store.single_writer)
        # items that were deleted during the build, and copies that could not be updated
        extra = (change.id for change in differences(old, new) if change.metadata is None or change.id in left_out)
        for ids in batches(list(extra), BATCH):
            new.delete(ids)
        items, wanted = new.count(), old.count() - len(left_out)
        if items != wanted:
            raise StoreError(
                f"The new collection holds {items} items instead of {wanted}, because another process writes to it; "
                "stop that process and repeat the call."
            )
        kept = swap(store, name, replacement)
    reasons = tuple((_label(id, one.metadata), one.reason) for id, one in sorted(left_out.items()))
    return Reembedded(new.name, items, embedded + more, reasons, kept)


def abandon(bench: Workbench, name: str) -> str:
    """Drop the collection that was being built to replace another; return its name.

    Raises:
        InvalidRequest: if no re-embedding is in progress.
    """
    with bench.write_lock.alone():
        finish_swaps(bench.store)
    replacement = required_replacement(bench.store, name)
    with bench.write_lock.alone():
        dropped = _give_up(bench.store, replacement)
    if bench.originals is not None:
        bench.originals.sweep()
    return dropped


# ---- the two collections


def _give_up(store: VectorStore, replacement: Replacement) -> str:
    half_made = replacement.collection.name
    store.drop(half_made)
    marker = replacement.alias.removesuffix(NEXT) + WAS  # left by a swap that was interrupted before it started
    if marker in store.aliases():
        store.unalias(marker)
    return half_made


def _replacement(store: VectorStore, name: str, old: Collection, embedder: Embedder) -> Replacement:
    """Return the collection that is being built; create it if it does not exist."""
    replacement = replacement_of(store, name)
    if replacement is None:
        spec = replace(old.spec, dim=embedder.embed_dim, fingerprint=embedder.fingerprint, model=embedder.name)
        new = _create(store, f"{name}.{embedder.fingerprint[:8]}", spec)
        store.alias(name + NEXT, new.name)
        return Replacement(name + NEXT, new)
    spec = replacement.collection.spec
    if spec.fingerprint != embedder.fingerprint:
        raise InvalidRequest(
            f"Collection {name!r} is already being re-embedded with {spec.model}; finish that with `nnclr store "
            f"reembed {name} --model {spec.model}`, or cancel it with `nnclr store reembed {name} --abandon`."
        )
    return replacement


def _create(store: VectorStore, name: str, spec: CollectionSpec) -> Collection:
    """Create a collection; append a number to its name if an older collection has that name."""
    candidate, number = name, 2
    while True:
        try:
            existing = store.get(candidate)
        except CollectionNotFound:
            return store.create(candidate, spec)
        if existing.name == candidate and existing.spec == spec and existing.count() == 0:
            return existing  # created by a call that was interrupted before its first item
        candidate, number = f"{name}.{number}", number + 1


# ---- from one to the other


def _catch_up(
    old: Collection,
    new: Collection,
    embedder: Embedder,
    known: Mapping[str, LeftOut],
    read: Callable[[Mapping[str, Any]], AnyImage | str],
    exclusively: Callable[[], AbstractContextManager[None]],
    progress: Progress,
) -> tuple[int, dict[str, LeftOut]]:
    """Embed the items that the new collection lacks; return how many, and those that cannot be embedded.

    Items that only the new collection has are kept.

    Args:
        known: items that an earlier pass could not embed; they are not read again.
        read: returns the source image of an item by its metadata, or why it is unavailable.
    """
    total, embedded = old.count(), 0
    left_out: dict[str, LeftOut] = {}

    def source(change: CopiedChange) -> AnyImage | str:
        assert change.metadata is not None
        if change.id in known and known[change.id].metadata == change.metadata:
            return known[change.id].reason
        return read(change.metadata)

    wanted = (change for change in differences(old, new) if change.metadata is not None)
    with decoding_processes(images=total):
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


def _size(change: CopiedChange) -> int:
    """Return the recorded size of the item's file in bytes; metadata from clients may hold any value."""
    size = (change.metadata or {}).get("size")
    return size if isinstance(size, int) and size > 0 else 0


def _embedded(embedder: Embedder, sources: Sequence[AnyImage | str]) -> list[np.ndarray | str]:
    """Return the vector of each image, or the reason why it has none."""
    images = [source for source in sources if not isinstance(source, str)]
    vectors = iter(embedder.embed_each(images) if images else [])
    found = [source if isinstance(source, str) else next(vectors) for source in sources]
    return [str(one) if isinstance(one, ImageError) else one for one in found]


def _carry_over(
    old: Collection, new: Collection, changes: Sequence[CopiedChange], vectors: Sequence[np.ndarray | str]
) -> int:
    """Store the embedded items with the metadata and thumbnails of the old ones; return how many.

    Items that were deleted or replaced in the old collection since they were read are skipped: that write went to both
    collections.
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


# ---- the difference


@dataclass(frozen=True)
class CopiedChange:
    """What must be done for one item of the copy.

    passed: how many items of the original were compared so far.
    metadata: store the item with it; None: delete the item.
    """

    passed: int
    id: str
    metadata: Mapping[str, Any] | None


def differences(original: Collection, copy: Collection) -> Iterator[CopiedChange]:
    """Yield the items that the copy lacks, has with other metadata, or should not have, in the order of their ids.

    Both are read page by page, so items before the last change may be stored or deleted during the iteration.
    """
    theirs = _walk(copy)
    other = next(theirs, None)
    passed = 0
    for item in _walk(original):
        while other is not None and other.id < item.id:
            yield CopiedChange(passed, other.id, None)
            other = next(theirs, None)
        passed += 1
        if other is None or other.id != item.id:
            yield CopiedChange(passed, item.id, item.metadata)
            continue
        if other.metadata != item.metadata:
            yield CopiedChange(passed, item.id, item.metadata)
        other = next(theirs, None)
    while other is not None:
        yield CopiedChange(passed, other.id, None)
        other = next(theirs, None)


def _walk(collection: Collection) -> Iterator[Item]:
    for items in pages(collection, limit=PAGE, with_vector=False):
        yield from items


# ---- error messages


def _some_not_embedded(
    name: str, model: str, count: int, left_out: Mapping[str, LeftOut], *, locked: bool
) -> StoreError:
    """Return the error for a collection of which some items cannot be embedded.

    Args:
        locked: `nnclr index`, another process, cannot write to the collection until the swap is done.
    """
    skip = f"`nnclr store reembed {name} --model {model} --skip-missing`"
    if locked:
        hint = f"and repeat the call; or leave these items out with {skip}, and then {_update_hint(name)}."
    else:
        hint = f"or {_update_hint(name)}, and repeat the call; or leave these items out with {skip}."
    return StoreError(
        f"{len(left_out)} of the {count} items of {name!r} cannot be re-embedded ({_examples(left_out)}). Restore the "
        f"files {hint} Finished work is kept until `nnclr store reembed {name} --abandon`."
    )


def _none_embedded(name: str, model: str, left_out: Mapping[str, LeftOut]) -> StoreError:
    """Return the error for a collection of which no item can be embedded."""
    if any(Path(str(one.metadata.get("root", ""))).is_absolute() for one in left_out.values()):
        hint = f"or {_update_hint(name)}, and repeat the call."
    else:
        hint = (
            "and repeat the call; or, if they are on another machine or no longer exist, index the images with "
            f"--model {model} into a collection of another name."
        )
    return StoreError(
        f"None of the {len(left_out)} items of {name!r} can be re-embedded ({_examples(left_out)}), and the collection "
        f"was not changed. Restore the files {hint}"
    )


def _update_hint(name: str) -> str:
    return f"run `nnclr index FOLDER --collection {name}` for changed files (with --prune for deleted ones)"


def _label(id: str, metadata: Mapping[str, Any]) -> str:
    """Return the path of an item, or its id."""
    return str(metadata.get("path", id))


def _examples(left_out: Mapping[str, LeftOut]) -> str:
    some = [f"{_label(id, one.metadata)}: {one.reason}" for id, one in sorted(left_out.items())[:NAMED]]
    return "; ".join(some) + (f"; and {len(left_out) - NAMED} more" if len(left_out) > NAMED else "")
