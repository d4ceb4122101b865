"""NN(z, Q): the nearest row of the support set (eq. 4), and the paper's other ways to select one.

For unit vectors, the nearest row in L2 has the highest dot product. The lookup is therefore a matrix product and a
running maximum. It processes Q in chunks: at B = 4096 and M = 98,304 the whole similarity matrix would take 1.6 GB.

A mask marks pairs that are excluded. A query without any candidate gets index 0 with similarity -inf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 1 << 23  # similarities held at a time: 32 MiB of float32

Mask = Callable[[slice], Tensor]  # rows of Q -> (B, rows) bool, true where the pair is excluded


@dataclass(frozen=True)
class Neighbors:
    """Result of a lookup for a batch of B queries.

    embeddings: (B, D) float32 unit rows, without gradient: rows of Q, or a mean of them for soft neighbors.
    index: (B,) int64, places in Q; for a soft neighbor, the place of the nearest row.
    similarity: (B,) float32, cosine of the query and the row at `index`, in [-1, 1].
    own: (B,) bool, true where the nearest row was the sample's own older embedding. With masking, the next row was
        taken instead.
    """

    embeddings: Tensor
    index: Tensor
    similarity: Tensor
    own: Tensor


def _chunks(z: Tensor, queue: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows of the queue and the similarities to them, (B, rows), chunk by chunk."""
    rows = max(1, CHUNK // max(1, len(z)))  # pragma: no mutate: other sizes give the same results
    for start in range(0, len(queue), rows):
        piece = slice(start, start + rows)
        yield piece, z @ queue[piece].float().T


def _masked(similarity: Tensor, mask: Mask | None, piece: slice) -> Tensor:
    """Set the similarity of excluded pairs to -inf, in place."""
    return similarity if mask is None else similarity.masked_fill_(mask(piece), -torch.inf)


class _BestSoFar:
    """Highest similarity and its index over the chunks processed so far; the first one wins a tie."""

    def __init__(self, z: Tensor) -> None:
        self.value = torch.full((len(z),), -torch.inf, device=z.device)
        self.index = torch.zeros(len(z), dtype=torch.int64, device=z.device)

    def add(self, similarity: Tensor, piece: slice) -> None:
        value, place = similarity.max(dim=1)
        closer = value > self.value
        self.value = torch.where(closer, value, self.value)
        self.index = torch.where(closer, place + piece.start, self.index)


def nearest(z: Tensor, queue: Tensor, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """Find the most similar row of `queue` for each row of `z`.

    Args:
        z: (B, D) float32 unit rows.
        queue: (M, D) unit rows, multiplied as float32 whatever their precision.
        mask: pairs to exclude.

    Returns:
        similarity (B,) float32 and index (B,) int64; the first row wins a tie.
    """
    best = _BestSoFar(z)
    for piece, similarity in _chunks(z, queue):
        best.add(_masked(similarity, mask, piece), piece)
    return best.value, best.index


def nearest_other(z: Tensor, queue: Tensor, mask: Mask, excluded: Mask | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Find the nearest row that is not masked, and whether a masked row was nearer, (B,) bool, in one pass over Q.

    excluded: pairs that are in neither of both.
    """
    best, best_of_all = _BestSoFar(z), _BestSoFar(z)
    for piece, similarity in _chunks(z, queue):
        best_of_all.add(_masked(similarity, excluded, piece), piece)
        best.add(_masked(similarity, mask, piece), piece)
    return best.value, best.index, best_of_all.value > best.value


def top_k(z: Tensor, queue: Tensor, k: int, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """Find the k most similar rows, most similar first: similarity and index, both (B, min(k, M))."""
    values, places = [], []
    for piece, similarity in _chunks(z, queue):
        value, place = _masked(similarity, mask, piece).topk(min(k, similarity.shape[1]))
        values.append(value)
        places.append(place + piece.start)
    best, order = torch.cat(values, dim=1).sort(descending=True, stable=True)
    return best[:, :k], torch.cat(places, dim=1).gather(1, order[:, :k])


def soft_nearest(z: Tensor, queue: Tensor, temperature: float, mask: Mask | None = None) -> Tensor:
    """Average the rows of Q, weighted by the softmax of their similarity ("soft nearest neighbor").

    The softmax is accumulated chunk by chunk relative to the highest logit so far, so it cannot overflow.

    Args:
        z: (B, D) float32 unit rows.
        queue: (M, D) float32 unit rows.
        temperature: of the softmax; towards 0 the result becomes the nearest row.
        mask: pairs to exclude.

    Returns:
        (B, D) float32, not normalized; zeros for a query without a candidate.
    """
    # the lowest number and not -inf, because exp(-inf - -inf) of a query without a candidate would be NaN
    highest = z.new_full((len(z), 1), torch.finfo(z.dtype).min)
    total = torch.zeros_like(highest)
    combined = torch.zeros_like(z)
    for piece, similarity in _chunks(z, queue):
        logits = _masked(similarity, mask, piece) / temperature
        reference = torch.maximum(highest, logits.amax(dim=1, keepdim=True))
        weight, before = (logits - reference).exp(), (highest - reference).exp()
        total = total * before + weight.sum(dim=1, keepdim=True)
        combined = combined * before + weight @ queue[piece].float()
        highest = reference
    return combined / total.clamp(min=torch.finfo(total.dtype).tiny)
