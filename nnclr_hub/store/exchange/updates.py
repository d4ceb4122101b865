"""Updates of an export: only new, changed and deleted items are written, and the folder stays complete at every moment.

for items in read_items(manifest, folder, 1000): ...        # of the export with all its updates
update_export(collection, folder, ...)
"""

from __future__ import annotations

import fcntl
import heapq
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

from nnclr_hub.errors import InvalidRequest, StoreLocked
from nnclr_hub.store.base import Collection, Item
from nnclr_hub.store.checks import metadata_json
from nnclr_hub.store.exchange.files import (
    MANIFEST,
    ExchangeShard,
    ExportUpdate,
    Manifest,
    read_shard,
    stored,
    write_ids,
)
from nnclr_hub.store.spec import CollectionSpec

_FILE = re.compile(r"(items|vectors|deleted)-(\d{5})\.(parquet|safetensors|txt)")
MOST_UPDATES = 30  # whose files are read together
_Row = tuple[str, int, Item | None]  # id, age of the layer, the item or None if it was deleted

# writes batches of items as shards whose numbers begin with the second argument
WriteShards = Callable[[Path, int, Iterator[list[Item]]], tuple[ExchangeShard, ...]]


def read_items(manifest: Manifest, folder: Path, batch: int) -> Iterator[list[Item]]:
    """Yield the items of an export with its updates, in ascending order of the ids, in batches.

    Raises:
        StoreError: a file cannot be read.
    """
    layers = manifest.layers
    rows = heapq.merge(
        *(_rows(layer, folder, len(layers) - number, batch) for number, layer in enumerate(layers)),
        key=itemgetter(0, 1),
    )
    newest = (next(same)[2] for _, same in groupby(rows, itemgetter(0)))
    items = (item for item in newest if item is not None)
    while some := list(islice(items, batch)):
        yield some


def update_export(
    collection: Collection, folder: Path, write: WriteShards, current: Iterator[list[Item]], batch: int
) -> Manifest:
    """Bring an export up to date. An interruption or a full disk leaves it as it was.

    Args:
        collection: that was exported.
        folder: of the export, whose files were checked.
        write: writes shards.
        current: the items of the collection in ascending order of the ids, as they are to be exported.
        batch: items that are read at once.

    Raises:
        InvalidRequest: the export is of another collection or encoder.
        StoreLocked: another process updates it.
    """
    with _locked(folder):
        manifest = Manifest.read(folder)
        _check_same(manifest, collection, folder)
        _remove_others(folder, manifest)
        number = 1 + max(
            (int(found[2]) for path in folder.iterdir() if (found := _FILE.fullmatch(path.name))), default=0
        )
        try:
            updated = _written(manifest, collection.spec, folder, number, write, current, batch)
        except BaseException:
            _remove_others(folder, manifest)
            raise
        if updated != manifest:
            updated.write(folder)
            _remove_others(folder, updated)
        return updated


def _written(
    manifest: Manifest,
    spec: CollectionSpec,
    folder: Path,
    number: int,
    write: WriteShards,
    current: Iterator[list[Item]],
    batch: int,
) -> Manifest:
    """Write the changes as an update; or everything, if the updates are many or have more items than half of it."""
    written = sum(shard.count for update in manifest.updates for shard in update.shards)
    if len(manifest.updates) == MOST_UPDATES or 2 * written > sum(shard.count for shard in manifest.shards):
        shards = write(folder, number, current)
        return replace(manifest, shards=shards, updates=(), items=sum(shard.count for shard in shards))
    deleted: list[str] = []
    count = 0

    def counted() -> Iterator[Item]:
        nonlocal count
        for items in current:
            count += len(items)
            yield from items

    def changed() -> Iterator[list[Item]]:
        before = (item for items in read_items(manifest, folder, batch) for item in items)
        new = _changes(before, counted(), spec, deleted)
        while some := list(islice(new, batch)):
            yield some

    shards = write(folder, number, changed())
    if not shards and not deleted:
        return manifest
    update = ExportUpdate(shards, write_ids(folder, number, deleted) if deleted else None)
    return replace(manifest, items=count, updates=(*manifest.updates, update))


def _changes(before: Iterator[Item], now: Iterator[Item], spec: CollectionSpec, deleted: list[str]) -> Iterator[Item]:
    """Yield new and changed items, and append the ids of deleted ones; both iterators are in the order of the ids."""
    old = next(before, None)
    for item in now:
        while old is not None and old.id < item.id:
            deleted.append(old.id)
            old = next(before, None)
        same = old is not None and old.id == item.id
        if old is None or not same or not _is_equal(old, item, spec):
            yield item
        if same:
            old = next(before, None)
    deleted += ([] if old is None else [old.id]) + [item.id for item in before]


def _is_equal(one: Item, other: Item, spec: CollectionSpec) -> bool:
    return (
        one.thumbnail == other.thumbnail
        and metadata_json(one) == metadata_json(other)
        and stored([one], spec).tobytes() == stored([other], spec).tobytes()
    )


def _rows(layer: ExportUpdate, folder: Path, age: int, batch: int) -> Iterator[_Row]:
    """Yield the items of a layer and the ids that it deletes, in ascending order."""
    items = (
        (item.id, age, item) for shard in layer.shards for some in read_shard(folder, shard, batch) for item in some
    )
    if layer.deleted is None:
        return items
    ids = (folder / layer.deleted.file).read_text("ascii").split()
    return heapq.merge(items, ((id, age, None) for id in ids), key=itemgetter(0))


def _check_same(manifest: Manifest, collection: Collection, folder: Path) -> None:
    ours, theirs = collection.spec, manifest.spec
    if manifest.name != collection.name:
        problem = f"is an export of {manifest.name!r}, not of {collection.name!r}"
    elif (ours.fingerprint, ours.dim, ours.metric, ours.precision) != (
        theirs.fingerprint,
        theirs.dim,
        theirs.metric,
        theirs.precision,
    ):
        problem = "has vectors of another encoder or of another form"
    else:
        return
    raise InvalidRequest(f"{folder} {problem}; choose a new folder.")


def _remove_others(folder: Path, manifest: Manifest) -> None:
    """Delete files of exports that the manifest does not list."""
    listed = {file.file for layer in manifest.layers for file in layer.files}
    for path in folder.iterdir():
        if (_FILE.fullmatch(path.name) and path.name not in listed) or path.name == f"{MANIFEST}.new":
            path.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let no other process update the export during the block.

    Raises:
        StoreLocked: another process does that now.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreLocked(f"Another process updates {folder}; repeat this when it has ended.") from error
        yield
    finally:
        os.close(descriptor)
