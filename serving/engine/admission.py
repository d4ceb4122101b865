"""Admission: how many images and bytes may be in progress at once.

A request gets permits for all of its images and bytes, or none. Requests that held half of their permits could wait
for each other for ever.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
from PIL import Image
from prometheus_client import Gauge

from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.errors import NotReady, Overloaded, RequestTooLarge

from ..telemetry import Metrics

MAX_WAIT_S = 60.0


class Admission:
    """Grants and takes back permits.

    Args:
        images: images in progress at once, or whatever else `what` names.
        size: bytes of them, before decoding.
        metrics: counts refusals.
        what: has the permits, for messages.
        in_work: gauges of what is in progress, and of its bytes; None: those of images.
    """

    def __init__(
        self,
        images: int,
        size: int,
        metrics: Metrics,
        what: str = "images",
        in_work: tuple[Gauge, Gauge] | None = None,
    ) -> None:
        self._max_images, self._max_bytes = images, size
        self._metrics, self._what = metrics, what
        self._in_work, self._bytes_in_work = in_work or (metrics.images_in_work, metrics.bytes_in_work)
        self._images = self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._throughput = _Throughput()

    @property
    def images(self) -> int:
        """Images in progress."""
        return self._images

    def enter(self, images: int, size: int) -> None:
        """Take permits.

        Raises:
            RequestTooLarge: the request needs more permits than exist, so a retry would not help.
            Overloaded: too much is in progress; `retry_after` estimates when there is space.
            NotReady: the server is shutting down.
        """
        with self._changed:
            if self._closed:
                raise shutting_down()
            if images > self._max_images or size > self._max_bytes:
                raise RequestTooLarge(
                    f"The request has {images} {self._what} and {size:,} bytes; the limit is {self._max_images} "
                    f"{self._what} and {self._max_bytes:,} bytes."
                )
            excess, excess_bytes = self._images + images - self._max_images, self._bytes + size - self._max_bytes
            if excess > 0 or excess_bytes > 0:
                wait = min(MAX_WAIT_S, self._throughput.seconds_for(excess, excess_bytes))
                self._metrics.refused.labels("overloaded").inc()
                raise Overloaded(f"The server is overloaded; try again in {max(1, round(wait))} s.", wait)
            if not self._images:
                # after an idle time the old throughput says nothing, and its clock must not count the idle time
                self._throughput = _Throughput()
            self._images += images
            self._bytes += size
        self._in_work.inc(images)
        self._bytes_in_work.inc(size)

    def leave(self, images: int, size: int) -> None:
        """Return permits."""
        with self._changed:
            self._images -= images
            self._bytes -= size
            self._throughput.add(images, size)
            self._changed.notify_all()
        self._in_work.dec(images)
        self._bytes_in_work.dec(size)

    def close(self) -> None:
        """Refuse all new requests."""
        with self._changed:
            self._closed = True

    def wait_until_empty(self, timeout: float) -> bool:
        """Return whether all permits came back within the timeout, in seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._images, timeout)


class _Throughput:
    """How fast work completes, over the last one to two minutes."""

    WINDOW_S = 60.0

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._images = self._bytes = 0.0

    def add(self, images: int, size: int) -> None:
        self._images += images
        self._bytes += size
        now = time.monotonic()
        if now - self._since > 2 * self.WINDOW_S:  # forget the older half, so that a slow start does not count for ever
            self._since = now - self.WINDOW_S
            self._images, self._bytes = self._images / 2, self._bytes / 2

    def seconds_for(self, images: int, size: int) -> float:
        """Return the seconds until so much has completed; 1 if nothing has completed yet."""
        if not self._images:
            return 1.0
        elapsed = time.monotonic() - self._since
        needed = max(images / self._images, size / self._bytes if self._bytes else 0.0)
        return max(0.1, needed * elapsed)


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
