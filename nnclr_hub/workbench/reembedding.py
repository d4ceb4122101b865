"""Re-embed a collection with another encoder: build a copy from the source files, then swap the two.

    reembed(bench, "photos", "runs/my/encoder")

The copy is an ordinary collection, photos.1a2b3c4d, named after the encoder's fingerprint. First it gets every item
that it lacks, so an interrupted call continues when it is repeated. Then it follows the change log of photos, which is
written all the time. Writes wait only while the last few changes are copied and the copy takes the name photos.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.errors import ChangesUnavailable, CollectionNotFound, InvalidRequest, StoreError
from nnclr_hub.images.channels import AnyImage
from nnclr_hub.images.pool import decoding_processes
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.plural import counted
from nnclr_hub.read_ahead import batches, read_ahead
from nnclr_hub.store.base import Collection, Item, Progress, VectorStore
from nnclr_hub.store.spec import next_step
from nnclr_hub.workbench.bench import LocalBench
from nnclr_hub.workbench.folder_index import BATCH, MAX_BATCH_BYTES
from nnclr_hub.workbench.metadata import BOX, FILE_HASH, OFFSET, PIXEL_HASH, WINDOW
from nnclr_hub.workbench.privacy import without_paths
from nnclr_hub.workbench.requests import Request, option
from nnclr_hub.workbench.sources import read_source
from nnclr_hub.workbench.tasks import Cancelled, TaskContext, task

PAGE = 1000  # items to compare at once
FETCHED = 256  # items whose vectors and thumbnails are in memory at once
ROUNDS = 20  # looks at the log before writes must wait, if writers are as fast as the encoder
MAX_NAMED = 100  # items that are left out in a result
NAMED = 5  # items that an error message names before it only counts
# what `read_source` reads without a hash of the pixels
_FILE = (FILE_HASH, "root", "path", "size", "mtime", OFFSET, BOX, WINDOW)


@dataclass(frozen=True)
class Reembedded:
    """The result of a re-embedding.

    collection: name of the re-embedded collection; None if there was nothing to do.
    items: how many it holds.
    embedded: how many of them this call embedded.
    skipped: items that are not in it, with the reason.
    kept: the name of the old collection.
    """

    collection: str | None
    items: int
    embedded: int
    skipped: tuple[tuple[str, str], ...] = ()
    kept: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the numbers, and the first of the items that are left out, without paths of this machine."""
        skipped = [{"item": item, "reason": without_paths(reason)} for item, reason in self.skipped]
        return {**vars(self), "skipped": skipped[:MAX_NAMED], "skipped_count": len(skipped)}


@dataclass(frozen=True)
class ReembedRequest(Request):
    """A new encoder for a collection."""

    collection: str = option("name or alias of the collection")
    model: str = option("the new encoder")
    skip_missing: bool = option("skip items whose file is missing or changed", False)
    source: str | None = option("where a server has the model", None, hidden=True)


@task("reembed", ReembedRequest, path="/collections/{collection}/reembed")
def reembed_collection(bench: LocalBench, request: ReembedRequest, context: TaskContext) -> dict[str, Any]:
    """Build a copy of the collection with another encoder, then swap the two; see `reembed`."""
    options: Any = {"skip_missing": request.skip_missing, "folders": bench.source_folders}
    try:
        context.raise_if_cancelled()
        model = request.source or request.model
        return reembed(bench, request.collection, model, **options, progress=context.progress).as_json()
    except Cancelled:
        with suppress(CollectionNotFound):  # the collection is deleted
            abandon(bench, request.collection)
        raise


def reembed(
    bench: LocalBench,
    name: str,
    model: str,
    *,
    skip_missing: bool = False,
    folders: Sequence[Path] | None = None,
    progress: Progress = lambda done, total: None,
) -> Reembedded:
    """Make the name mean a collection of the same items, embedded by another model. Continues an interrupted call.

    An item is embedded if its file exists and has the recorded pixels (without a record: the recorded size and
    modification time). Metadata and thumbnails are copied. Aliases mean the new collection afterwards.

    Args:
        name: name or alias of a collection.
        skip_missing: leave out items whose file is missing or changed, instead of failing at the end.
        folders: the only folders whose files may be read, since metadata could name any file; None: any folder.
        progress: called with (done, total), counted in items of the old collection.

    Raises:
        InvalidRequest: if another re-embedding runs, or the store is not in a folder.
        StoreError: if items cannot be embedded; finished work is kept for the next call.
    """
    # both are reported before a model is loaded
    if not bench.collection(name).keeps_changes:
        raise InvalidRequest(
            "Only a store in a folder can re-embed a collection, because writes to others are in no log. Instead, "
            f"{next_step(name, model, reembeds=False)}."
        )
    embedder = bench.models.get(model)
    if not bench.reembedding.acquire(blocking=False):
        raise InvalidRequest("Another collection of this store is being re-embedded; wait until that is done.")
    try:
        bench.store.refuse_if_read_only()
        old = bench.store.get(name)
        if old.spec.fingerprint == embedder.fingerprint:
            return Reembedded(None, old.count(), 0)
        reading = ImageReading.of_source(old.spec.model)
        if embedder.reading != reading:
            raise InvalidRequest(
                f"Collection {name!r} reads {str(reading) or 'all channels of the first page'} of each image, and "
                f"{embedder.name} reads {str(embedder.reading) or 'all'}; re-embed it with "
                f"{reading.within(embedder.name)!r}, or index its images into another collection."
            )
        read = partial(read_source, reading=reading, folders=folders, originals=bench.originals)
        done = _Copying(bench.store, old, embedder, read, progress).run(name, skip_missing=skip_missing)
        if bench.originals is not None:
            bench.originals.sweep()
        return done
    finally:
        bench.reembedding.release()


def abandon(bench: LocalBench, name: str) -> list[str]:
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


def _position(collection: Collection) -> tuple[int, str]:
    """Return the last change and the log that it is in."""
    last = collection.info().durable_seq
    return last, collection.changes(last, 1).log


class _Copying:
    """Makes a copy hold the items of a collection, embedded by another encoder.

    The vector of an item depends only on the file that its metadata records. So an item is embedded if the copy does
    not have it with the same record. Otherwise only its metadata and thumbnail are copied.

    skipped: metadata and reason of items that cannot be embedded, by id.

    Args:
        read: returns the source image of an item by its metadata, or why it is unavailable.
    """

    def __init__(
        self,
        store: VectorStore,
        old: Collection,
        embedder: Embedder,
        read: Callable[[Mapping[str, Any]], AnyImage | str],
        progress: Progress,
    ) -> None:
        self._store, self._old, self._embedder, self._read, self._progress = store, old, embedder, read, progress
        self._at = _position(old)  # before the first item is read
        self._new = _copy_of(store, old, embedder)
        self._passed = 0  # items of the old collection that `_differing` has compared
        self._embedded = 0
        self._skipped: dict[str, tuple[Mapping[str, Any], str]] = {}

    def run(self, name: str, *, skip_missing: bool) -> Reembedded:
        """Build the copy, follow the writes to the old collection, and give the copy its name."""
        old, new, total = self._old, self._new, self._old.count()
        with decoding_processes(images=total):
            self._update(self._differing(), lambda: self._progress(min(self._passed, total), total))
        self._progress(total, total)
        if self._skipped and not new.count():  # nor did earlier calls leave anything to continue with
            self._store.drop(new.name)
            raise self._refusal(name)
        for _ in range(ROUNDS):
            if self._update(self._changed(), lambda: self._progress(total, total)) <= BATCH:
                break

        def finish() -> None:  # while writes to the old collection wait; a cancellation must not come here
            self._update(self._changed(), lambda: None)
            if self._skipped and not skip_missing:
                raise self._refusal(name)
            if new.count() != (wanted := old.count() - len(self._skipped)):
                raise StoreError(
                    f"{new.name!r} holds {counted(new.count(), 'item')} instead of {wanted}, because something else "
                    "writes to it; stop that and repeat the call."
                )
            if new.spec.indexed != old.spec.indexed:  # changed since the copy was created
                new.change_indexed(old.spec.indexed)

        kept = self._store.promote(new.name, old.name, finish)
        return Reembedded(new.name, new.count(), self._embedded, tuple(self._reasons()), kept)

    def _changed(self) -> Iterable[str]:
        """Return what changed since the last look at the log."""
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
            return chain(self._differing(), list(self._skipped))  # some may be deleted now
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
            same = other is not None and other.id == item.id
            if other is None or not same or other.metadata != item.metadata:
                yield item.id
            other = next(theirs, None) if same else other
        yield from (one.id for one in chain([other] if other else [], theirs))

    def _update(self, ids: Iterable[str], step: Callable[[], None]) -> int:
        """Make the copy hold these items as the old collection does now; return how many were written or deleted."""
        written = 0

        def to_embed() -> Iterator[Item]:
            nonlocal written
            for some in batches(ids, FETCHED):
                theirs = {item.id: item for item in self._new.get(some)}
                ours = {item.id: item for item in self._old.get(some)}
                held = [
                    replace(item, vector=theirs[id].vector)
                    for id, item in ours.items()
                    if id in theirs and _record(theirs[id].metadata) == _record(item.metadata)
                ]
                gone = [id for id in some if id not in ours]
                if held:
                    self._new.upsert(held)
                if gone:
                    written += self._new.delete(gone)
                for id in gone:
                    self._skipped.pop(id, None)
                written += len(held)
                if held or gone:
                    step()
                copied = {item.id for item in held}
                for id, item in ours.items():
                    metadata, _ = self._skipped.get(id, ({}, ""))
                    if id not in copied and not (metadata and _record(metadata) == _record(item.metadata)):
                        yield item

        every = batches(to_embed(), BATCH, _size, MAX_BATCH_BYTES)
        for items, sources in read_ahead(every, lambda item: self._read(item.metadata)):
            self._embed(items, sources)
            written += len(items)
            step()
        return written

    def _embed(self, items: Sequence[Item], sources: Sequence[AnyImage | str]) -> None:
        """Embed and store items; leave out those without an image, also if the copy has them with an earlier image."""
        images = [source for source in sources if not isinstance(source, str)]
        vectors = iter(self._embedder.embed_each(images) if images else [])
        embedded: list[Item] = []
        failed: dict[str, tuple[Mapping[str, Any], str]] = {}
        for item, source in zip(items, sources, strict=True):
            result = source if isinstance(source, str) else next(vectors)
            if isinstance(result, np.ndarray):
                embedded.append(replace(item, vector=result))
                self._skipped.pop(item.id, None)
            else:
                failed[item.id] = item.metadata, str(result)
        if embedded:
            self._new.upsert(embedded)
        if failed:
            self._new.delete(list(failed))
        self._skipped |= failed
        self._embedded += len(embedded)

    def _reasons(self) -> list[tuple[str, str]]:
        return [(str(metadata.get("path", id)), why) for id, (metadata, why) in sorted(self._skipped.items())]

    def _refusal(self, name: str) -> StoreError:
        """Return the error that items are left out; if the copy was dropped, all of them."""
        count, more, model = len(self._skipped), len(self._skipped) - NAMED, self._embedder.name
        shown = "; ".join(f"{item}: {reason}" for item, reason in self._reasons()[:NAMED])
        shown += f"; and {more} more" if more > 0 else ""
        update = f"run `nnclr index FOLDER --collection {name}` for changed files (with --prune for deleted ones)"
        if self._new.name in self._store.names():
            reembed = f"nnclr store reembed {name}"
            return StoreError(
                f"{count} of {counted(self._old.count(), 'item')} of {name!r} cannot be re-embedded ({shown}). Restore "
                f"the files or {update}, and repeat the call; or leave these items out with `{reembed} --model "
                f"{quote(model)} --skip-missing`. Finished work is in {self._new.name!r}, which can be dropped."
            )
        local = any(Path(str(metadata.get("root", ""))).is_absolute() for metadata, _ in self._skipped.values())
        elsewhere = "if they are on another machine or no longer exist, index the images with"
        hint = f"or {update}" if local else f"or, {elsewhere} --model {model} into a collection of another name"
        return StoreError(
            f"None of {counted(count, 'item')} of {name!r} can be re-embedded ({shown}), and the collection was not "
            f"changed. Restore the files, {hint}, and repeat the call."
        )


def _record(metadata: Mapping[str, Any]) -> list[Any]:
    # an image is known by its pixels, or else by its file
    if PIXEL_HASH in metadata:
        return [metadata[PIXEL_HASH]]
    return [metadata.get(key) for key in _FILE]


def _size(item: Item) -> int:
    # metadata from clients may hold any value
    size = item.metadata.get("size")
    return size if isinstance(size, int) and size > 0 else 0


def _walk(collection: Collection) -> Iterator[Item]:
    for items in collection.pages(limit=PAGE, with_vector=False):
        yield from items
