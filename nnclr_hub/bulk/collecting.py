"""The vectors of a bulk run into a collection, as `nnclr index` would have left them there, but for thumbnails.

    collect(open_shards(Path("vectors")), store, "photos")

`nnclr index` of the same folder takes them for its own afterwards, and looks only at what is new or has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from nnclr_hub.bulk.pictures import Picture, Source
from nnclr_hub.bulk.plan import Plan
from nnclr_hub.bulk.shards import Shard, Shards
from nnclr_hub.encoder.folder_changes import item_id
from nnclr_hub.encoder.image_folder import label_of
from nnclr_hub.errors import CollectionNotFound, InvalidRequest
from nnclr_hub.store.base import Collection, CollectionSpec, Item, Progress, VectorStore

BATCH = 1000


def collect(
    shards: Shards, store: VectorStore, name: str, *, progress: Progress = lambda done, total: None
) -> tuple[int, int]:
    """Adds all pictures to a collection, which is made if it is not there; again, to go on after an interruption.

    Args:
        progress: called with (done, total) in pictures.

    Returns:
        How many pictures there are, and how many of them were written now.

    Raises:
        InvalidRequest: shards are missing, or the collection holds another picture under the same path.
        FingerprintMismatch: it holds vectors of another encoder.
    """
    shards.require_all()
    collection = _receiving(shards.plan, store, name)
    total = sum(shard.count for shard in shards)
    done = written = 0
    for shard in shards:
        for items in _batches(shard):
            new = _missing(collection, items)
            if new:
                collection.upsert(new)
            done, written = done + len(items), written + len(new)
            progress(done, total)
    return total, written


def _receiving(plan: Plan, store: VectorStore, name: str) -> Collection:
    try:
        collection = store.get(name)
    except CollectionNotFound:
        return store.create(name, CollectionSpec.of(plan))
    collection.spec.check(plan, name)
    return collection


def _batches(shard: Shard) -> Iterator[list[Item]]:
    vectors = shard.vectors
    for start in range(0, shard.count, BATCH):
        pictures = shard.pictures[start : start + BATCH]
        yield [
            _item(shard.plan.sources[one.source], one, vector)
            for one, vector in zip(pictures, vectors[start : start + BATCH], strict=True)
        ]


def _item(source: Source, picture: Picture, vector) -> Item:
    """As `nnclr index` writes it; a picture of an archive lies in a folder that has the archive's name."""
    place = Path(source.absolute)
    root = place.parent if source.archive else place
    path = PurePosixPath(place.name, picture.path) if source.archive else PurePosixPath(picture.path)
    label = label_of(Path(picture.path), Path())
    metadata = {"path": str(path), "root": str(root), "size": picture.size, "mtime": picture.mtime}
    return Item(item_id(root / path, root), vector, metadata | ({"label": label} if label else {}))


def _missing(collection: Collection, items: list[Item]) -> list[Item]:
    """Those that the collection does not hold as they are.

    Raises:
        InvalidRequest: it holds the same path of another folder.
    """
    held = {item.id: item.metadata for item in collection.get([item.id for item in items])}
    for item in items:
        root = held.get(item.id, item.metadata).get("root")
        if root != item.metadata["root"]:
            raise InvalidRequest(
                f"Collection {collection.name!r} holds {item.metadata['path']!r} of {root} already: import these "
                "into a collection of their own."
            )
    return [item for item in items if not held.get(item.id, {}).items() >= item.metadata.items()]
