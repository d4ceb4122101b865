"""A handful of images into a collection, in steps: who takes them says in which thread each is done.

    adding = Adding(writing, images)
    while (embedder := adding.store()) is not None:         # until no encoder misses them
        adding.take(embedder, range(len(images)), embedder.embed_each([...]))
        for i in range(len(images)):
            adding.read(i)
    adding.errors

Nothing is held while images are decoded and embedded, so those who wait to write, or to be alone, wait for no more
than a write. A collection whose re-embedding began meanwhile asks for its other encoder's vectors too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nnclr_hub.encoder.decoding import decode_image
from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.errors import ImageError
from nnclr_hub.store.base import Item
from nnclr_hub.store.duplicates import PIXEL_HASH
from nnclr_hub.workbench.pixels import pixel_hash
from nnclr_hub.workbench.thumbnail import make_thumbnail
from nnclr_hub.workbench.writing import Writing


@dataclass(frozen=True)
class NewImage:
    """An image to put into a collection.

    id: the item's id.
    image: path, bytes or PIL image.
    metadata: kept with it; `pixel_sha256` is added.
    """

    id: str
    image: Path | bytes | Image.Image
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Draft:
    """An item but for its vector."""

    id: str
    metadata: Mapping[str, Any]
    thumbnail: bytes

    def item(self, vector: np.ndarray) -> Item:
        return Item(self.id, vector, self.metadata, self.thumbnail)


def read_image(new: NewImage) -> tuple[Image.Image, Draft] | ImageError:
    """The image, RGB and upright, with what is kept of it; or why it cannot be read."""
    try:
        image = decode_image(new.image)
    except ImageError as error:
        return error
    return image, Draft(new.id, {**new.metadata, PIXEL_HASH: pixel_hash(image)}, make_thumbnail(image))


class Adding:
    """See the module.

    Args:
        writing: what to write to.
        images: to be added.
    """

    def __init__(self, writing: Writing, images: Sequence[NewImage]) -> None:
        self.images = images
        self.errors: list[ImageError | None] = [None] * len(images)
        self._writing = writing
        self._drafts: dict[int, Draft] = {}
        self._vectors: dict[str, dict[int, np.ndarray]] = {}  # by the encoder's fingerprint, then by image

    def read(self, index: int) -> Image.Image | None:
        """An image decoded, if it can be; what is kept of it is noted, or its error. Blocks; for many threads."""
        return self.note(index, read_image(self.images[index]))

    def note(self, index: int, found: tuple[Image.Image, Draft] | ImageError) -> Image.Image | None:
        """`read`, for who has called `read_image` already."""
        if isinstance(found, ImageError):
            self.errors[index] = found
            return None
        image, self._drafts[index] = found
        return image

    def is_read(self, index: int) -> bool:
        """Whether `read` found an image there."""
        return index in self._drafts

    def take(self, embedder: Embedder, indices: Sequence[int], results: Sequence[np.ndarray | ImageError]) -> None:
        """What an encoder that `store` asked for says of images: a vector or an error each."""
        for index, result in zip(indices, results, strict=True):
            if isinstance(result, ImageError):
                self.errors[index] = result
            else:
                self._vectors[embedder.fingerprint][index] = result

    def store(self) -> Embedder | None:
        """Writes those without an error, durably and in one write; or the encoder that has yet to see them. Blocks."""
        with self._writing() as targets:
            for target in targets:
                if target.embedder.fingerprint not in self._vectors:
                    self._vectors[target.embedder.fingerprint] = {}
                    return target.embedder
            good = [index for index, error in enumerate(self.errors) if error is None]
            for target in targets:
                vectors = self._vectors[target.embedder.fingerprint]
                items = [self._drafts[index].item(vectors[index]) for index in good]
                if items:
                    target.collection.upsert(items)
        return None
