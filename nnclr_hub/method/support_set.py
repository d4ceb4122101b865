"""Q: the support set, a first-in-first-out queue of projections ("Support set", section 3.2).

Q = SupportSet(size=98_304, dim=256)
found = Q.lookup(z1, ids=ids)           # before the optimizer step
Q.enqueue(z1.detach(), ids=ids)         # after it, with one view only

The paper's variants are `k` (one of the k nearest at random), `pick="soft"`, `pick="oracle"` (the nearest row of the
query's class) and `replacement="random"`. `refill` serves the variant whose rows the current encoder computes at each
step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method.neighbors import ALL, Mask, Neighbors, nearest, soft_nearest, top_k

Pick = Literal["nearest", "soft", "oracle"]
Replacement = Literal["fifo", "random"]
UNKNOWN = -1  # id of a row that never held a sample, and of a sample without an id


class SupportSet(nn.Module):
    """A ring of the last `size` projections, initialized at random and saved in checkpoints.

    A lookup never returns the sample's own embedding of an earlier epoch (`mask_own`). Where Q is much smaller than
    the data, this changes nothing. Where Q spans an epoch, it prevents an image from being its own neighbor. It needs
    `ids`.

    All ranks of a distributed run hold the same rows, provided that they enqueue the same: random choices here depend
    only on the seed and the number of enqueues.

    Args:
        size: M, number of rows.
        dim: D, length of a row.
        mask_own: skip rows that carry the query's id.
        pick: "nearest"; "soft", a mean of all rows weighted by similarity; or "oracle", the nearest row of the query's
            class, or the nearest of all if the queue has no row of that class.
        k: sample the neighbor from the k nearest.
        soft_temperature: temperature of the softmax over Q.
        replacement: which rows a batch overwrites: "fifo" the oldest, "random" any.
        seed: seed of the random initial rows and of random replacement.
        same, not_same: (N, C) int64, metadata of the samples 0 to N - 1, -1 where unknown. A neighbor has the same
            values in all columns of `same`, and other values in all columns of `not_same`; unknown values fit nothing.
            A query without such a row gets similarity -inf, and its own view is the target. They need `ids`, and are
            not a part of the state.

    Raises:
        InvalidRequest: an unknown choice, a size below 1, or k > 1 with soft neighbors.
    """

    queue: Tensor  # (M, D) float32, unit rows
    ids: Tensor  # (M,) int64, which sample a row came from
    labels: Tensor  # (M,) int64, its class: for metrics and for the oracle
    enqueued_at: Tensor  # (M,) int64, number of the enqueue that wrote it
    pointer: Tensor  # () int64, the row to overwrite next
    enqueues: Tensor  # () int64, number of enqueues
    same: Tensor | None
    not_same: Tensor | None

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
        same: Tensor | None = None,
        not_same: Tensor | None = None,
    ) -> None:
        super().__init__()
        for name, value, known in (("pick", pick, get_args(Pick)), ("replacement", replacement, get_args(Replacement))):
            if value not in known:
                raise InvalidRequest(f"{name} must be one of {', '.join(known)}; got {value!r}.")
        if min(size, dim, k) < 1:
            raise InvalidRequest(f"size, dim and k must be at least 1; got size={size}, dim={dim}, k={k}.")
        if k > 1 and pick == "soft":
            raise InvalidRequest(f"pick='soft' averages all rows and does not accept k={k}; leave k at 1.")
        self.size, self.mask_own, self.pick, self.k = size, mask_own, pick, k
        self.soft_temperature, self.replacement, self.seed = soft_temperature, replacement, seed
        self.guided = same is not None or not_same is not None  # metadata decides which rows may be neighbors
        start = torch.randn(size, dim, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("queue", F.normalize(start))
        for name in ("ids", "labels", "enqueued_at"):
            self.register_buffer(name, torch.full((size,), UNKNOWN))
        for name in ("pointer", "enqueues"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))
        self.register_buffer("same", same, persistent=False)
        self.register_buffer("not_same", not_same, persistent=False)
        self._count = 0  # copy of `enqueues` on the CPU: reading the buffer for a seed would synchronize a GPU

    # ---- reading

    @torch.no_grad()
    def lookup(self, z: Tensor, ids: Tensor | None = None, labels: Tensor | None = None) -> Neighbors:
        """Find NN(z, Q) for each row (eq. 4), in float32 even under autocast.

        Args:
            z: (B, D) float projections, not normalized; of several views one after the other.
            ids: (B,) int64 sample numbers >= 0, for `mask_own`.
            labels: (B,) int64 classes, -1 where unknown; required by the oracle.

        Raises:
            InvalidRequest: rows of another length, or pick="oracle" without labels.
        """
        self._require_rows(z)
        own, other = self._masks(ids)
        mask = _either(own, other)
        with torch.autocast(z.device.type, enabled=False):
            z = F.normalize(z.float())
            similarity, index, was_own = nearest(z, self.queue, own, other)
            if own is None and ids is not None:
                was_own = self.ids[index] == ids
            if self.pick == "oracle":
                similarity, index = self._nearest_of_class(z, labels, mask, similarity, index)
            elif self.k > 1:
                similarity, index = _sample_one(*top_k(z, self.queue, self.k, mask))
            embeddings = self.queue[index].float()
            if self.pick == "soft":
                embeddings = F.normalize(soft_nearest(z, self.queue, self.soft_temperature, mask))
        return Neighbors(embeddings, index, similarity, was_own)

    @torch.no_grad()
    def nearest_k(self, z: Tensor, k: int, ids: Tensor | None = None) -> tuple[Tensor, Neighbors]:
        """Find the k nearest rows of each row of z: (B, k, D) float32, and the first of them as `Neighbors`.

        Args:
            z: (B, D) float projections, not normalized.
            k: at most the size of the support set.
            ids: (B,) int64 sample numbers >= 0, for `mask_own`.
        """
        self._require_rows(z)
        with torch.autocast(z.device.type, enabled=False):
            unit = F.normalize(z.float())
            similarity, index = top_k(unit, self.queue, k, _either(*self._masks(ids)))
            rows = self.queue[index].float()
            if self.guided:
                rows = torch.where(similarity.isfinite()[..., None], rows, unit[:, None])
        own = torch.zeros(len(z), dtype=torch.bool, device=z.device)  # masked, or not looked for
        return rows, Neighbors(rows[:, 0], index[:, 0], similarity[:, 0], own)

    def own_rows(self, ids: Tensor | None) -> Tensor | None:
        """Return where rows are older embeddings of the batch's images, (B, M) bool; None if nothing is masked."""
        return ids[:, None] == self.ids if self.mask_own and ids is not None else None

    def _masks(self, ids: Tensor | None) -> tuple[Mask | None, Mask | None]:
        """Return the pairs of an image with its own rows, and those that metadata forbids; None for no pair."""
        if self.guided and ids is None:
            raise InvalidRequest("Neighbors by metadata need the numbers of the samples; pass ids.")
        if ids is None:
            return None, None

        def other(queries: Tensor | slice, rows: slice) -> Tensor:
            place = self.ids[rows].clamp(min=0)
            forbidden = self.ids[rows] < 0  # initial random rows
            for table, equal in ((self.same, True), (self.not_same, False)):
                for column in table.T if table is not None else ():
                    mine, theirs = column[ids[queries]][:, None], column[place]
                    forbidden = forbidden | ((mine == theirs) != equal) | (mine < 0) | (theirs < 0)
            return forbidden

        own: Mask = lambda queries, rows: ids[queries, None] == self.ids[rows]  # noqa: E731
        return own if self.mask_own else None, other if self.guided else None

    def _nearest_of_class(
        self, z: Tensor, labels: Tensor | None, mask: Mask | None, fallback: Tensor, fallback_index: Tensor
    ) -> tuple[Tensor, Tensor]:
        if labels is None:
            raise InvalidRequest("pick='oracle' needs the classes of the batch; pass `labels` to lookup.")
        other_class: Mask = lambda queries, rows: labels[queries, None] != self.labels[rows]  # noqa: E731
        similarity, index = _sample_one(*top_k(z, self.queue, self.k, _either(other_class, mask)))
        found = (labels != UNKNOWN) & similarity.isfinite()
        return torch.where(found, similarity, fallback), torch.where(found, index, fallback_index)

    def age(self, index: Tensor) -> Tensor:
        """Return the enqueues since rows were written, (B,) int64. Initial random rows count from before the first."""
        return self.enqueues - self.enqueued_at[index]

    def fill(self) -> Tensor:
        """Return the share of rows that hold a real embedding, a scalar in [0, 1]."""
        return (self.enqueued_at != UNKNOWN).float().mean()

    # ---- writing

    @torch.no_grad()
    def enqueue(self, z: Tensor, ids: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Write the batch over the oldest rows; any batch size works with any queue size.

        Args:
            z: (B, D) float projections of one view, not normalized. A batch larger than the queue leaves its last M
                rows, as if they had been enqueued one at a time.
            ids: (B,) int64 sample numbers, or None if unknown.
            labels: (B,) int64 classes, or None if unknown.

        Raises:
            InvalidRequest: rows of another length, or a different number of ids or labels.
        """
        self._require_rows(z, ids, labels)
        batch, size = len(z), self.size
        kept = slice(max(0, batch - size), None)
        if self.replacement == "random":
            number = self.seed * 1_000_003 + self._count  # pragma: no mutate: any number that no other enqueue has
            draws = torch.Generator().manual_seed(number)
            place = torch.randperm(size, generator=draws)[:batch].to(device=z.device, non_blocking=True)
        else:
            place = (self.pointer + torch.arange(batch, device=z.device)[kept]) % size
        self._write(place, z[kept], None if ids is None else ids[kept], None if labels is None else labels[kept])
        self.pointer.copy_((self.pointer + batch) % size)

    @torch.no_grad()
    def refill(self, z: Tensor, ids: Tensor | None = None, labels: Tensor | None = None) -> None:
        """Replace all rows, as `enqueue` with (M, D): "NNs from current encoder", where Q is embedded at each step."""
        self._require_rows(z, ids, labels)
        if len(z) != self.size:
            raise InvalidRequest(f"refill needs {self.size} rows, the size of the support set; got {len(z)}.")
        self._write(ALL, z, ids, labels)

    def _require_rows(self, z: Tensor, ids: Tensor | None = None, labels: Tensor | None = None) -> None:
        if z.shape[1:] != self.queue.shape[1:] or any(one is not None and len(one) != len(z) for one in (ids, labels)):
            shapes = [tuple(one.shape) for one in (z, ids, labels) if one is not None]
            raise InvalidRequest(
                f"The support set holds rows of {self.queue.shape[1]} numbers, each with at most one id and one label; "
                f"got shapes {', '.join(map(str, shapes))}."
            )

    def _write(self, place: Tensor | slice, z: Tensor, ids: Tensor | None, labels: Tensor | None) -> None:
        self.queue[place] = F.normalize(z.float()).to(self.queue.dtype)
        self.ids[place] = UNKNOWN if ids is None else ids
        self.labels[place] = UNKNOWN if labels is None else labels
        self.enqueued_at[place] = self.enqueues
        self.enqueues += 1
        self._count += 1

    def _load_from_state_dict(self, *arguments: Any, **named: Any) -> None:
        super()._load_from_state_dict(*arguments, **named)
        self._count = int(self.enqueues)


def _either(one: Mask | None, other: Mask | None) -> Mask | None:
    if one is None or other is None:
        return one or other
    return lambda queries, rows: one(queries, rows) | other(queries, rows)


def _sample_one(similarity: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Sample one column of each row from its candidates: (B, k) -> (B,), (B,). Each row has its own sample."""
    candidates = similarity.isfinite().sum(dim=1)
    column = (torch.rand(len(index), device=index.device) * candidates).long()[:, None]  # 0 without a candidate
    return similarity.gather(1, column)[:, 0], index.gather(1, column)[:, 0]


# the support sets that a recipe can name; each takes the arguments of SupportSet. Plug-ins add theirs. The rows of
# "current_encoder" are computed again at each step by the program, see `SupportSet.refill`.
SUPPORT_SETS: dict[str, Callable[..., SupportSet]] = {
    "queue": SupportSet,
    "random_replacement": partial(SupportSet, replacement="random"),
    "current_encoder": SupportSet,
}
