"""Import the vectors of a bulk run into a collection, in the form of `nnclr index`, without thumbnails.

    collect(open_shards(Path("vectors")), store, "photos")

`nnclr index` of the same folder recognizes these items afterwards, and indexes only new and changed images.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from nnclr_hub.bulk.plan import TILE, ShardPlan
from nnclr_hub.bulk.shards import Shards
from nnclr_hub.errors import CollectionExists, CollectionNotFound, InvalidRequest
from nnclr_hub.images.source import Place, Source
from nnclr_hub.json_text import is_utf8
from nnclr_hub.store.base import Collection, CollectionSpec, Item, Progress, VectorStore
from nnclr_hub.store.where import MAX_IN
from nnclr_hub.workbench.folder_changes import item_id
from nnclr_hub.workbench.metadata import BOX

log = logging.getLogger(__name__)
BATCH = MAX_IN  # items whose ids one filter can name


def collect(
    shards: Shards,
    store: VectorStore,
    name: str,
    *,
    into: bool = False,
    progress: Progress = lambda done, total: None,
) -> tuple[int, int]:
    """Add all images to a collection, which is created if necessary; call again to resume after an interruption.

    Of equal paths in one archive, the last one counts, as when it is unpacked. Paths that are not UTF-8 are left out.

    Args:
        into: allow a collection with other items.
        progress: called with (done, total) in images.

    Returns:
        The number of images, and how many of them this call wrote.

    Raises:
        InvalidRequest: shards are missing, or two images of different sources have the same path.
        CollectionExists: the collection has other items and `into` is False, or another image of the same path.
        FingerprintMismatch: it contains vectors of another encoder.
    """
    shards.require_all()
    repeats = _repeats(shards)
    collection = _target(shards.plan, store, name)
    before = collection.count()
    if before and not into and before > sum(len(_existing(collection, items)) for items in _batches(shards, repeats)):
        raise CollectionExists(
            f"Collection {name!r} has other items than these shards; import them under another name, or add them with "
            "--into (into=True)."
        )
    total = sum(shard.count for shard in shards) - repeats.total()
    done = written = 0
    for items in _batches(shards, repeats):
        if new := _missing(collection, items) if before else items:
            collection.upsert(new)
        done, written = done + len(items), written + len(new)
        progress(done, total)
    return done, written


def _repeats(shards: Shards) -> Counter[str]:
    """Return how many images are replaced by a later one of the same path in their archive, by id."""
    places = shards.plan.places
    repeats = Counter[str]()
    if len(places) == 1 and not places[0].archive:
        return repeats
    seen: dict[bytes, Place] = {}  # by id
    for shard in shards:
        for image in shard.images:
            id = item_id(image.place, image.path)
            if (key := bytes.fromhex(id)) not in seen:
                seen[key] = image.place
            elif seen[key] == image.place and image.place.archive:
                repeats[id] += 1
            else:
                raise InvalidRequest(
                    f"{image} has the same path below its folder or archive as another image and "
                    "would replace it; embed a folder that contains both folders."
                )
    if repeats:
        log.warning("%d images are left out, because later ones in their archive replace them", repeats.total())
    return repeats


def _target(plan: ShardPlan, store: VectorStore, name: str) -> Collection:
    try:
        collection = store.get(name)
    except CollectionNotFound:
        return store.create(name, CollectionSpec.of(plan))
    collection.check(plan)
    return collection


def _batches(shards: Shards, repeats: Counter[str]) -> Iterator[list[Item]]:
    """Yield all items in order, without those that later ones replace, or that a collection cannot store."""
    left = Counter(repeats)
    for shard in shards:
        rows = list(zip(shard.images, shard.vectors, shard.metadata, shard.labels, strict=True))
        for start in range(0, shard.count, BATCH):
            items = []
            for row in rows[start : start + BATCH]:
                item = _item(*row)
                if left[item.id]:
                    left[item.id] -= 1
                elif is_utf8(item.metadata["root"] + item.metadata["path"]):
                    items.append(item)
                else:
                    log.warning("%r is left out, because its path is not UTF-8; rename it, and embed it again", row[0])
            if items:
                yield items


def _item(image: Source, vector: np.ndarray, about: dict[str, Any], label: str | None) -> Item:
    """Return the item that `nnclr index` would write; the root of an image in an archive is the archive."""
    path, mark, box = image.path.rpartition("#") if TILE.search(image.path) else (image.path, "", "")
    metadata = {"path": path, "root": image.place.absolute, "size": image.size, "mtime": image.mtime}
    if mark:
        metadata[BOX] = [int(one) for one in box.split(",")]
    return Item(item_id(image.place, image.path), vector, about | metadata | ({"label": label} if label else {}))


def _existing(collection: Collection, items: list[Item]) -> dict[str, Item]:
    """Return the collection's items with the ids of others, without vectors and thumbnails, by id."""
    ids = [item.id for item in items]
    filters = [{"must": [{"ids": ids[start : start + MAX_IN]}]} for start in range(0, len(ids), MAX_IN)]
    found = [collection.scroll(None, MAX_IN, where, with_vector=False).items for where in filters]
    return {item.id: item for page in found for item in page}


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
