"""Export of a collection to a folder of Parquet and safetensors files, and import into any store.

export_collection(store.get("photos"), Path("photos-export"))                 # update=True: only what changed
import_collection(other_store, "photos", Path("photos-export"))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnclr_hub.errors import (
    CollectionExists,
    CollectionNotFound,
    FingerprintMismatch,
    InvalidRequest,
)
from nnclr_hub.store.base import Collection, Item, Progress, VectorStore
from nnclr_hub.store.checks import metadata_json
from nnclr_hub.store.exchange.files import ExchangeShard, Manifest, check_shard, require_parquet, write_shard
from nnclr_hub.store.exchange.updates import read_items, update_export
from nnclr_hub.store.folder import disk_errors, written_whole
from nnclr_hub.store.spec import CollectionSpec

SHARD_ITEMS = 50_000
SHARD_BYTES = 128 * 1024 * 1024  # of vectors, which are collected in memory
BATCH = 1000
# vectors must be comparable; indexed keys and the kind of index may differ
MUST_AGREE = ("dim", "metric", "precision")


# ------------------------------------------------------------------------------ export


def export_collection(
    collection: Collection,
    folder: Path,
    *,
    thumbnails: bool = True,
    update: bool = False,
    progress: Progress = lambda done, total: None,
) -> Manifest:
    """Export a collection to a folder, which is completely on disk when this returns.

    The export contains the items of one moment. On Milvus, items that are written during the export may be missing.

    Args:
        collection: to export.
        folder: must not exist, unless `update` is set.
        thumbnails: False: without them, which is much smaller.
        update: write only what changed since the export in the folder. `thumbnails` stays as it was there.
        progress: called with (done, total), counted in items.

    Raises:
        MissingDependency: pyarrow is not installed.
        InvalidRequest: the folder exists; or it is not an export of this collection and encoder.
        StoreLocked: another process updates the folder.
        DiskFull, StoreError: it cannot be written, or the export in it is damaged. It stays as it was.
    """
    require_parquet()
    folder = Path(folder)
    exists = folder.exists() or folder.is_symlink()
    if exists and not update:
        raise InvalidRequest(
            f"{folder} exists already; choose a new folder, or write only what changed with --update (update=True)."
        )
    done, total = 0, collection.count()

    def counted(batches: Iterator[list[Item]]) -> Iterator[list[Item]]:
        nonlocal done
        for items in batches:
            yield items
            done += len(items)
            progress(done, max(done, total))

    def write(place: Path, number: int, batches: Iterator[list[Item]]) -> tuple[ExchangeShard, ...]:
        return tuple(
            write_shard(place, number + more, shard, collection.spec)
            for more, shard in enumerate(_in_shards(batches, collection.spec.dim))
        )

    if exists:
        manifest = Manifest.read(folder)
        _check(manifest, folder)
        with disk_errors(folder):
            current = counted(collection.read_all(BATCH, thumbnails=manifest.thumbnails))
            return update_export(collection, folder, write, current, BATCH)
    with written_whole(folder) as partial:
        shards = write(partial, 0, counted(collection.read_all(BATCH, thumbnails=thumbnails)))
        manifest = Manifest(collection.name, collection.spec, done, thumbnails, shards)
        manifest.write(partial)
    return manifest


def _in_shards(batches: Iterator[list[Item]], dim: int) -> Iterator[Iterator[list[Item]]]:
    """Yield shards, each an iterator of batches that must be exhausted before the next shard."""
    size = min(SHARD_ITEMS, max(BATCH, SHARD_BYTES // (4 * dim)))
    first = next(batches, None)

    def shard() -> Iterator[list[Item]]:
        nonlocal first
        count = 0
        while first is not None and count < size:
            yield first
            count += len(first)
            first = next(batches, None)

    while first is not None:
        yield shard()


# ------------------------------------------------------------------------------ import


@dataclass(frozen=True)
class Imported:
    """The result of an import: items in the export, items written, and whether the collection was created."""

    items: int
    written: int
    created: bool


def import_collection(
    store: VectorStore,
    name: str,
    folder: Path,
    *,
    into: bool = False,
    checking: Progress = lambda done, total: None,
    progress: Progress = lambda done, total: None,
) -> Imported:
    """Import an exported folder into a collection; the folder is completely checked before anything is written.

    The collection is created if it does not exist. After an interruption, the same call continues where it stopped.

    Args:
        store: with the collection.
        name: of the collection, or an alias.
        folder: of the export.
        into: add to a collection that has other items; items with the same id are replaced.
        checking: called with (done, total) in bytes, while the files are checked.
        progress: called with (done, total) in items, while they are stored.

    Raises:
        MissingDependency: pyarrow is not installed.
        InvalidRequest: the folder is not an export.
        FingerprintMismatch: the collection has vectors of another encoder.
        CollectionExists: it has another specification, or other items and `into` is False.
        StoreTooNew, StoreError: the export has another format, is damaged or incomplete.
    """
    require_parquet()
    folder = Path(folder)
    manifest = Manifest.read(folder)
    _check(manifest, folder, checking)
    collection, created = _target(store, name, manifest)
    present = 0 if into or created else _already_imported(collection, manifest, folder)
    done = 0
    for items in read_items(manifest, folder, BATCH):
        missing = items[max(0, present - done) :]
        if missing:
            collection.upsert(missing)
        done += len(items)
        progress(done, manifest.items)
    return Imported(manifest.items, manifest.items - present, created)


def _check(manifest: Manifest, folder: Path, progress: Progress = lambda done, total: None) -> None:
    """Check the hash of every file, and then the contents."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, manifest.size)

    for layer in manifest.layers:
        last = ""
        for file in layer.files:
            file.check(folder, advance)
        for shard in layer.shards:
            last = check_shard(folder, shard, manifest.spec, last)


def _target(store: VectorStore, name: str, manifest: Manifest) -> tuple[Collection, bool]:
    """Return the collection to fill, and whether it was just created."""
    try:
        collection = store.get(name)
    except CollectionNotFound:
        return store.create(name, manifest.spec), True
    ours, theirs = collection.spec, manifest.spec
    if ours.fingerprint != theirs.fingerprint:
        raise FingerprintMismatch(
            f"Collection {name!r} has vectors of {ours.model or 'an unknown encoder'} ({ours.fingerprint[:8]}), the "
            f"export those of {theirs.model or 'an unknown encoder'} ({theirs.fingerprint[:8]}); import it under "
            "another name."
        )
    for field in MUST_AGREE:
        if getattr(ours, field) != getattr(theirs, field):
            raise CollectionExists(
                f"Collection {name!r} has {field} {getattr(ours, field)!r}, and the export {getattr(theirs, field)!r}; "
                "import it under another name."
            )
    return collection, False


def _already_imported(collection: Collection, manifest: Manifest, folder: Path) -> int:
    """Return how many items an interrupted import has stored: those of the collection, if they are the export's first.

    Raises:
        CollectionExists: the collection has other items.
    """
    count, cursor = 0, None
    for items in read_items(manifest, folder, BATCH):
        page = collection.scroll(cursor, len(items))
        for kept, exported in zip(page.items, items, strict=False):
            if not same_item(kept, exported, collection.spec):
                raise _other_content(collection)
        count += len(page.items)
        cursor = page.cursor
        if cursor is None:
            return count
    if cursor is not None or (not manifest.shards and collection.count()):
        raise _other_content(collection)
    return count


def same_item(kept: Item, exported: Item, spec: CollectionSpec) -> bool:
    """Return whether a collection holds an item as it would store it."""
    return (
        kept.id == exported.id
        and metadata_json(kept) == metadata_json(exported)
        # normalizing a normalized vector again may change the last bit
        and np.allclose(kept.vector, exported.vector, rtol=1e-3, atol=1e-6 if spec.precision == "f32" else 1e-3)
    )


def _other_content(collection: Collection) -> CollectionExists:
    return CollectionExists(
        f"Collection {collection.name!r} has other items than the export; import it under another name, or add it to "
        "this one with `--into` (into=True), which replaces items with the same id."
    )
