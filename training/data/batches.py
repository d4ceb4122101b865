"""The images of each step, on the device.

A pack that fits into device memory is kept there (`device`). A larger pack stays memory-mapped (`host`): a thread
gathers the next step's images into pinned memory while the device processes the present step, and the copy overlaps
with it.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .image_pack import ImagePack

MEMORY_SHARE = 0.5  # share of the free device memory that a pack may use


@dataclass(frozen=True)
class Batch:
    """One rank's part of a step's batch.

    images: (B, S, S, 3) uint8 on the device.
    aspect: (B,) float32 on the CPU.
    ids: (B,) int64 on the device, positions in the pack.
    labels: (B,) int64 on the device, -1 where unknown.
    """

    images: Tensor
    aspect: Tensor
    ids: Tensor
    labels: Tensor

    def part(self, start: int, end: int) -> Batch:
        """Return the images from `start` to `end`."""
        return Batch(*(one[start:end] for one in (self.images, self.aspect, self.ids, self.labels)))


class Batches:
    """Batches of a pack by step number, so that a resumed run continues with the very next one.

    Args:
        origin: (N,) int64, the data folder of each image.
        batch_size: images per step over all ranks.
        one_folder: see `epoch_order`.
        residency: "device", "host", or "auto": on the device if it takes at most half of the free memory.
        rank, world: this rank gets part number `rank` of `world` equal parts of each batch.
    """

    def __init__(
        self,
        pack: ImagePack,
        labels: np.ndarray,
        origin: np.ndarray,
        *,
        batch_size: int,
        seed: int,
        where: torch.device,
        one_folder: float = 0.0,
        residency: str = "auto",
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.steps_per_epoch = len(pack) // batch_size
        self._pixels = torch.from_numpy(pack.pixels)
        self._aspect = torch.from_numpy(pack.aspect)
        self._labels = torch.from_numpy(labels)
        self._origin = origin
        self._batch_size, self._seed, self._one_folder = batch_size, seed, one_folder
        self._where = where
        self._part = slice(rank * batch_size // world, (rank + 1) * batch_size // world)
        self._order: tuple[int, Tensor] | None = None
        self.resident = residency == "device" or (residency == "auto" and self._fits()) or where.type == "cpu"
        if self.resident:
            self._pixels = self._pixels.to(where)
        self._thread = None if self.resident else ThreadPoolExecutor(1, "prefetch")
        self._next: tuple[int, Future[Tensor]] | None = None

    def _fits(self) -> bool:
        if self._where.type != "cuda":
            return True  # memory-mapped: the page cache holds as much as fits
        return self._pixels.numel() < MEMORY_SHARE * torch.cuda.mem_get_info(self._where)[0]

    def at(self, step: int) -> Batch:
        """Return the batch of a step, counted from 0 over all epochs."""
        rows = self._rows(step)
        return self._batch(rows, None if self.resident else self._prefetched(step, rows))

    def of(self, rows: Tensor) -> Batch:
        """Return the images at `rows`, (B,) int64 on the CPU, independently of the step."""
        return self._batch(rows, None if self.resident else self._gather(rows).to(self._where, non_blocking=True))

    def _batch(self, rows: Tensor, images: Tensor | None) -> Batch:
        if images is None:
            images = self._pixels[rows.to(self._where, non_blocking=True)]
        return Batch(
            images,
            self._aspect[rows],
            rows.to(self._where, non_blocking=True),
            self._labels[rows].to(self._where, non_blocking=True),
        )

    def __len__(self) -> int:
        return len(self._pixels)

    def close(self) -> None:
        """Stop the prefetching thread."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _rows(self, step: int) -> Tensor:
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            order = epoch_order(self._origin, self._batch_size, self._seed, epoch, self._one_folder)
            self._order = epoch, order
        return self._order[1][place * self._batch_size : (place + 1) * self._batch_size][self._part]

    def _prefetched(self, step: int, rows: Tensor) -> Tensor:
        """Return this step's images, which the thread has gathered if the previous call was for the previous step."""
        assert self._thread is not None
        ready = self._next is not None and self._next[0] == step
        images = self._next[1].result() if ready and self._next else self._gather(rows)
        self._next = step + 1, self._thread.submit(self._gather, self._rows(step + 1))
        return images.to(self._where, non_blocking=True)

    def _gather(self, rows: Tensor) -> Tensor:
        images = self._pixels[rows]
        return images.pin_memory() if self._where.type == "cuda" else images


# ------------------------------------------------------------------------------ order of an epoch


def seed_of(*numbers: int) -> int:
    """Combine several numbers, such as seed, step and rank, into one well-distributed seed, unlike their sum."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def epoch_order(origin: np.ndarray, batch_size: int, seed: int, epoch: int, one_folder: float = 0.0) -> Tensor:
    """Return a permutation that depends only on seed and epoch, so that a resumed epoch continues in the same order.

    Args:
        origin: (N,) int64, the data folder of each image.
        batch_size: B; batch i is the rows i B to (i + 1) B of the result.
        one_folder: share of a batch that comes from one folder; larger folders get more batches. The rest is sampled
            from all folders. Sets that differ in sharpness or compression are then not easy negatives.

    Returns:
        (N,) int64; with `one_folder` the last, incomplete batch is left out.
    """
    draws = torch.Generator().manual_seed(seed_of(seed, epoch))
    order = torch.randperm(len(origin), generator=draws)
    own = round(one_folder * batch_size)
    if not own:
        return order
    folder = torch.from_numpy(origin)[order]
    blocks, rest = [], []
    for number in folder.unique():
        rows = order[folder == number]
        whole = len(rows) // batch_size  # number of batches that this folder provides
        blocks += list(rows[: whole * own].view(whole, own))
        rest.append(rows[whole * own :])
    common = torch.cat(rest)
    common = common[torch.randperm(len(common), generator=draws)]
    batches, start = [], 0
    for number in range(len(origin) // batch_size):
        head = blocks[number] if number < len(blocks) else common[:0]
        need = batch_size - len(head)
        batches.append(torch.cat([head, common[start : start + need]]))
        start += need
    turn = torch.randperm(len(batches), generator=draws)
    return torch.cat([batches[i] for i in turn.tolist()])
