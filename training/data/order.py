"""The order of an epoch: the images of each batch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def seed_of(*numbers: int) -> int:
    """Combine several numbers, such as seed, step and rank, into one well-distributed seed, unlike their sum."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def epoch_order(origin: np.ndarray, batch_size: int, seed: int, epoch: int, one_folder: float = 0.0) -> Tensor:
    """Return a permutation that depends only on seed and epoch, so that a resumed epoch continues in the same order.

    Args:
        origin: (N,) int64, the data folder of each image.
        batch_size: B; batch i is the rows i B to (i + 1) B of the result.
        seed, epoch: of the permutation.
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
