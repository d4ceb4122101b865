"""Add uploaded images to a collection: the embedding is awaited, threads only decode and write.

    ingest = Ingest(settings.decode_threads)
    errors = await ingest.add(request, bench, "photos", AddRequest([...]))

It has separate threads, so that requests that only read never wait for decoding or for the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import cast

import numpy as np
from anyio import CapacityLimiter, to_thread
from fastapi import Request

from nnclr_hub.errors import ImageError, StoreError
from nnclr_hub.store.base import Collection, Item
from nnclr_hub.workbench import AddRequest, NewImage, Workbench
from nnclr_hub.workbench.ingestion import read_image, with_vector

from .limits import while_connected
from .models import Model
from .telemetry import note_change

WRITERS = 8  # uploads that write or wait for a model at once


class Ingest:
    """Add uploaded images to collections in separate threads.

    Args:
        threads: number of images decoded at once, for thumbnails and hashes.
    """

    def __init__(self, threads: int) -> None:
        self._decoders = CapacityLimiter(threads)
        self.writers = CapacityLimiter(WRITERS)

    async def add(self, request: Request, bench: Workbench, name: str, images: AddRequest) -> list[ImageError | None]:
        """Add images as `Workbench.add_images` does; stop before the write if the client disconnects.

        Raises:
            CollectionNotFound, FingerprintMismatch, RequestTooLarge, Overloaded, NotReady, DeadlineExceeded.
            ClientDisconnect: the client has disconnected.
        """
        collection, model = await to_thread.run_sync(_target, bench, name, limiter=self.writers)
        items = await while_connected(request, self._embed(images.images, model))

        def add() -> list[ImageError | None]:
            errors = bench.add_images(name, images, embedded=(collection, items))
            note_changes(bench, name, errors.count(None))
            return errors

        return await to_thread.run_sync(add, limiter=self.writers)

    async def _embed(self, images: Sequence[NewImage], model: Model) -> list[Item | ImageError]:
        """Embed and decode the images. The engine comes first, because it may refuse the request."""
        vectors = await model.embed_each_async([image.image for image in images])

        async def item(image: NewImage, vector: np.ndarray | ImageError) -> Item | ImageError:
            if isinstance(vector, ImageError):
                return vector
            read = partial(read_image, image, model.reading, with_image=False)
            result = await to_thread.run_sync(read, limiter=self._decoders)
            return with_vector(result, vector, model.name)

        return await asyncio.gather(*map(item, images, vectors))


def _target(bench: Workbench, name: str) -> tuple[Collection, Model]:
    bench.store.refuse_if_read_only()
    collection = bench.collection(name)
    return collection, cast(Model, bench.embedder_of(collection))


def note_changes(bench: Workbench, name: str, count: int) -> None:
    """Record a write for the log. The collection may have been dropped since, but the write was answered."""
    seconds = 0.0
    with suppress(StoreError):
        seconds = bench.collection(name).statistics().commit_seconds
    note_change(count, seconds)
