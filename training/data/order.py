"""The order of an epoch: which images make up each batch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def seed_of(*numbers: int) -> int:
    """One seed out of several numbers, such as seed, step and rank; well spread, unlike their sum."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def epoch_order(origin: np.ndarray, batch_size: int, seed: int, epoch: int, one_folder: float = 0.0) -> Tensor:
    """A permutation that depends on seed and epoch alone, so that a resumed epoch goes on in the same order.

    Args:
        origin: (N,) int64, which data folder each image comes from.
        batch_size: B; batch i is the rows i B to (i + 1) B of the result.
        seed, epoch: of the permutation.
        one_folder: share of a batch that comes from one folder, in turn as large as the folders are; the
            rest is drawn from all. Sets that differ in sharpness or compression are then no easy negatives.

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
        whole = len(rows) // batch_size  # batches that this folder may call its own
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
