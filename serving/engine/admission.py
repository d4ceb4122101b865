"""Admission: how much may be in progress at once.

A request gets permits for all of its images and bytes, or none. Requests that held half of their permits could wait
for each other for ever.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
from PIL import Image
from prometheus_client import Gauge

from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.errors import NotReady, Overloaded, RequestTooLarge

from ..telemetry import Metrics

RETRY_S = 1.0  # clients that are refused again wait longer by themselves


class Admission:
    """Grants and takes back permits.

    Args:
        images: images in progress at once, or whatever else `what` names.
        size: bytes of them, before decoding.
        metrics: counts refusals.
        gauges: of what is in progress, and of its bytes; None: those of images.
    """

    def __init__(
        self,
        images: int,
        size: int,
        metrics: Metrics,
        what: str = "images",
        gauges: tuple[Gauge, Gauge] | None = None,
    ) -> None:
        self.images = self._bytes = 0  # in progress
        self._max_images, self._max_bytes = images, size
        self._metrics, self._what = metrics, what
        self._gauge, self._bytes_gauge = gauges or (metrics.images_in_work, metrics.bytes_in_work)
        self._changed = threading.Condition()
        self._closed = False

    def enter(self, images: int, size: int, *, background: bool = False) -> None:
        """Take permits.

        Args:
            background: leave half of all permits to requests; the caller tries again later, or sends fewer images. An
                image that needs more alone is taken while no request is in progress.

        Raises:
            RequestTooLarge: the request needs more permits than exist, so a retry would not help.
            Overloaded: too much is in progress.
            NotReady: the server is shutting down.
        """
        with self._changed:
            if self._closed:
                raise shutting_down()
            part = 2 if background and (images > 1 or self.images) else 1
            max_images, max_bytes = self._max_images // part, self._max_bytes // part
            if (images > 1 and (images > max_images or size > max_bytes)) or size > self._max_bytes:
                raise RequestTooLarge(
                    f"The request has {images} {self._what} and {size:,} bytes; the limit is {max_images} "
                    f"{self._what} and {max_bytes:,} bytes."
                )
            if self.images + images > max_images or self._bytes + size > max_bytes:
                self._metrics.refused.labels("overloaded").inc(not background)
                raise Overloaded("The server is overloaded; try again in a moment.", RETRY_S)
            self._change(images, size)

    def leave(self, images: int, size: int) -> None:
        """Return permits."""
        with self._changed:
            self._change(-images, -size)
            self._changed.notify_all()

    def _change(self, images: int, size: int) -> None:
        self.images += images
        self._bytes += size
        self._gauge.inc(images)
        self._bytes_gauge.inc(size)

    def close(self) -> None:
        """Refuse all new requests."""
        with self._changed:
            self._closed = True

    def wait_until_empty(self, timeout: float) -> bool:
        """Return whether all permits came back within the timeout, in seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.images, timeout)


def shutting_down() -> NotReady:
    """Return the error of a request that the shutdown of the engine overtook."""
    return NotReady("The server is shutting down; try another server, or try again later.")


def size_of(image: ImageLike) -> int:
    """Return the bytes of an image before decoding; 0 for a missing file, on which decoding reports the error."""
    if isinstance(image, bytes):
        return len(image)
    if isinstance(image, np.ndarray):
        return image.nbytes
    if isinstance(image, Image.Image):
        return image.width * image.height * len(image.getbands())
    if not isinstance(image, str | Path):
        return 0
    try:
        return Path(image).stat().st_size
    except OSError:
        return 0
