"""The images of each step, on the device, and their order.

The order is a pure function of seed and step: which rows of the set a step uses. No process holds a list of all images.
A permutation is computed element by element, so a run continues at any step, with any number of processes, and the
memory does not grow with the set.

The views of a step are cut either from a pack of decoded copies, or from the originals by decoding processes. Both are
a pure function of seed and step, and each process gets its rows of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Generator, Tensor

from .augment import NUMBERS, Pixels, sample_numbers
from .image_pack import PackedPixels
from .originals import Originals
from .views import View

Views = Callable[[int], Sequence[View]]  # from the number of a step
PixelSource = PackedPixels | Originals
ROUNDS = 8  # in a permutation
SAMPLED = 1000  # images of the statistics
LEAST_STD = 0.01  # for an empty channel
# the whole image, squashed to a square
WHOLE = View(size=64, scale=(1.0, 1.0), ratio=(1e-6, 1e6), flip=0.0, jitter=0.0, gray=0.0, blur=0.0)


# ------------------------------------------------------------------------------ order


def seed_of(*numbers: int) -> int:
    """Combine several numbers, such as seed and step, into one well-distributed seed, unlike their sum."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


class Permutation:
    """A pseudo-random permutation of 0 to n - 1 that is computed element by element.

    It is a Feistel cipher over the next even power of two, applied again to results that are not below n.
    """

    def __init__(self, n: int, *key: int) -> None:
        self.n = n
        self._half = np.uint64(max(1, -(-max(1, n - 1).bit_length() // 2)))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._keys = np.random.SeedSequence((*key, n)).generate_state(ROUNDS, np.uint64)

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Return the elements at positions (B,) int64 in [0, n)."""
        x = self._encrypted(np.asarray(positions).astype(np.uint64))
        while (outside := x >= self.n).any():
            x[outside] = self._encrypted(x[outside])
        return x.astype(np.int64)

    def _encrypted(self, x: np.ndarray) -> np.ndarray:
        left, right = x >> self._half, x & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right ^ key) & self._mask)
        return (left << self._half) | right


def _mixed(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Order:
    """The rows of each step; each epoch is a permutation of all images, without the last, incomplete batch.

    Args:
        folders: (F,) int64, number of images of each data folder; the rows of a folder follow one another.
        batch_size: B, images per step over all processes.
        blocks: sizes of the parts of the set that are read together, such as archives, in order. Their order is
            permuted, and images within a window of several of them. None: images are permuted over the whole set.
        window: images of a window.
    """

    def __init__(
        self,
        folders: np.ndarray,
        batch_size: int,
        seed: int,
        blocks: np.ndarray | None = None,
        window: int = 0,
    ) -> None:
        self._images = int(np.sum(folders))
        self.batch_size, self.seed = batch_size, seed
        self.steps_per_epoch = self._images // batch_size
        self.folders = np.asarray(folders)
        self._blocks, self._window = blocks, window
        self._windows = lru_cache(2)(self._windows_of)

    def rows(self, step: int) -> np.ndarray:
        """Return the rows of a step, counted from 0 over all epochs: (B,) int64."""
        epoch, place = divmod(step, self.steps_per_epoch)
        positions = np.arange(place * self.batch_size, (place + 1) * self.batch_size)
        if self._blocks is None:
            return Permutation(self._images, self.seed, epoch)(positions)
        return self._in_windows(epoch, positions)

    def replacement(self, row: int, attempt: int) -> int:
        """Return the row that replaces one that cannot be read; the same in every run with this seed."""
        return seed_of(self.seed, row, attempt) % self._images

    # ---- windows of archives

    def _windows_of(self, epoch: int) -> tuple[np.ndarray, ...]:
        """Return the permuted blocks, the position after each, and the position at which each window starts."""
        assert self._blocks is not None
        blocks = Permutation(len(self._blocks), self.seed, epoch, 1)(np.arange(len(self._blocks)))
        ends = np.cumsum(self._blocks[blocks])
        first = ends - self._blocks[blocks]
        number = first // max(1, self._window)
        starts = first[np.flatnonzero(np.diff(number, prepend=-1))]
        return blocks, ends, np.append(starts, self._images)

    def _in_windows(self, epoch: int, positions: np.ndarray) -> np.ndarray:
        assert self._blocks is not None
        blocks, ends, windows = self._windows(epoch)
        number = np.searchsorted(windows, positions, side="right") - 1
        for one in np.unique(number):
            inside = number == one
            size = int(windows[one + 1] - windows[one])
            shuffled = Permutation(size, self.seed, epoch, 2, int(one))(positions[inside] - windows[one])
            positions[inside] = windows[one] + shuffled
        place = np.searchsorted(ends, positions, side="right")
        within = positions - (ends[place] - self._blocks[blocks[place]])
        return (np.cumsum(self._blocks) - self._blocks)[blocks[place]] + within


# ------------------------------------------------------------------------------ batches


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

    pixels: Pixels
    views: Sequence[View]
    numbers: Tensor
    ids: Tensor
    labels: Tensor


class Batches:
    """Batches by step number, so that a resumed run continues with the very next one.

    pixels, labels: as given.
    batch_size, seed, folders: those of the order.
    part: the slice of a batch that this rank has.
    steps: number of steps of the run, which its views may depend on.

    Args:
        pixels: of N images.
        labels: (N,) int64, -1 where unknown.
        order: order of the images.
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
        where: torch.device,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.steps_per_epoch, self.steps = order.steps_per_epoch, 0
        self.pixels, self.labels = pixels, np.asarray(labels, np.int64)
        self._order, self._views, self._where = order, views, where
        self.batch_size, self.seed, self.folders = order.batch_size, order.seed, order.folders
        self.part = slice(rank * order.batch_size // world, (rank + 1) * order.batch_size // world)
        self._begun: dict[int, Callable[[], Batch]] = {}

    def __len__(self) -> int:
        return len(self.pixels)

    def at(self, step: int) -> Batch:
        """Return the batch of a step, counted from 0 over all epochs, and begin the next ones."""
        wanted = range(step, step + 1 + self.pixels.ahead)
        self._begun = {one: self._begun.get(one) or self._fetch(self.draw(one)) for one in wanted}
        return self._begun.pop(step)()

    def of(self, rows: Tensor, views: Sequence[View], seed: int) -> Batch:
        """Return the images at `rows`, (B,) int64 on the CPU, independently of the step."""
        numbers = sample_numbers(len(views), len(rows), Generator().manual_seed(seed))
        return self._fetch(Draw(rows.numpy(), views, numbers))()

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

    def _fetch(self, drawn: Draw) -> Callable[[], Batch]:
        wait = self.pixels.fetch(drawn.rows, drawn.views, drawn.numbers)

        def finish() -> Batch:
            pixels, read = wait()
            ids, labels = (
                torch.from_numpy(one).to(self._where, non_blocking=True) for one in (read, self.labels[read])
            )
            return Batch(pixels, drawn.views, drawn.numbers, ids, labels)

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
