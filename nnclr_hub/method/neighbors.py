"""NN(z, Q): the nearest row of the support set (eq. 4), and the paper's other ways to pick one.

For unit vectors the nearest in L2 is the one of the highest dot product, so the look-up is a matrix
product and a running maximum. It goes over Q in chunks: at B = 4096 and M = 98,304 the whole
similarity matrix would be 1.6 GB.

A mask names pairs that are no candidates. If a query has no candidate at all, index 0 with
similarity -inf comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 1 << 23  # similarities held at a time, 32 MiB of float32

Mask = Callable[[slice], Tensor]  # rows of Q -> (B, rows) bool, true where the pair is no candidate


@dataclass(frozen=True)
class Neighbors:
    """What a look-up found for a batch of B queries.

    embeddings: (B, D) float32 unit rows, without gradient: rows of Q, or of soft neighbors a mean of them.
    index: (B,) int64, the rows' places in Q; of a soft neighbor, that of the nearest row.
    similarity: (B,) float32, cosine of query and the row at `index`, in [-1, 1].
    own: (B,) bool, true where the nearest row was the sample's own older embedding, which was passed
        over for the next one (or kept, where masking is off).
    """

    embeddings: Tensor
    index: Tensor
    similarity: Tensor
    own: Tensor


def _chunks(z: Tensor, queue: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows of the queue and the similarities to them, (B, rows), piece by piece."""
    rows = max(1, CHUNK // max(1, len(z)))
    for start in range(0, len(queue), rows):
        piece = slice(start, start + rows)
        yield piece, z @ queue[piece].float().T


def _masked(similarity: Tensor, mask: Mask | None, piece: slice) -> Tensor:
    """In place: -inf for what is no candidate."""
    return similarity if mask is None else similarity.masked_fill_(mask(piece), -torch.inf)


class _Running:
    """The best of the pieces seen so far; of equals, the first."""

    def __init__(self, z: Tensor) -> None:
        self.value = torch.full((len(z),), -torch.inf, device=z.device)
        self.index = torch.zeros(len(z), dtype=torch.int64, device=z.device)

    def add(self, similarity: Tensor, piece: slice) -> None:
        value, place = similarity.max(dim=1)
        closer = value > self.value
        self.value = torch.where(closer, value, self.value)
        self.index = torch.where(closer, place + piece.start, self.index)


def nearest(z: Tensor, queue: Tensor, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """The most similar row of `queue` for each row of `z`.

    Args:
        z: (B, D) float32 unit rows.
        queue: (M, D) unit rows; of another precision after `module.to(dtype)`, and then multiplied as float32.
        mask: pairs to leave out.

    Returns:
        similarity (B,) float32 and index (B,) int64; of equals, the first.
    """
    best = _Running(z)
    for piece, similarity in _chunks(z, queue):
        best.add(_masked(similarity, mask, piece), piece)
    return best.value, best.index


def nearest_other(z: Tensor, queue: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
    """As `nearest` with a mask; and whether a masked row was nearer, (B,) bool, in the same pass over Q."""
    best, best_of_all = _Running(z), _Running(z)
    for piece, similarity in _chunks(z, queue):
        best_of_all.add(similarity, piece)
        best.add(_masked(similarity, mask, piece), piece)
    return best.value, best.index, best_of_all.value > best.value


def top_k(z: Tensor, queue: Tensor, k: int, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """The k most similar rows, most similar first: similarity and index, both (B, min(k, M))."""
    best = z.new_empty(len(z), 0)
    index = torch.empty(len(z), 0, dtype=torch.int64, device=z.device)
    for piece, similarity in _chunks(z, queue):
        value, place = _masked(similarity, mask, piece).topk(min(k, similarity.shape[1]), dim=1)
        best, order = torch.cat([best, value], dim=1).sort(dim=1, descending=True, stable=True)
        index = torch.cat([index, place + piece.start], dim=1).gather(1, order)
        best, index = best[:, :k], index[:, :k]
    return best, index


def soft_nearest(z: Tensor, queue: Tensor, temperature: float, mask: Mask | None = None) -> Tensor:
    """A convex combination of Q, each row weighted by the softmax of its similarity ("soft nearest neighbor").

    Args:
        z: (B, D) float32 unit rows.
        queue: (M, D) float32 unit rows.
        temperature: of the softmax; towards 0 it becomes the nearest row.
        mask: pairs to leave out.

    Returns:
        (B, D) float32, not normalized; zeros for a query without a candidate.
    """
    highest = torch.full((len(z), 1), -torch.inf, device=z.device)
    total = z.new_zeros(len(z), 1)
    combined = torch.zeros_like(z)
    for piece, similarity in _chunks(z, queue):
        logits = _masked(similarity, mask, piece) / temperature
        reference = torch.maximum(highest, logits.amax(dim=1, keepdim=True))
        shift = torch.where(reference.isfinite(), reference, 0.0)  # all masked so far: exp(-inf) is 0
        weight, before = (logits - shift).exp(), (highest - shift).exp()
        total = total * before + weight.sum(dim=1, keepdim=True)
        combined = combined * before + weight @ queue[piece].float()
        highest = reference
    return combined / total.clamp(min=torch.finfo(total.dtype).tiny)
