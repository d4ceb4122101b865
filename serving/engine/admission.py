"""Admission: how much may be in work at once.

A request gets permits for all its images and bytes, or none: one that held half of them could wait for ever
for the other half.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
from PIL import Image

from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.errors import NotReady, Overloaded, RequestTooLarge

from ..telemetry import Metrics

LONGEST_WAIT_S = 60.0


class Admission:
    """See the module.

    Args:
        images: images in work at once.
        size: bytes of them, as they came.
    """

    def __init__(self, images: int, size: int, metrics: Metrics) -> None:
        self._most, self._most_bytes = images, size
        self._metrics = metrics
        self._images = self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._pace = _Pace()

    @property
    def images(self) -> int:
        """Images in work."""
        return self._images

    def enter(self, images: int, size: int) -> None:
        """Takes permits.

        Raises:
            RequestTooLarge: more than there are permits at all, so that waiting would be in vain.
            Overloaded: too much is in work; `retry_after` is when there will be room at the present pace.
            NotReady: the server is shutting down.
        """
        with self._changed:
            if self._closed:
                raise NotReady("The server is shutting down: try another one, or later.")
            if images > self._most or size > self._most_bytes:
                raise RequestTooLarge(
                    f"{images} images of {size:,} bytes at once are too many: "
                    f"send at most {self._most}, and {self._most_bytes:,} bytes."
                )
            over, over_bytes = self._images + images - self._most, self._bytes + size - self._most_bytes
            if over > 0 or over_bytes > 0:
                wait = min(LONGEST_WAIT_S, self._pace.seconds_for(over, over_bytes))
                self._metrics.refused.labels("overloaded").inc()
                raise Overloaded(
                    f"The server has as much in work as it takes: try again in {max(1, round(wait))} s.", wait
                )
            if not self._images:
                self._pace = _Pace()
            self._images += images
            self._bytes += size
        self._metrics.images_in_work.inc(images)
        self._metrics.bytes_in_work.inc(size)

    def leave(self, images: int, size: int) -> None:
        """Gives permits back."""
        with self._changed:
            self._images -= images
            self._bytes -= size
            self._pace.done(images, size)
            self._changed.notify_all()
        self._metrics.images_in_work.dec(images)
        self._metrics.bytes_in_work.dec(size)

    def close(self) -> None:
        """Lets nobody in any more."""
        with self._changed:
            self._closed = True

    def wait_until_empty(self, timeout: float) -> bool:
        """Whether all have left within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._images, timeout)


class _Pace:
    """How fast work leaves while there is some: of the last minute or two."""

    WINDOW_S = 60.0

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._images = self._bytes = 0.0

    def done(self, images: int, size: int) -> None:
        self._images += images
        self._bytes += size
        now = time.monotonic()
        if now - self._since > 2 * self.WINDOW_S:  # the older half fades, so that a slow start is forgotten
            self._since = now - self.WINDOW_S
            self._images, self._bytes = self._images / 2, self._bytes / 2

    def seconds_for(self, images: int, size: int) -> float:
        """Seconds until so much has left; 1 where nothing has been seen to leave yet."""
        if not self._images:
            return 1.0
        elapsed = time.monotonic() - self._since
        needed = max(images / self._images, size / self._bytes if self._bytes else 0.0)
        return max(0.1, needed * elapsed)


def size_of(image: ImageLike) -> int:
    """Bytes of an image as it came, 0 for a file that cannot be looked at: decoding will say why."""
    if isinstance(image, bytes):
        return len(image)
    if isinstance(image, np.ndarray):
        return image.nbytes
    if isinstance(image, Image.Image):
        return image.width * image.height * len(image.getbands())
    try:
        return Path(image).stat().st_size
    except OSError:
        return 0
