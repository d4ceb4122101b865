"""Import the vectors of a bulk run into a collection, in the form of `nnclr index`, without thumbnails.

    collect(open_shards(Path("vectors")), store, "photos")

`nnclr index` of the same folder recognizes these items afterwards, and indexes only new and changed images.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nnclr_hub.bulk.image_list import ListedImage, Source, named
from nnclr_hub.bulk.plan import ShardPlan
from nnclr_hub.bulk.shards import Shard, Shards
from nnclr_hub.encoder.image_folder import label_of
from nnclr_hub.errors import CollectionExists, CollectionNotFound, InvalidRequest
from nnclr_hub.store.base import Collection, CollectionSpec, Item, Progress, VectorStore
from nnclr_hub.store.replacement import upsert_into
from nnclr_hub.workbench.folder_changes import item_id

BATCH = 1000


def collect(
    shards: Shards,
    store: VectorStore,
    name: str,
    *,
    into: bool = False,
    progress: Progress = lambda done, total: None,
) -> tuple[int, int]:
    """Add all images to a collection, which is created if necessary; call again to resume after an interruption.

    Args:
        into: allow a collection with other items.
        progress: called with (done, total) in images.

    Returns:
        The number of images, and how many of them this call wrote.

    Raises:
        InvalidRequest: shards are missing, or two images have the same path.
        CollectionExists: the collection has other items and `into` is False, or another image of the same path.
        FingerprintMismatch: it contains vectors of another encoder.
        CollectionMoving: another process re-embeds it.
    """
    shards.require_all()
    _refuse_duplicate_paths(shards)
    collection = _target(shards.plan, store, name)
    if not into and collection.count() > sum(len(_existing(collection, items)) for items in _all_batches(shards)):
        raise CollectionExists(
            f"Collection {name!r} has other items than these shards; import them under another name, or add them with "
            "--into (into=True)."
        )
    total = sum(shard.count for shard in shards)
    done = written = 0
    for items in _all_batches(shards):
        if new := _missing(collection, items):
            upsert_into(store, name, collection, new)
        done, written = done + len(items), written + len(new)
        progress(done, total)
    return total, written


def _refuse_duplicate_paths(shards: Shards) -> None:
    """Check that no two images have the same path below their source, because they would be one item."""
    sources = shards.plan.sources
    if len(sources) == 1 and not sources[0].archive:
        return
    seen: set[bytes] = set()
    for shard in shards:
        for image in shard.images:
            id = bytes.fromhex(_id(sources[image.source], image))
            if id in seen:
                raise InvalidRequest(
                    f"{named(sources, image)} has the same path below its folder or archive as another image and "
                    "would replace it; embed a folder that contains both folders."
                )
            seen.add(id)


def _target(plan: ShardPlan, store: VectorStore, name: str) -> Collection:
    try:
        collection = store.get(name)
    except CollectionNotFound:
        return store.create(name, CollectionSpec.of(plan))
    collection.spec.check(plan, name)
    return collection


def _all_batches(shards: Shards) -> Iterator[list[Item]]:
    for shard in shards:
        yield from _batches(shard)


def _batches(shard: Shard) -> Iterator[list[Item]]:
    vectors = shard.vectors
    for start in range(0, shard.count, BATCH):
        images = shard.images[start : start + BATCH]
        yield [
            _item(shard.plan.sources[one.source], one, vector)
            for one, vector in zip(images, vectors[start : start + BATCH], strict=True)
        ]


def _item(source: Source, image: ListedImage, vector: np.ndarray) -> Item:
    """Return the item that `nnclr index` would write; the root of an image in an archive is the archive."""
    label = label_of(Path(image.path), Path())
    metadata = {"path": image.path, "root": source.absolute, "size": image.size, "mtime": image.mtime}
    return Item(_id(source, image), vector, metadata | ({"label": label} if label else {}))


def _id(source: Source, image: ListedImage) -> str:
    """Return the item id; for an archive, as if it were a folder, because archives often contain equal names."""
    root = Path(source.absolute)
    return item_id(root / image.path, root.parent if source.archive else root)


def _existing(collection: Collection, items: list[Item]) -> dict[str, Item]:
    return {item.id: item for item in collection.get([item.id for item in items])}


def _missing(collection: Collection, items: list[Item]) -> list[Item]:
    """Return the items that the collection does not have in the same form."""
    existing = _existing(collection, items)
    for item in items:
        root = existing.get(item.id, item).metadata.get("root")
        if root != item.metadata["root"]:
            raise CollectionExists(
                f"Collection {collection.name!r} already has {item.metadata['path']!r} from {root}; import these "
                "images under another name."
            )
    same = {
        item.id for item in items if item.id in existing and existing[item.id].metadata.items() >= item.metadata.items()
    }
    return [item for item in items if item.id not in same]
