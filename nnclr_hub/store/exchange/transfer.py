"""A collection as a folder of Parquet and safetensors files, and back: for backups, other tools, other stores.

export_collection(store.get("photos"), Path("photos-export"))
import_collection(other_store, "photos", Path("photos-export"))

`manifest.py` tells what the folder holds, `shards.py` how it is read and written.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnclr_hub.errors import (
    CollectionExists,
    CollectionNotFound,
    DiskFull,
    FingerprintMismatch,
    InvalidRequest,
    StoreError,
)
from nnclr_hub.store.base import Collection, Item, Progress, VectorStore
from nnclr_hub.store.checks import metadata_json
from nnclr_hub.store.durable import fsync_folder
from nnclr_hub.store.exchange.manifest import Manifest
from nnclr_hub.store.exchange.shards import check_shard, read_shard, require_parquet, write_shard
from nnclr_hub.store.pages import pages
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.succession import upsert_there

SHARD_ITEMS = 50_000
SHARD_BYTES = 128 * 1024 * 1024  # of vectors, which are gathered in memory
BATCH = 1000
# what makes vectors comparable; keys with an index and the kind of index are the receiving collection's own
MUST_AGREE = ("dim", "metric", "precision")


# ---- out


def export_collection(
    collection: Collection, folder: Path, *, thumbnails: bool = True, progress: Progress = lambda done, total: None
) -> Manifest:
    """Writes the collection into a new folder; all of it is on disk when this returns, or the folder is not there.

    What others write meanwhile may be in it or not.

    Args:
        folder: must not exist.
        thumbnails: False: without them, which is much smaller.
        progress: called with (done, total), counted in items.

    Raises:
        MissingDependency: pyarrow is not installed.
        InvalidRequest: the folder exists.
        DiskFull, StoreError: it cannot be written.
    """
    require_parquet()
    folder = Path(folder)
    if folder.exists() or folder.is_symlink():
        raise InvalidRequest(f"{folder} exists already: name a folder that does not, nothing is overwritten.")
    done, total = 0, collection.count()

    def counted(batches: Iterator[list[Item]]) -> Iterator[list[Item]]:
        nonlocal done
        for items in batches:
            yield items
            done += len(items)
            progress(done, max(done, total))

    with _written_whole(folder) as partial:
        shards = tuple(
            write_shard(partial, number, counted(batches), collection.spec)
            for number, batches in enumerate(_shards_of(collection, thumbnails))
        )
        manifest = Manifest(collection.name, collection.spec, done, thumbnails, shards)
        manifest.write(partial)
    return manifest


def _shards_of(collection: Collection, thumbnails: bool) -> Iterator[Iterator[list[Item]]]:
    """Shards, each an iterator of batches that has to be used up before the next shard."""
    batches = _batches_of(collection, thumbnails)
    room = min(SHARD_ITEMS, max(BATCH, SHARD_BYTES // (4 * collection.spec.dim)))
    first = next(batches, None)

    def shard() -> Iterator[list[Item]]:
        nonlocal first
        count = 0
        while first is not None and count < room:
            yield first
            count += len(first)
            first = next(batches, None)

    while first is not None:
        yield shard()


def _batches_of(collection: Collection, thumbnails: bool) -> Iterator[list[Item]]:
    for page in pages(collection, limit=BATCH, with_vector=not thumbnails):
        # pages are without thumbnails; items deleted since the page was read are left out
        items = collection.get([item.id for item in page]) if thumbnails else page
        if items:
            yield items


@contextmanager
def _written_whole(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` that takes its name when the block is done, and goes away when it fails."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # a folder of its own, for whose mode mkdtemp asks only the owner
        outer = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
        try:
            partial = outer / folder.name
            partial.mkdir()
            yield partial
            partial.rename(folder)
            fsync_folder(folder.parent)
        finally:
            shutil.rmtree(outer, ignore_errors=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFull(f"{folder} does not fit on the disk, nothing was kept: make room, and try again.") from error
        raise StoreError(
            f"{folder} cannot be written ({error.strerror or error}): name a folder that can be."
        ) from error


# ---- in


@dataclass(frozen=True)
class Imported:
    """What an import did: items in the export, how many of them were written, and whether it made the collection."""

    items: int
    written: int
    created: bool


def import_collection(
    store: VectorStore,
    name: str,
    folder: Path,
    *,
    into: bool = False,
    progress: Progress = lambda done, total: None,
) -> Imported:
    """Fills a collection from an exported folder, which is read and checked as a whole before anything is written.

    Made if it is not there. An import that was interrupted goes on where it stopped.

    Args:
        name: of the collection, or an alias.
        into: add to a collection that holds other items; those of the same id are replaced.
        progress: called with (done, total), counted in bytes that are read: each to check it, and again to store it.

    Raises:
        MissingDependency: pyarrow is not installed.
        InvalidRequest: the folder holds no export.
        FingerprintMismatch: the collection holds vectors of another encoder.
        CollectionExists: it has another specification, or holds something else and `into` was not said.
        CollectionMoving: another process re-embeds the collection.
        StoreTooNew, StoreError: the export is of a later version, damaged or incomplete.
    """
    require_parquet()
    folder = Path(folder)
    manifest = Manifest.read(folder)
    _check(manifest, folder, progress)
    collection, created = _receiving(store, name, manifest)
    there = 0 if into or created else _already_there(collection, manifest, folder)
    done = 0
    for items in _items_of(manifest, folder):
        missing = items[max(0, there - done) :]
        if missing:
            upsert_there(store, name, collection, missing)
        done += len(items)
        progress(manifest.size + manifest.size * done // manifest.items, 2 * manifest.size)
    return Imported(manifest.items, manifest.items - there, created)


def _check(manifest: Manifest, folder: Path, progress: Progress) -> None:
    """Every byte against the manifest, and then what the files say of themselves."""
    done, total = 0, 2 * manifest.size

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    last = ""
    for shard in manifest.shards:
        for file in shard.files:
            file.check(folder, advance)
        last = check_shard(folder, shard, manifest.spec, last)


def _items_of(manifest: Manifest, folder: Path) -> Iterator[list[Item]]:
    for shard in manifest.shards:
        yield from read_shard(folder, shard, BATCH)


def _receiving(store: VectorStore, name: str, manifest: Manifest) -> tuple[Collection, bool]:
    """The collection to fill, and whether it was made just now."""
    try:
        collection = store.get(name)
    except CollectionNotFound:
        return store.create(name, manifest.spec), True
    here, there = collection.spec, manifest.spec
    if here.fingerprint != there.fingerprint:
        raise FingerprintMismatch(
            f"Collection {name!r} holds vectors of {here.model or 'an unknown encoder'} ({here.fingerprint[:8]}), the "
            f"export those of {there.model or 'an unknown encoder'} ({there.fingerprint[:8]}): import it under another "
            "name."
        )
    for field in MUST_AGREE:
        if getattr(here, field) != getattr(there, field):
            raise CollectionExists(
                f"Collection {name!r} has {field} {getattr(here, field)!r}, the export {getattr(there, field)!r}: "
                "import it under another name."
            )
    return collection, False


def _already_there(collection: Collection, manifest: Manifest, folder: Path) -> int:
    """How many items an interrupted import has left: those of the collection, if they are the export's first ones.

    Raises:
        CollectionExists: the collection holds something else.
    """
    count, cursor = 0, None
    for items in _items_of(manifest, folder):
        page = collection.scroll(cursor, len(items))
        for kept, exported in zip(page.items, items, strict=False):
            if not _same(kept, exported, collection.spec):
                raise _other_content(collection)
        count += len(page.items)
        cursor = page.cursor
        if cursor is None:
            return count
    if cursor is not None or (not manifest.shards and collection.count()):
        raise _other_content(collection)
    return count


def _same(kept: Item, exported: Item, spec: CollectionSpec) -> bool:
    return (
        kept.id == exported.id
        and metadata_json(kept) == metadata_json(exported)
        # normalizing what is normalized may turn the last bit
        and np.allclose(kept.vector, exported.vector, rtol=1e-3, atol=1e-6 if spec.precision == "f32" else 1e-3)
    )


def _other_content(collection: Collection) -> CollectionExists:
    return CollectionExists(
        f"Collection {collection.name!r} holds other items than the export: import it under another name, or add it to "
        "this one with `--into` (into=True), which replaces items of the same id."
    )
