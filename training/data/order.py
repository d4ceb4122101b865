"""The order of the images: which rows of the set a step uses, as a pure function of seed and step.

No process holds a list of all images. A permutation is computed element by element, so a run continues at any step,
with any number of processes, and the memory does not grow with the set.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

ROUNDS = 8
WINDOW_BYTES = 1 << 30  # of the archives that are read at random at one time
REPLACEMENTS = 20  # images tried in place of one that cannot be read


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
    """Hash 64-bit integers (the finalizer of SplitMix64)."""
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
        self._batch_size, self._seed = batch_size, seed
        self.steps_per_epoch = self._images // batch_size
        self.folders = np.asarray(folders)
        self._blocks, self._window = blocks, window
        self._windows = lru_cache(2)(self._windows_of)

    def rows(self, step: int) -> np.ndarray:
        """Return the rows of a step, counted from 0 over all epochs: (B,) int64."""
        epoch, place = divmod(step, self.steps_per_epoch)
        positions = np.arange(place * self._batch_size, (place + 1) * self._batch_size)
        if self._blocks is None:
            return Permutation(self._images, self._seed, epoch)(positions)
        return self._in_windows(epoch, positions)

    def replacement(self, row: int, attempt: int) -> int:
        """Return the row that replaces one that cannot be read; the same in every run with this seed."""
        return seed_of(self._seed, row, attempt) % self._images

    # ---- windows of archives

    def _windows_of(self, epoch: int) -> tuple[np.ndarray, ...]:
        """Return the permuted blocks, the position after each, and the position at which each window starts."""
        assert self._blocks is not None
        blocks = Permutation(len(self._blocks), self._seed, epoch, 1)(np.arange(len(self._blocks)))
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
            shuffled = Permutation(size, self._seed, epoch, 2, int(one))(positions[inside] - windows[one])
            positions[inside] = windows[one] + shuffled
        place = np.searchsorted(ends, positions, side="right")
        within = positions - (ends[place] - self._blocks[blocks[place]])
        return (np.cumsum(self._blocks) - self._blocks)[blocks[place]] + within
