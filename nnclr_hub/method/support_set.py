"""Q: the support set, a first-in-first-out queue of projections ("Support set", section 3.2).

Q = SupportSet(size=98_304, dim=256)
found = Q.lookup(z1, ids=ids)           # before the optimizer step
Q.enqueue(z1.detach(), ids=ids)         # after it: one view only

The paper's variants: `k` (one of the k nearest at random), `pick="soft"`, `pick="oracle"` (the nearest
of the query's own class), `replacement="random"`; and `refill`, for a set that the current encoder makes
anew at each step.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method.neighbors import Mask, Neighbors, nearest, nearest_other, soft_nearest, top_k

Pick = Literal["nearest", "soft", "oracle"]
Replacement = Literal["fifo", "random"]
UNKNOWN = -1  # the id of a row that never held a sample, and of a sample that came without one


class SupportSet(nn.Module):
    """A ring of the last `size` projections, initialized at random; saved in checkpoints.

    A sample that is looked up never gets its own embedding of an earlier epoch back (`mask_own`).
    Where Q is much smaller than the data this changes nothing; where Q spans an epoch, it is what
    keeps the neighbor from being the image itself. It needs `ids`.

    Ranks of a distributed run hold the same rows, as long as they enqueue the same: what is random
    here follows from the seed and the number of enqueues.

    Args:
        size: M, number of rows.
        dim: D, length of a row.
        mask_own: pass over rows that carry the query's id.
        pick: "nearest"; "soft", a mean of all rows weighted by similarity; "oracle", the nearest row of
            the query's class, or the nearest of all where the queue has none of it.
        k: draw the neighbor among the k nearest.
        soft_temperature: of the softmax over Q.
        replacement: which rows a batch overwrites: "fifo" the oldest, "random" any.
        seed: of the random initial rows and of random replacement.

    Raises:
        InvalidRequest: a choice that there is not.
    """

    queue: Tensor  # (M, D) float32, unit rows
    ids: Tensor  # (M,) int64, which sample a row came from
    labels: Tensor  # (M,) int64, its class: for measuring, and for the oracle
    enqueued_at: Tensor  # (M,) int64, the number of the enqueue that wrote it
    pointer: Tensor  # () int64, the row to overwrite next
    enqueues: Tensor  # () int64, how many there were

    def __init__(
        self,
        size: int,
        dim: int,
        *,
        mask_own: bool = True,
        pick: Pick = "nearest",
        k: int = 1,
        soft_temperature: float = 0.1,
        replacement: Replacement = "fifo",
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value, known in (("pick", pick, get_args(Pick)), ("replacement", replacement, get_args(Replacement))):
            if value not in known:
                raise InvalidRequest(f"{name}={value!r} is none of {', '.join(known)}.")
        if min(size, dim, k) < 1:
            raise InvalidRequest(f"size={size}, dim={dim}, k={k}: each is a whole number from 1.")
        if k > 1 and pick == "soft":
            raise InvalidRequest(f"A soft neighbor is made of all rows: k={k} has no meaning with pick='soft'.")
        self.mask_own = mask_own
        self.pick = pick
        self.k = k
        self.soft_temperature = soft_temperature
        self.replacement = replacement
        self.seed = seed
        start = torch.randn(size, dim, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("queue", F.normalize(start, dim=1))
        self.register_buffer("ids", torch.full((size,), UNKNOWN))
        self.register_buffer("labels", torch.full((size,), UNKNOWN))
        self.register_buffer("enqueued_at", torch.full((size,), UNKNOWN))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self.register_buffer("enqueues", torch.zeros((), dtype=torch.int64))
        self._count = 0  # `enqueues` once more: to read it there for the draws would make a GPU wait

    @property
    def size(self) -> int:
        return len(self.queue)

    # ---- reading

    @torch.no_grad()
    def lookup(self, z: Tensor, ids: Tensor | None = None, labels: Tensor | None = None) -> Neighbors:
        """NN(z, Q) for each row (eq. 4), in float32.

        Args:
            z: (B, D) float projections, not normalized.
            ids: (B,) int64 sample numbers >= 0, for `mask_own`.
            labels: (B,) int64 classes, -1 where unknown; the oracle needs them.

        Raises:
            InvalidRequest: the oracle without labels.
        """
        with torch.autocast(z.device.type, enabled=False):
            z = F.normalize(z.float(), dim=1)
            similarity, index, own = self._nearest(z, ids)
            mask = self._own_rows(ids) if self.mask_own and ids is not None else None
            if self.pick == "oracle":
                similarity, index = self._of_its_class(z, labels, mask, similarity, index)
            elif self.k > 1:
                similarity, index = _one_of(*top_k(z, self.queue, self.k, mask))
            embeddings = self.queue[index].float()
            if self.pick == "soft":
                embeddings = F.normalize(soft_nearest(z, self.queue, self.soft_temperature, mask), dim=1)
        return Neighbors(embeddings, index, similarity, own)

    def _nearest(self, z: Tensor, ids: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Similarity and index of the nearest row, and whether the sample's own was nearest."""
        if ids is None or not self.mask_own:
            similarity, index = nearest(z, self.queue)
            own = torch.zeros_like(index, dtype=torch.bool) if ids is None else self.ids[index] == ids
            return similarity, index, own
        return nearest_other(z, self.queue, self._own_rows(ids))

    def _own_rows(self, ids: Tensor) -> Mask:
        return lambda rows: ids[:, None] == self.ids[None, rows]

    def _of_its_class(
        self, z: Tensor, labels: Tensor | None, own: Mask | None, otherwise: Tensor, otherwise_index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The nearest (or one of the k nearest) of the query's class; where the queue has none of it, the other."""
        if labels is None:
            raise InvalidRequest("The oracle picks neighbors of the query's class: give `labels` to lookup.")

        def others(rows: slice) -> Tensor:
            other = labels[:, None] != self.labels[None, rows]
            return other if own is None else other | own(rows)

        similarity, index = _one_of(*top_k(z, self.queue, self.k, others))
        found = (labels != UNKNOWN) & similarity.isfinite()
        return torch.where(found, similarity, otherwise), torch.where(found, index, otherwise_index)

    def age(self, index: Tensor) -> Tensor:
        """Enqueues since the rows were written, (B,) int64; rows of the random start count from before the first."""
        return self.enqueues - self.enqueued_at[index]

    def fill(self) -> Tensor:
        """Share of rows that hold a real embedding, a scalar in [0, 1]."""
        return (self.enqueued_at != UNKNOWN).float().mean()

    # ---- writing

    @torch.no_grad()
    def enqueue(self, z: Tensor, ids: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Writes the batch over the oldest rows; any batch size against any queue size.

        Args:
            z: (B, D) float projections of one view, not normalized. Of a batch larger than the queue
                the last M rows stay, as if they had been enqueued one by one.
            ids: (B,) int64 sample numbers, or None: unknown.
            labels: (B,) int64 classes, or None: unknown.

        Raises:
            InvalidRequest: rows of another length, or ids or labels of another number of them.
        """
        self._require_rows(z, ids, labels)
        batch, size = len(z), self.size
        kept = slice(max(0, batch - size), batch)
        if self.replacement == "random":
            draws = torch.Generator().manual_seed(self.seed * 1_000_003 + self._count)
            place = torch.randperm(size, generator=draws)[: batch - kept.start].to(z.device, non_blocking=True)
        else:
            place = (self.pointer + torch.arange(batch, device=z.device)[kept]) % size
        self._write(place, z[kept], None if ids is None else ids[kept], None if labels is None else labels[kept])
        self.pointer.copy_((self.pointer + batch) % size)

    @torch.no_grad()
    def refill(self, z: Tensor, ids: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Replaces all rows at once: "NNs from current encoder", where Q is a random set embedded at each step.

        Args:
            z: (M, D) float projections, not normalized.
            ids: (M,) int64 sample numbers, or None.
            labels: (M,) int64 classes, or None.
        """
        self._require_rows(z, ids, labels)
        if len(z) != self.size:
            raise InvalidRequest(f"refill takes as many rows as the support set has, {self.size}; got {len(z)}.")
        self._write(torch.arange(self.size, device=z.device), z, ids, labels)

    def _require_rows(self, z: Tensor, ids: Tensor | None, labels: Tensor | None) -> None:
        if z.shape[1:] != self.queue.shape[1:] or any(one is not None and len(one) != len(z) for one in (ids, labels)):
            given = [tuple(one.shape) for one in (z, ids, labels) if one is not None]
            raise InvalidRequest(
                f"Rows of {self.queue.shape[1]} numbers are kept here, with one id and label each, if any; these are "
                f"{' and '.join(map(str, given))}."
            )

    def _write(self, place: Tensor, z: Tensor, ids: Tensor | None, labels: Tensor | None) -> None:
        self.queue[place] = F.normalize(z.float(), dim=1).to(self.queue.dtype)
        self.ids[place] = UNKNOWN if ids is None else ids
        self.labels[place] = UNKNOWN if labels is None else labels
        self.enqueued_at[place] = self.enqueues
        self.enqueues += 1
        self._count += 1

    def _load_from_state_dict(self, *arguments: Any, **named: Any) -> None:
        super()._load_from_state_dict(*arguments, **named)
        self._count = int(self.enqueues)


def _one_of(similarity: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """One column at random in each row, among those that are candidates: (B, k) -> (B,), (B,)."""
    candidates = similarity.isfinite().sum(dim=1, keepdim=True).clamp(min=1)
    column = (torch.rand(len(index), 1, device=index.device) * candidates).long()
    return similarity.gather(1, column)[:, 0], index.gather(1, column)[:, 0]
