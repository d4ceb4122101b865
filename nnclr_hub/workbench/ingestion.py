"""Put images into a collection: read, embed, upsert.

items = embed_images(request.images, embedder)      # an item or an ImageError for each
errors = store_images(collection, request.images, items)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.encoder.preprocessing import as_source
from nnclr_hub.errors import ImageError, ModelError
from nnclr_hub.images.pool import run_isolated
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.read_ahead import batches, read_ahead
from nnclr_hub.store.base import Collection, Item
from nnclr_hub.workbench.image_record import record
from nnclr_hub.workbench.metadata import FILE_HASH, OWNED, PIXEL_HASH, PLACE
from nnclr_hub.workbench.originals import Originals, file_hash
from nnclr_hub.workbench.requests import NewImage

DECODED_AT_ONCE = 8  # one image may take 120 MB
NO_VECTOR = np.zeros(0, np.float32)
Read = tuple[Any, Item] | ImageError  # an image or None, and its item without a vector


def read_image(new: NewImage, reading: ImageReading, *, with_image: bool = True) -> Read:
    """Return the upright image with the item that is stored of it, which lacks a vector; or why it cannot be read.

    Args:
        reading: page and channels that its encoder reads.
        with_image: False: return None instead of the image.
    """
    try:
        pixel_hash, thumbnail, image = run_isolated(record, as_source(new.image), reading, new.thumbnail, with_image)
    except ImageError as error:
        return error
    metadata = {key: value for key, value in new.metadata.items() if key != FILE_HASH}
    return image, Item(new.item_id, NO_VECTOR, {**metadata, PIXEL_HASH: pixel_hash}, thumbnail)


def with_vector(read: Read, vector: np.ndarray | ImageError, model: str) -> Item | ImageError:
    """Return the item of an image with its vector (D,), or the error."""
    if isinstance(read, ImageError):
        return read
    if isinstance(vector, ImageError):
        return vector
    if not np.isfinite(vector).all():
        raise ModelError(
            f"The model {model} returned NaN or infinity for an image; check its weights, or choose another model."
        )
    return replace(read[1], vector=vector)


def embed_images(images: Sequence[NewImage], embedder: Embedder) -> list[Item | ImageError]:
    """Read and embed images; return an item or an error for each."""
    some = read_ahead(batches(images, DECODED_AT_ONCE), partial(read_image, reading=embedder.reading))
    return [item for _, results in some for item in embed_read(results, embedder)]


def embed_read(results: Sequence[Read], embedder: Embedder) -> list[Item | ImageError]:
    """Embed images that `read_image` returned; return an item or an error for each."""
    images = [result[0] for result in results if not isinstance(result, ImageError) and result[0] is not None]
    vectors = iter(embedder.embed_each(images) if images else [])
    return [
        result if isinstance(result, ImageError) else with_vector(result, next(vectors), embedder.name)
        for result in results
    ]


def store_images(
    collection: Collection,
    items: Sequence[Item | ImageError],
    images: Sequence[NewImage] = (),
    originals: Originals | None = None,
) -> list[ImageError | None]:
    """Upsert embedded images in one durable write; return an error or None for each.

    Args:
        originals: keeps the files of `images` that are bytes, if it has a quota.
    """
    keep = originals if originals is not None and originals.most_bytes else None
    files: dict[str, bytes] = {}
    good = [item for item in items if not isinstance(item, ImageError)]
    if keep is not None:
        given = {image.item_id: image.image for image in images}
        for i, item in enumerate(good):
            if isinstance(data := given.get(item.id), bytes):
                files[hash := file_hash(data)] = data
                good[i] = replace(item, metadata={**item.metadata, FILE_HASH: hash})
    if good:
        good = _refresh(collection, good)
        with nullcontext() if keep is None else _keep_files(keep, collection, good, files):
            collection.upsert(good)
    return [item if isinstance(item, ImageError) else None for item in items]


@contextmanager
def _keep_files(
    originals: Originals, collection: Collection, items: Sequence[Item], files: Mapping[str, bytes]
) -> Iterator[None]:
    """Keep the files of images that are stored in this context, and delete those of items that they replace."""
    with originals.changing:
        replaced = {item.metadata.get(FILE_HASH) for item in collection.get([item.id for item in items])}
        try:
            for hash, data in files.items():
                originals.put(hash, data)
            yield
        except BaseException:
            originals.remove_unused(files)
            raise
        originals.remove_unused(one for one in replaced - files.keys() if isinstance(one, str))


# ---- images that are indexed or imported again: what their user has written stays


def _refresh(collection: Collection, items: Sequence[Item]) -> list[Item]:
    indexed = [item.id for item in items if item.metadata.keys() >= PLACE]
    kept = {item.id: item.metadata for item in collection.get(indexed)} if indexed else {}
    return [
        replace(item, metadata=refreshed(kept[item.id], item.metadata)) if item.id in kept else item for item in items
    ]


def refreshed(kept: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata to store of an image whose item the collection has.

    If the pixels differ, it is another image, and only its own metadata counts. Otherwise the keys that others added
    stay, and so does a label. The label is new only if the old one came from the image's sample in an archive.

    Args:
        kept: metadata of the item.
        new: metadata of the image, with the hash of its pixels.
    """
    if kept.get(PIXEL_HASH) != new[PIXEL_HASH]:
        return dict(new)
    metadata = {key: value for key, value in kept.items() if key not in OWNED} | dict(new)
    # a folder gives the same label each time; that of a sample is stored as its text `cls`, too
    if "label" in kept and ("cls" not in kept or kept["label"] != str(kept["cls"])):
        metadata["label"] = kept["label"]
    return metadata
