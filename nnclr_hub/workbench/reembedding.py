"""Re-embed a collection with another encoder: build a copy from the source files, then swap the two.

    reembed(bench, "photos", "runs/my/encoder")

The copy is an ordinary collection, photos.1a2b3c4d, named after the encoder's fingerprint. First it gets every item
that it lacks, so an interrupted call continues when it is repeated. Then it follows the change log of photos, which is
written all the time. Writes wait only while the last few changes are copied and the copy takes the name photos.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.errors import ChangesUnavailable, CollectionNotFound, InvalidRequest, StoreError
from nnclr_hub.images.channels import AnyImage
from nnclr_hub.images.pool import decoding_processes
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.read_ahead import batches, read_ahead
from nnclr_hub.store.base import Collection, Item, Progress, VectorStore
from nnclr_hub.store.pages import pages
from nnclr_hub.workbench.folder_index import BATCH, MAX_BATCH_BYTES
from nnclr_hub.workbench.image_record import BOX, FILE_HASH, OFFSET, PIXEL_HASH, WINDOW
from nnclr_hub.workbench.sources import read_source

if TYPE_CHECKING:
    from nnclr_hub.workbench.workbench import Workbench


PAGE = 1000  # items to compare at once
FETCHED = 256  # items whose vectors and thumbnails are in memory at once
ROUNDS = 20  # looks at the log before writes must wait, if writers are as fast as the encoder
NAMED = 5  # items that an error message names before it only counts
# what `read_source` reads without a hash of the pixels
_FILE = (FILE_HASH, "root", "path", "size", "mtime", OFFSET, BOX, WINDOW)


@dataclass(frozen=True)
class LeftOut:
    """An item's metadata, and why it cannot be embedded."""

    metadata: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class Reembedded:
    """The result of a re-embedding.

    collection: name of the re-embedded collection; None if there was nothing to do.
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
    writes_stopped: bool = False,
    folders: Sequence[Path] | None = None,
    progress: Progress = lambda done, total: None,
) -> Reembedded:
    """Make the name mean a collection of the same items, embedded by another model. Continues an interrupted call.

    An item is embedded if its file exists and has the recorded pixels (without a record: the recorded size and
    modification time). Metadata and thumbnails are copied. Aliases mean the new collection afterwards.

    Args:
        name: of a collection, or an alias.
        skip_missing: leave out items whose file is missing or changed, instead of failing at the end.
        writes_stopped: nothing writes to the collection until this returns. Milvus needs it, because it keeps no log of
            changes.
        folders: the only folders whose files may be read, since metadata could name any file; None: any folder.
        progress: called with (done, total), counted in items of the old collection.

    Raises:
        InvalidRequest: if another re-embedding runs, or the store keeps no log and writes are not stopped.
        StoreError: if items cannot be embedded; finished work is kept for the next call.
    """
    embedder = bench.models.get(model)
    if not bench.reembedding.acquire(blocking=False):
        raise InvalidRequest("Another collection of this store is being re-embedded; wait until that is done.")
    try:
        done = _reembed(bench, name, embedder, skip_missing, writes_stopped, folders, progress)
        if bench.originals is not None:
            bench.originals.sweep()
        return done
    finally:
        bench.reembedding.release()


def _reembed(
    bench: Workbench,
    name: str,
    embedder: Embedder,
    skip_missing: bool,
    writes_stopped: bool,
    folders: Sequence[Path] | None,
    progress: Progress,
) -> Reembedded:
    bench.store.refuse_if_read_only()
    store, old = bench.store, bench.store.get(name)
    model = embedder.name
    if old.spec.fingerprint == embedder.fingerprint:
        return Reembedded(None, old.count(), 0, kept=None)
    reading = ImageReading.of_source(old.spec.model)
    if embedder.reading != reading:
        raise InvalidRequest(
            f"Collection {name!r} reads {str(reading) or 'all channels of the first page'} of each image, and "
            f"{model} reads {str(embedder.reading) or 'all'}; re-embed it with "
            f"{reading.within(model)!r}, or index its images into another collection."
        )
    at = _position(old)
    if at is None and not writes_stopped:
        raise InvalidRequest(
            f"The store keeps no log of changes, so writes to {name!r} during a re-embedding would be lost. Stop all "
            "writers, then repeat the call with --writes-stopped (writes_stopped=True)."
        )
    new = _copy_of(store, old, embedder)
    read = partial(read_source, reading=reading, folders=folders, originals=bench.originals)
    copying = _Copying(old, new, embedder, read, at, progress)
    copying.build()
    if copying.left_out and not new.count():  # nor did earlier calls leave anything to continue with
        store.drop(new.name)
        raise _none_embedded(name, model, copying.left_out)
    for _ in range(ROUNDS):
        if copying.follow() <= BATCH:
            break

    def finish() -> None:  # while writes to the old collection wait; a cancellation must not come here
        copying.progress = lambda done, total: None
        copying.follow()
        if copying.left_out and not skip_missing:
            raise _some_not_embedded(name, model, old.count(), copying.left_out)
        if new.count() != (wanted := old.count() - len(copying.left_out)):
            raise StoreError(
                f"{new.name!r} holds {new.count()} items instead of {wanted}, because something else writes to it; "
                "stop that and repeat the call."
            )
        if new.spec.indexed != old.spec.indexed:  # changed since the copy was created
            new.change_indexed(old.spec.indexed)

    kept = store.promote(new.name, old.name, finish)
    reasons = tuple((_label(id, left.metadata), left.reason) for id, left in sorted(copying.left_out.items()))
    return Reembedded(new.name, new.count(), copying.embedded, reasons, kept)


def abandon(bench: Workbench, name: str) -> list[str]:
    """Drop the unfinished copies of a collection; return their names.

    Raises:
        CollectionNotFound: the collection does not exist.
        InvalidRequest: it is being re-embedded.
    """
    own = bench.store.get(name).name
    if bench.reembedding.locked():
        raise InvalidRequest("A collection is being re-embedded; cancel that first.")
    copies = [info.name for info in bench.store.list() if info.name == _copy_name(own, info.spec.fingerprint)]
    for copy in copies:
        bench.store.drop(copy)
    if bench.originals is not None:
        bench.originals.sweep()
    return copies


# ---- the copy


def _copy_name(name: str, fingerprint: str) -> str:
    return f"{name}.{fingerprint[:8]}"


def _copy_of(store: VectorStore, old: Collection, embedder: Embedder) -> Collection:
    """Return the copy that an earlier call began, or create it."""
    name = _copy_name(old.name, embedder.fingerprint)
    spec = replace(old.spec, dim=embedder.embed_dim, fingerprint=embedder.fingerprint, model=embedder.name)
    try:
        begun = store.get(name)
    except CollectionNotFound:
        return store.create(name, spec)
    if begun.name != name or replace(begun.spec, indexed=spec.indexed, model=spec.model) != spec:
        raise InvalidRequest(
            f"{name!r} is not a copy of {old.name!r}: it is an alias, or differs in metric, precision or index. Rename "
            "or drop it."
        )
    return begun


def _position(collection: Collection) -> tuple[int, str] | None:
    """Return the last change and the log that it is in; None if the store keeps no log."""
    last = collection.info().durable_seq
    try:
        return last, collection.changes(last, 1).log
    except InvalidRequest:
        return None


class _Copying:
    """Makes a copy hold the items of a collection, embedded by another encoder.

    The vector of an item depends only on the file that its metadata records. So an item is embedded if the copy does
    not have it with the same record. Otherwise only its metadata and thumbnail are copied.

    Args:
        read: returns the source image of an item by its metadata, or why it is unavailable.
        at: the last change before the first item is read, and its log; None: compare all items instead of following.
    """

    def __init__(
        self,
        old: Collection,
        new: Collection,
        embedder: Embedder,
        read: Callable[[Mapping[str, Any]], AnyImage | str],
        at: tuple[int, str] | None,
        progress: Progress,
    ) -> None:
        self._old, self._new, self._embedder, self._read = old, new, embedder, read
        self._at = at
        self.progress = progress
        self._passed = 0  # items of the old collection that `_differing` has compared
        self.embedded = 0
        self.left_out: dict[str, LeftOut] = {}

    def build(self) -> None:
        """Copy everything that the copy lacks."""
        total = self._old.count()
        with decoding_processes(images=total):
            self._update(self._differing(), lambda: self.progress(min(self._passed, total), total))
        self.progress(total, total)

    def follow(self) -> int:
        """Copy what changed since the last look at the log; return how many items were written or deleted."""
        total = self._old.count()
        return self._update(self._changed(), lambda: self.progress(total, total))

    def _changed(self) -> Iterable[str]:
        if self._at is None:
            return self._differing()
        since, log = self._at
        ids: dict[str, None] = {}
        try:
            last = self._old.info().durable_seq
            while since < last:
                page = self._old.changes(since, PAGE, log=log)
                ids |= dict.fromkeys(change.id for change in page.changes)
                since = page.next
        except ChangesUnavailable:  # the log was trimmed
            self._at = _position(self._old)
            return chain(self._differing(), list(self.left_out))  # some may be deleted now
        self._at = since, log
        return ids

    def _differing(self) -> Iterator[str]:
        """Yield the items that the copy lacks, has with other metadata, or should not have, in the order of their ids.

        Both are read page by page, so items before the last one may be stored or deleted during the iteration.
        """
        self._passed = 0
        theirs = _walk(self._new)
        other = next(theirs, None)
        for item in _walk(self._old):
            while other is not None and other.id < item.id:
                yield other.id
                other = next(theirs, None)
            self._passed += 1
            if other is None or other.id != item.id:
                yield item.id
                continue
            if other.metadata != item.metadata:
                yield item.id
            other = next(theirs, None)
        while other is not None:
            yield other.id
            other = next(theirs, None)

    def _update(self, ids: Iterable[str], step: Callable[[], None]) -> int:
        """Make the copy hold these items as the old collection does now; return how many were written or deleted."""
        written = 0

        def stale() -> Iterator[Item]:
            nonlocal written
            for some in batches(ids, FETCHED):
                to_embed, copied, gone = self._sorted(some)
                if copied:
                    self._new.upsert(copied)
                if gone:
                    written += self._new.delete(gone)
                written += len(copied)
                if copied or gone:
                    step()
                yield from to_embed

        for items, sources in read_ahead(batches(stale(), BATCH, _size, MAX_BATCH_BYTES), self._source):
            written += self._store(items, sources)
            step()
        return written

    def _sorted(self, ids: Sequence[str]) -> tuple[list[Item], list[Item], list[str]]:
        """Return the items to embed, those whose vector the copy has, and the ids to delete from it."""
        theirs = {item.id: item for item in self._new.get(ids)}
        ours = {item.id: item for item in self._old.get(ids)}
        to_embed, copied = [], []
        for id, item in ours.items():
            left, there = self.left_out.get(id), theirs.get(id)
            if there is not None and _record(there.metadata) == _record(item.metadata):
                copied.append(replace(item, vector=there.vector))
            elif left is None or _record(left.metadata) != _record(item.metadata):
                to_embed.append(item)
        for id in ids:
            if id not in ours:
                self.left_out.pop(id, None)
        return to_embed, copied, [id for id in ids if id not in ours]

    def _source(self, item: Item) -> AnyImage | str:
        return self._read(item.metadata)

    def _store(self, items: Sequence[Item], sources: Sequence[AnyImage | str]) -> int:
        """Embed and store items; leave out those without an image, also if the copy has them with an earlier image."""
        images = [source for source in sources if not isinstance(source, str)]
        vectors = iter(self._embedder.embed_each(images) if images else [])
        embedded: list[Item] = []
        failed: dict[str, LeftOut] = {}
        for item, source in zip(items, sources, strict=True):
            result = source if isinstance(source, str) else next(vectors)
            if isinstance(result, np.ndarray):
                embedded.append(replace(item, vector=result))
            else:
                failed[item.id] = LeftOut(item.metadata, str(result))
        if embedded:
            self._new.upsert(embedded)
        if failed:
            self._new.delete(list(failed))
        for item in embedded:
            self.left_out.pop(item.id, None)
        self.left_out |= failed
        self.embedded += len(embedded)
        return len(items)


def _record(metadata: Mapping[str, Any]) -> list[Any]:
    """Return what an item records of its image: a hash of the pixels, or else which file they are in."""
    if PIXEL_HASH in metadata:
        return [metadata[PIXEL_HASH]]
    return [metadata.get(key) for key in _FILE]


def _size(item: Item) -> int:
    """Return the recorded size of the item's file in bytes; metadata from clients may hold any value."""
    size = item.metadata.get("size")
    return size if isinstance(size, int) and size > 0 else 0


def _walk(collection: Collection) -> Iterator[Item]:
    for items in pages(collection, limit=PAGE, with_vector=False):
        yield from items


# ---- error messages


def _some_not_embedded(name: str, model: str, count: int, left_out: Mapping[str, LeftOut]) -> StoreError:
    """Return the error for a collection of which some items cannot be embedded."""
    return StoreError(
        f"{len(left_out)} of the {count} items of {name!r} cannot be re-embedded ({_examples(left_out)}). Restore the "
        f"files or {_update_hint(name)}, and repeat the call; or leave these items out with `nnclr store reembed "
        f"{name} --model {model} --skip-missing`. Finished work is kept until `nnclr store reembed {name} --abandon`."
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
