"""Q: the support set, a first-in-first-out queue of projections ("Support set", section 3.2).

Q = SupportSet(size=98_304, dim=256)
found = Q.lookup(z1, ids=ids)           # before the optimizer step
Q.enqueue(z1.detach(), ids=ids)         # after it: one view only
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnclr_hub.method.neighbours import Neighbours, nearest

UNKNOWN = -1  # the id of a row that never held a sample, and of a sample that came without one


class SupportSet(nn.Module):
    """A ring of the last `size` projections, initialised at random; saved in checkpoints.

    A sample that is looked up never gets its own embedding of an earlier epoch back (`mask_own`).
    Where Q is much smaller than the data this changes nothing; where Q spans an epoch, it is what
    keeps the neighbour from being the picture itself. It needs `ids`.

    Args:
        size: M, number of rows.
        dim: D, length of a row.
        mask_own: pass over rows that carry the query's id.
        seed: of the random initial rows.
    """

    queue: Tensor  # (M, D) float32, unit rows
    ids: Tensor  # (M,) int64, which sample a row came from
    labels: Tensor  # (M,) int64, its class, for measuring alone
    enqueued_at: Tensor  # (M,) int64, the number of the enqueue that wrote it
    pointer: Tensor  # () int64, the row to overwrite next
    enqueues: Tensor  # () int64, how many there were

    def __init__(self, size: int, dim: int, *, mask_own: bool = True, seed: int = 0) -> None:
        super().__init__()
        self.mask_own = mask_own
        start = torch.randn(size, dim, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("queue", F.normalize(start, dim=1))
        self.register_buffer("ids", torch.full((size,), UNKNOWN))
        self.register_buffer("labels", torch.full((size,), UNKNOWN))
        self.register_buffer("enqueued_at", torch.full((size,), UNKNOWN))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self.register_buffer("enqueues", torch.zeros((), dtype=torch.int64))

    @property
    def size(self) -> int:
        return len(self.queue)

    @torch.no_grad()
    def lookup(self, z: Tensor, ids: Tensor | None = None, labels: Tensor | None = None) -> Neighbours:
        """NN(z, Q) for each row (eq. 4), in float32.

        Args:
            z: (B, D) float projections, not normalised.
            ids: (B,) int64 sample numbers >= 0, for `mask_own`.
            labels: unused by the nearest neighbour.
        """
        del labels
        with torch.autocast(z.device.type, enabled=False):
            z = F.normalize(z.float(), dim=1)
            similarity, index = nearest(z, self.queue)
            own = torch.zeros(len(z), dtype=torch.bool, device=z.device)
            if ids is not None:
                own = self.ids[index] == ids
                if self.mask_own:
                    similarity, index = self._pass_over_own(z, ids, own, similarity, index)
        return Neighbours(self.queue[index], index, similarity, own)

    def _pass_over_own(
        self, z: Tensor, ids: Tensor, own: Tensor, similarity: Tensor, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Looks again, without their own rows, for the queries that found themselves."""
        rows = own.nonzero().squeeze(1)
        if not len(rows):
            return similarity, index
        second = nearest(z[rows], self.queue, (ids[rows], self.ids))
        return similarity.index_copy(0, rows, second[0]), index.index_copy(0, rows, second[1])

    @torch.no_grad()
    def enqueue(self, z: Tensor, ids: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Writes the batch over the oldest rows; any batch size against any queue size.

        Args:
            z: (B, D) float projections of one view, not normalised. Of a batch larger than the queue
                the last M rows stay, as if they had been enqueued one by one.
            ids: (B,) int64 sample numbers, or None: unknown.
            labels: (B,) int64 classes, or None: unknown.
        """
        batch, size = len(z), self.size
        kept = slice(max(0, batch - size), batch)
        place = (self.pointer + torch.arange(batch, device=z.device)[kept]) % size
        self.queue[place] = F.normalize(z[kept].float(), dim=1)
        self.ids[place] = UNKNOWN if ids is None else ids[kept]
        self.labels[place] = UNKNOWN if labels is None else labels[kept]
        self.enqueued_at[place] = self.enqueues
        self.pointer.copy_((self.pointer + batch) % size)
        self.enqueues += 1

    def age(self, index: Tensor) -> Tensor:
        """Enqueues since the rows were written, (B,) int64; rows of the random start count from before the first."""
        return self.enqueues - self.enqueued_at[index]

    def fill(self) -> Tensor:
        """Share of rows that hold a real embedding, a scalar in [0, 1]."""
        return (self.enqueued_at != UNKNOWN).float().mean()
