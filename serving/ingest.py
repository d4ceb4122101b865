"""Uploaded images into a collection: the engine is awaited, and threads only decode and write.

    ingest = Ingest(settings.decode_threads)
    errors = await ingest.add(request, bench, "photos", images)

The threads are its own: whoever only reads never waits for one that decodes, or that waits for the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from anyio import CapacityLimiter, to_thread
from fastapi import Request

from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.errors import ImageError
from nnclr_hub.workbench import Ingestion, NewImage, Workbench

from .disconnect import while_connected
from .models import Model

STORING = 8  # uploads that write, or wait for a model, at once


class Ingest:
    """See the module.

    Args:
        threads: that decode, for thumbnails and hashes; each holds one image, of up to 120 MB.
    """

    def __init__(self, threads: int) -> None:
        self._reading = CapacityLimiter(threads)
        self._storing = CapacityLimiter(STORING)

    async def add(
        self, request: Request, bench: Workbench, name: str, images: Sequence[NewImage]
    ) -> list[ImageError | None]:
        """`Workbench.add_images`; what is not yet being written is dropped if the client goes away.

        Raises:
            CollectionNotFound, FingerprintMismatch, RequestTooLarge, Overloaded, NotReady, DeadlineExceeded.
            ClientDisconnect: the client has gone.
        """
        ingestion = await to_thread.run_sync(bench.ingestion, name, images, limiter=self._storing)
        while (embedder := await to_thread.run_sync(ingestion.store, limiter=self._storing)) is not None:
            await while_connected(request, self._prepare(ingestion, embedder))
        return ingestion.errors

    async def _prepare(self, ingestion: Ingestion, embedder: Embedder) -> None:
        """Embeds and decodes: the engine, which admits or refuses, comes first."""
        left = [index for index, error in enumerate(ingestion.errors) if error is None]
        vectors = await cast(Model, embedder).embed_each_async([ingestion.images[index].image for index in left])
        ingestion.set_vectors(embedder, left, vectors)
        unread = [index for index in left if ingestion.errors[index] is None and not ingestion.is_read(index)]
        await asyncio.gather(
            *(to_thread.run_sync(self._read, ingestion, index, limiter=self._reading) for index in unread)
        )

    def _read(self, ingestion: Ingestion, index: int) -> None:
        ingestion.read(index)  # the image itself is let go of at once
