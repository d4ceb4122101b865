"""Add uploaded images to a collection: the embedding is awaited, threads only decode and write.

    ingest = Ingest(settings.decode_threads)
    errors = await ingest.add(request, bench, "photos", AddRequest([...]))

It has separate threads, so that requests that only read never wait for decoding or for the disk.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import cast

from anyio import CapacityLimiter, to_thread
from fastapi import Request

from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.errors import ImageError
from nnclr_hub.workbench import AddRequest, Ingestion, Workbench

from .models import Model
from .responses import while_connected

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
        ingestion = await to_thread.run_sync(bench.ingestion, name, images, limiter=self.writers)
        while (embedder := await to_thread.run_sync(ingestion.store, limiter=self.writers)) is not None:
            await while_connected(request, self._prepare(ingestion, embedder))
        return ingestion.errors

    async def _prepare(self, ingestion: Ingestion, embedder: Embedder) -> None:
        """Embed and decode the images. The engine comes first, because it may refuse the request."""
        left = [index for index, error in enumerate(ingestion.errors) if error is None]
        vectors = await cast(Model, embedder).embed_each_async([ingestion.images[index].image for index in left])
        ingestion.set_vectors(embedder, left, vectors)
        read = partial(ingestion.read, embedder=embedder, with_image=False)
        unread = [index for index in left if ingestion.errors[index] is None and not ingestion.is_read(index)]
        await asyncio.gather(*(to_thread.run_sync(read, index, limiter=self._decoders) for index in unread))
