"""Originals: views cut from the original images at each step, by several decoding processes.

A thread per process hands it a few images at a time and copies the views into the batch. Several
steps are in work ahead of the one that trains. An image that cannot be read is logged and replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nnclr_hub.errors import InvalidRequest, NNCLRHubError, TrainingError
from nnclr_hub.images.byte_cache import ByteCache
from nnclr_hub.images.pool import DecodingLimits, DecodingPool
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import TABLE, TAR, Source
from nnclr_hub.remote_files import RemoteBytes

from .augment import FLIP, CutViews
from .cutting import CROP_NUMBERS, CutRequest, cut_views
from .image_index import ImageIndex
from .views import View

log = logging.getLogger(__name__)

MOST_AT_ONCE = 16  # images of a message to a decoding process
REQUESTS = 32  # at a time to addresses
AHEAD_BYTES = 256 << 20  # bytes of the batches of the steps in work, if there are more than two
MOST_AHEAD = 8
WINDOW_BYTES = 1 << 30  # bytes of the archives that are read at random at one time
REPLACEMENTS = 20  # images tried in place of one that cannot be read
SEGMENT = 8 << 20  # bytes of an archive at an address that are read by one request


def steps_ahead(step_bytes: int) -> int:
    """Return how many steps to decode ahead, 2 to 8: a longer queue waits less, because decoding times vary."""
    return max(2, min(MOST_AHEAD, AHEAD_BYTES // step_bytes))


class Originals:
    """The images of a set, decoded whenever they are needed.

    Args:
        images: the set.
        workers: decoding processes.
        replacement: returns the row to read in place of (row, attempt).
        reading: the page and the channels to read of each file.
        channels: C; files with another number cannot be read.
        where: the device of the views.
        ahead: steps in work ahead of the one that trains.

    Attributes:
        unreadable: {row: reason} of the images that this process could not read.
    """

    device_bytes = 0

    def __init__(
        self,
        images: ImageIndex,
        *,
        workers: int,
        replacement: Callable[[int, int], int],
        reading: ImageReading = PLAIN,
        channels: int = 3,
        where: torch.device,
        ahead: int = 2,
    ) -> None:
        self.unreadable: dict[int, str] = {}
        self.ahead = ahead
        self._images, self._replacement = images, replacement
        self._form, self._where, self._workers = (reading, channels), where, workers
        self._pool = DecodingPool(workers, DecodingLimits.from_environment())
        # requests to an address take long and no CPU time
        self._threads = ThreadPoolExecutor(workers if images.is_local else max(workers, REQUESTS), "decode")
        self._segments = ByteCache(2 * WINDOW_BYTES)

    def __len__(self) -> int:
        return len(self._images)

    def fetch(
        self, rows: np.ndarray, views: Sequence[View], numbers: Tensor
    ) -> Callable[[], tuple[CutViews, np.ndarray]]:
        """Begin to cut the views of images; the result waits for them.

        Args:
            rows: (B,) int64.
            numbers: (V, B, NUMBERS), see `sample_numbers`.

        Returns:
            A function that returns the views, and the rows (B,) of the images that were read.
        """
        views = [replace(view, operation=None) for view in views]  # processes cannot get a function of a plug-in
        own = numbers[:, :, [*range(CROP_NUMBERS), FLIP]].transpose(0, 1).numpy()  # (B, V, CROP_NUMBERS + 1)
        pinned = self._where.type == "cuda"
        shape = (len(rows), self._form[1])
        crops = [
            torch.empty((shape[0], one.size, one.size, shape[1]), dtype=torch.uint8, pin_memory=pinned) for one in views
        ]
        read, sizes = rows.copy(), np.zeros((len(rows), 2), np.int64)
        arrays = [crop.numpy() for crop in crops]
        size = max(1, min(MOST_AT_ONCE, -(-len(rows) // (4 * self._workers))))
        tasks = [
            self._threads.submit(self._cut, range(start, min(start + size, len(rows))), read, own, views, arrays, sizes)
            for start in range(0, len(rows), size)
        ]

        def wait() -> tuple[CutViews, np.ndarray]:
            for task in tasks:
                task.result()
            return CutViews(tuple(crop.to(self._where, non_blocking=True) for crop in crops), sizes), read

        return wait

    def close(self) -> None:
        """End the threads and the decoding processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._pool.close()
        self._threads.shutdown()

    def _cut(
        self,
        slots: Sequence[int],
        rows: np.ndarray,
        numbers: np.ndarray,
        views: Sequence[View],
        crops: Sequence[np.ndarray],
        sizes: np.ndarray,
    ) -> None:
        """Cut the views at some slots of a batch into `crops`; write into `rows` which images were read."""

        wanted, failed = {slot: int(rows[slot]) for slot in slots}, dict[int, str]()
        for attempt in range(REPLACEMENTS + 1):
            requests = []
            failed.clear()
            for slot, row in wanted.items():
                try:
                    requests.append(CutRequest(self._source(row), slot, numbers[slot]))
                except (NNCLRHubError, OSError) as error:
                    failed[slot] = _reason(error)
            results = self._pool.run_each(cut_views, requests, views, *self._form)
            for request, result in zip(requests, results, strict=True):
                if isinstance(result, Exception):
                    failed[request.slot] = _reason(result)
                    continue
                sizes[request.slot] = result[:2]
                for crop, view in zip(crops, result[2:], strict=True):
                    crop[request.slot] = np.asarray(view).reshape(crop.shape[1:])
            for slot in set(wanted) - set(failed):
                rows[slot] = wanted[slot]
            if not failed:
                return
            for slot, reason in failed.items():
                self._report(wanted[slot], reason)
            wanted = {slot: self._replacement(wanted[slot], attempt) for slot in failed}
        slot, reason = next(iter(failed.items()))
        raise TrainingError(
            f"{REPLACEMENTS + 1} images one after the other cannot be read, the last of them "
            f"{self._images[wanted.get(slot, int(rows[slot]))]}: {reason} Check the images, then continue with "
            "--resume."
        )

    def _source(self, row: int) -> str | bytes | Source:
        stored = self._images[row]
        if isinstance(stored, Path):
            return str(stored)
        place = stored.place
        if place.is_local and place.archive != TABLE:
            return stored
        if stored.offset is None or place.archive != TAR:
            return stored.read()
        return self._read(place.absolute, stored.offset, stored.offset + stored.size)

    def _read(self, address: str, start: int, end: int) -> bytes:
        numbers = range(start // SEGMENT, -(-end // SEGMENT))
        parts = [
            self._segments.get((address, n), RemoteBytes(address, n * SEGMENT, SEGMENT).read, len) for n in numbers
        ]
        return b"".join(parts)[start - numbers[0] * SEGMENT : end - numbers[0] * SEGMENT]

    def _report(self, row: int, reason: str) -> None:
        if row not in self.unreadable:
            self.unreadable[row] = reason
            log.warning("%s is replaced by another image: %s", str(self._images[row]), reason)


def _reason(error: Exception) -> str:
    """Return why an image cannot be read; an archive that changed, or an error of this program, ends the run."""
    if isinstance(error, InvalidRequest) or not isinstance(error, NNCLRHubError | OSError | RuntimeError):
        raise error
    return str(error)
