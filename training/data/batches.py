"""The images of each step, on the device.

The views of a step are cut either from a pack of decoded copies, or from the originals by decoding processes. Both are
a pure function of seed and step, and each process gets its rows of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Generator, Tensor

from .augment import NUMBERS, CutViews, StoredImages, sample_numbers
from .order import Order, seed_of
from .side_stream import SideStream
from .views import View

Views = Callable[[int], Sequence[View]]  # of a step
SAMPLED = 1000  # images of the statistics
LEAST_STD = 0.01  # of an empty channel
WHOLE = View(size=64, scale=(1.0, 1.0), ratio=(1e-6, 1e6), flip=0.0)


@dataclass(frozen=True)
class Draw:
    """The images and the random numbers of one rank's part of a step's batch, on the CPU.

    rows: (B,) int64, rows of the set.
    views: to make of each image.
    numbers: (V, B, NUMBERS) float32, random numbers of the views.
    """

    rows: np.ndarray
    views: Sequence[View]
    numbers: Tensor


@dataclass(frozen=True)
class Batch:
    """One rank's part of a step's batch.

    pixels: of B images, on the device.
    views: to make of each image.
    numbers: (V, B, NUMBERS) float32 on the CPU, random numbers of the views.
    ids: (B,) int64 on the device, rows of the set.
    labels: (B,) int64 on the device, -1 where unknown.
    """

    pixels: StoredImages | CutViews
    views: Sequence[View]
    numbers: Tensor
    ids: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, end: int) -> Batch:
        """Return the images from `start` to `end`."""
        rows = slice(start, end)
        return Batch(self.pixels.part(start, end), self.views, self.numbers[:, rows], self.ids[rows], self.labels[rows])


class PixelSource(Protocol):
    """Where the pixels of a set come from: a `PackedPixels`, or the `Originals`.

    ahead: steps that it works on ahead of the one that trains.
    device_bytes: bytes of the memory of a GPU that the pixels of the whole set take.
    unreadable: {row: reason} of the images that could not be read.
    """

    ahead: int
    device_bytes: int
    unreadable: dict[int, str]

    def __len__(self) -> int: ...

    def fetch(
        self, rows: np.ndarray, views: Sequence[View], numbers: Tensor
    ) -> Callable[[], tuple[StoredImages | CutViews, np.ndarray]]:
        """Begin to read the images at rows (B,) for these views; the function that it returns waits for them.

        It returns the pixels on the device, and the rows that were read: those of images that cannot be read differ.
        """
        ...

    def close(self) -> None: ...


class Batches:
    """Batches by step number, so that a resumed run continues with the very next one.

    pixels, labels, batch_size, seed: as given.
    folders: (F,) int64, number of images of each data folder; their rows follow one another.
    part: the slice of a batch that this rank has.
    steps: of the run, which its views may depend on.

    Args:
        pixels: of N images.
        labels: (N,) int64, -1 where unknown.
        order: of the images.
        views: returns the views of a step.
        rank, world: this rank gets part number `rank` of `world` equal parts of each batch.
    """

    def __init__(
        self,
        pixels: PixelSource,
        labels: np.ndarray,
        order: Order,
        *,
        views: Views,
        batch_size: int,
        seed: int,
        where: torch.device,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.steps_per_epoch, self.steps = order.steps_per_epoch, 0
        self.pixels, self.labels = pixels, np.asarray(labels, np.int64)
        self._order = order
        self._views, self._where = views, where
        self.batch_size, self.seed, self.folders = batch_size, seed, order.folders
        self.part = slice(rank * batch_size // world, (rank + 1) * batch_size // world)
        self._begun: dict[int, Callable[[], Batch]] = {}
        self.side = SideStream(where)

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def device_bytes(self) -> int:
        """Bytes of the memory of a GPU that the pixels of the whole set take."""
        return self.pixels.device_bytes

    @property
    def unreadable(self) -> dict[int, str]:
        """{row: reason} of the images that this process could not read."""
        return self.pixels.unreadable

    def at(self, step: int) -> Batch:
        """Return the batch of a step, counted from 0 over all epochs, and begin the next ones.

        Its tensors are on the stream `side`, which hands them over.
        """
        wanted = range(step, step + 1 + self.pixels.ahead)
        self._begun = {one: self._begun.get(one) or self._begin(one) for one in wanted}
        with self.side.used():
            return self._begun.pop(step)()

    def of(self, rows: Tensor, views: Sequence[View], seed: int) -> Batch:
        """Return the images at `rows`, (B,) int64 on the CPU, independently of the step."""
        numbers = sample_numbers(len(views), len(rows), Generator().manual_seed(seed))
        return self._fetch(rows.numpy(), views, numbers)()

    def close(self) -> None:
        """End the threads and processes that read images."""
        self._begun = {}
        self.pixels.close()

    def draw(self, step: int) -> Draw:
        """Return the images and random numbers of a step, which `at` would fetch."""
        views = self._views(step)
        draws = Generator().manual_seed(seed_of(self.seed, step))
        numbers = sample_numbers(len(views), self.batch_size, draws)[:, self.part]
        rows = self._order.rows(step)[self.part]
        return Draw(rows, views, numbers)

    def _begin(self, step: int) -> Callable[[], Batch]:
        drawn = self.draw(step)
        return self._fetch(drawn.rows, drawn.views, drawn.numbers)

    def _fetch(self, rows: np.ndarray, views: Sequence[View], numbers: Tensor) -> Callable[[], Batch]:
        wait = self.pixels.fetch(rows, views, numbers)

        def finish() -> Batch:
            pixels, read = wait()
            ids, labels = (
                torch.from_numpy(one).to(self._where, non_blocking=True) for one in (read, self.labels[read])
            )
            return Batch(pixels, views, numbers, ids, labels)

        return finish


# the classes that a recipe can name; each takes the arguments of Batches. Plug-ins add theirs, which override `draw`
BATCHES: dict[str, type[Batches]] = {"batches": Batches}


def channel_statistics(pixels: PixelSource) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, of values in [0, 1], over at most a thousand images."""
    rows = np.arange(0, len(pixels), -(-len(pixels) // SAMPLED))
    numbers = torch.zeros(1, len(rows), NUMBERS)
    images, _ = pixels.fetch(rows, [WHOLE], numbers)()
    sample = images.crop(0, WHOLE, numbers[0]).double()
    mean, std = sample.mean((0, 2, 3)), sample.std((0, 2, 3), correction=0).clamp(min=LEAST_STD)
    return tuple(mean.round(decimals=4).tolist()), tuple(std.round(decimals=4).tolist())
