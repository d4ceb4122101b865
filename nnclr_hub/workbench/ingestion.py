"""Ingestion: put a few images into a collection, in steps that the caller may run in different threads.

    ingestion = Ingestion(targets, request)
    while (embedder := ingestion.store()) is not None:      # until no encoder misses an image
        ingestion.set_vectors(embedder, range(len(images)), embedder.embed_each([...]))
        for i in range(len(images)):
            ingestion.read(i, embedder)
    ingestion.errors

No lock is held while images are decoded and embedded, so other writers wait only for a write. If a re-embedding of the
collection starts in between, `store` returns the second encoder, whose vectors are needed too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from nnclr_hub.encoder.channel_image import AnyImage
from nnclr_hub.encoder.decoding import image_of, run_isolated
from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.encoder.image_reading import ImageReading
from nnclr_hub.encoder.inputs import as_source
from nnclr_hub.errors import ImageError, ModelError
from nnclr_hub.read_ahead import batches, read_ahead
from nnclr_hub.store.base import Collection, Item
from nnclr_hub.workbench.add_request import AddRequest, NewImage
from nnclr_hub.workbench.image_record import FILE_HASH, PIXEL_HASH, record
from nnclr_hub.workbench.indexed_again import is_indexed, refreshed
from nnclr_hub.workbench.originals import Originals, file_hash
from nnclr_hub.workbench.write_lock import OpenTargets, Target

DECODED_AT_ONCE = 8


@dataclass(frozen=True)
class Draft:
    """An item without its vector."""

    id: str
    metadata: Mapping[str, Any]
    thumbnail: bytes | None

    def item(self, vector: np.ndarray) -> Item:
        """Return the item with a vector (D,)."""
        return Item(self.id, vector, self.metadata, self.thumbnail)


def read_image(
    new: NewImage, reading: ImageReading, *, with_image: bool = True
) -> tuple[AnyImage | None, Draft] | ImageError:
    """Return the upright image with what is stored of it; or why it cannot be read.

    Args:
        reading: of the encoder that embeds it.
        with_image: False: return None instead of the image.
    """

    def take(
        pixel_hash: str, thumbnail: np.ndarray | None, image: np.ndarray | AnyImage | None
    ) -> tuple[AnyImage | None, Draft]:
        jpeg = None if thumbnail is None else thumbnail.tobytes()
        metadata = {key: value for key, value in new.metadata.items() if key != FILE_HASH}
        draft = Draft(new.item_id, {**metadata, PIXEL_HASH: pixel_hash}, jpeg)
        return None if image is None else image_of(image), draft

    try:
        return run_isolated(record, as_source(new.image), reading, new.thumbnail, with_image, take=take)
    except ImageError as error:
        return error


class Ingestion:
    """The state of one request to add images: what was read, embedded and refused.

    Args:
        open_targets: opens what to write to; called once per write.
        originals: keeps the files of images that are bytes, if it has a quota.
    """

    def __init__(self, open_targets: OpenTargets, request: AddRequest, originals: Originals | None = None) -> None:
        self._originals = originals if originals is not None and originals.most_bytes else None
        self.images = request.images
        self.errors: list[ImageError | None] = [None] * len(self.images)
        self._open_targets = open_targets
        self._drafts: dict[int, Draft] = {}
        self._vectors: dict[str, dict[int, np.ndarray]] = {}  # by the encoder's fingerprint, then by position

    def read(self, index: int, embedder: Embedder, *, with_image: bool = True) -> AnyImage | None:
        """Decode an image for an encoder, and keep its draft or its error. Blocks; safe in several threads."""
        return self.set_read(index, read_image(self.images[index], embedder.reading, with_image=with_image))

    def set_read(self, index: int, result: tuple[AnyImage | None, Draft] | ImageError) -> AnyImage | None:
        """Keep the result of `read_image`, for a caller that has run it already."""
        if isinstance(result, ImageError):
            self.errors[index] = result
            return None
        image, draft = result
        data = self.images[index].image
        if self._originals is not None and isinstance(data, bytes):
            draft = replace(draft, metadata={**draft.metadata, FILE_HASH: file_hash(data)})
        self._drafts[index] = draft
        return image

    def is_read(self, index: int) -> bool:
        """Return whether the image has been decoded."""
        return index in self._drafts

    def set_vectors(
        self, embedder: Embedder, indices: Sequence[int], results: Sequence[np.ndarray | ImageError]
    ) -> None:
        """Keep the results of an encoder that `store` returned: a vector or an error for each position.

        Raises:
            ModelError: a vector is not finite.
        """
        for index, result in zip(indices, results, strict=True):
            if isinstance(result, ImageError):
                self.errors[index] = result
            elif not np.isfinite(result).all():
                raise ModelError(
                    f"The model {embedder.name} returned NaN or infinity for an image; check its weights, or choose "
                    "another model."
                )
            else:
                self._vectors[embedder.fingerprint][index] = result

    def store(self) -> Embedder | None:
        """Write the images that have no error, durably and at once; or return an encoder that must embed them first.

        Blocks. Returns None when everything is written.
        """
        with self._open_targets() as targets:
            for target in targets:
                if target.embedder.fingerprint not in self._vectors:
                    self._vectors[target.embedder.fingerprint] = {}
                    return target.embedder
            good = [index for index, error in enumerate(self.errors) if error is None]
            drafts = self._refreshed(targets[0].collection, good)
            with self._keeping(targets, good) if good else nullcontext():
                for target in targets:
                    vectors = self._vectors[target.embedder.fingerprint]
                    items = [draft.item(vectors[index]) for index, draft in zip(good, drafts, strict=True)]
                    if items:
                        target.collection.upsert(items)
        return None

    def _refreshed(self, collection: Collection, indices: Sequence[int]) -> list[Draft]:
        """Return drafts; those of images that are indexed again with the metadata that a user added."""
        drafts = [self._drafts[index] for index in indices]
        indexed = [draft.id for draft in drafts if is_indexed(draft.metadata)]
        kept = {item.id: item.metadata for item in collection.get(indexed)} if indexed else {}
        return [
            replace(draft, metadata=refreshed(kept[draft.id], draft.metadata)) if draft.id in kept else draft
            for draft in drafts
        ]

    @contextmanager
    def _keeping(self, targets: Sequence[Target], indices: Sequence[int]) -> Iterator[None]:
        """Keep the files of images that are stored in this context, and delete those of items that they replace."""
        originals = self._originals
        if originals is None:
            yield
            return
        drafts = [self._drafts[index] for index in indices]
        hashes = [draft.metadata.get(FILE_HASH) for draft in drafts]
        with originals.changing:
            existing = targets[0].collection.get([draft.id for draft in drafts])
            replaced = {item.metadata.get(FILE_HASH) for item in existing}
            try:
                for index, hash in zip(indices, hashes, strict=True):
                    data = self.images[index].image
                    if hash is not None and isinstance(data, bytes):
                        originals.put(hash, data)
                yield
            except BaseException:
                originals.remove_unused(filter(None, hashes))
                raise
            originals.remove_unused(one for one in replaced - {*hashes} if isinstance(one, str))


def add_images(
    open_targets: OpenTargets, request: AddRequest, originals: Originals | None = None
) -> list[ImageError | None]:
    """Embed images and upsert them in one write; return when those that could be read are durable.

    Only a few images are decoded at a time, since one may take 120 MB.

    Returns:
        One entry per image: None, or why it could not be read.
    """
    ingestion = Ingestion(open_targets, request, originals)
    while (embedder := ingestion.store()) is not None:
        read = partial(ingestion.read, embedder=embedder)
        for batch, decoded in read_ahead(batches(range(len(request.images)), DECODED_AT_ONCE), read):
            good = [(index, image) for index, image in zip(batch, decoded, strict=True) if image is not None]
            vectors = embedder.embed_each([image for _, image in good])
            ingestion.set_vectors(embedder, [index for index, _ in good], vectors)
    return ingestion.errors
