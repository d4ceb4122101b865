"""NN(z, Q): the nearest row of the support set (eq. 4), and the paper's other ways to select one.

For unit vectors, the nearest row in L2 has the highest dot product. The lookup is therefore a matrix product and a
running maximum. It processes Q in pieces: at B = 4096 and M = 98,304 the whole similarity matrix would take 1.6 GB.

A mask marks pairs that are excluded. A query without any candidate gets index 0 with similarity -inf.

On a CPU, `nearest` keeps only the maximum of each piece, from products in bf16 where the CPU multiplies it. It then
compares rows in float32, in the pieces that may contain the neighbor. The result is the same: docs/results/lookup.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache

import torch
from torch import Tensor

PIECE = 1 << 23  # similarities held at a time: 32 MiB of float32
CPU_PIECE = 1 << 20  # so that a piece stays in the cache of a CPU
LEAST_PRUNED = 1 << 22  # similarities from which `nearest` looks for maxima of pieces first, on a CPU
# largest error of a similarity of unit rows: of sums in another order; and of both rows and the sum rounded to bf16
ERRORS = {torch.float32: 1e-5, torch.bfloat16: 2 * 2**-9 + 2**-9 + 1e-4}

# (queries, rows of Q) -> (queries, rows) bool, true where the pair is excluded
Mask = Callable[[Tensor | slice, slice], Tensor]
ALL = slice(None)


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

    def split(self, parts: int) -> Sequence[Neighbors]:
        """Return the results of equal parts of the queries, such as views."""
        columns = [getattr(self, field.name).chunk(parts) for field in fields(self)]
        return [Neighbors(*part) for part in zip(*columns, strict=True)]


@cache
def multiplies_bf16() -> bool:
    """Return whether this CPU multiplies bf16 faster than float32."""
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def _pieces(z: Tensor, queue: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows of the queue and the similarities to them, (B, rows) float32, piece by piece."""
    rows = max(1, PIECE // max(1, len(z)))  # pragma: no mutate: other sizes give the same results
    for start in range(0, len(queue), rows):
        piece = slice(start, start + rows)
        yield piece, z @ queue[piece].float().T


def _masked(similarity: Tensor, mask: Mask | None, piece: slice) -> Tensor:
    return similarity if mask is None else similarity.masked_fill_(mask(ALL, piece), -torch.inf)


class _BestSoFar:
    """Highest similarity and its index over the pieces processed so far; the first row wins a tie."""

    def __init__(self, z: Tensor) -> None:
        self.value = torch.full((len(z),), -torch.inf, device=z.device)
        self.index = torch.zeros(len(z), dtype=torch.int64, device=z.device)

    def add(self, similarity: Tensor, piece: slice, queries: Tensor | slice = ALL) -> None:
        value, place = similarity.max(dim=1)
        place += piece.start
        best, at = self.value[queries], self.index[queries]
        closer = value > best
        if queries is not ALL:  # pieces come in any order
            closer |= (value == best) & (place < at)
        self.value[queries] = torch.where(closer, value, best)
        self.index[queries] = torch.where(closer, place, at)


def nearest(
    z: Tensor, queue: Tensor, own: Mask | None = None, excluded: Mask | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the most similar row of `queue` for each row of `z`, among those that neither mask excludes.

    Args:
        z: (B, D) float32 unit rows.
        queue: (M, D) unit rows, multiplied as float32 whatever their precision.
        own: pairs to exclude, with a report of whether one of them is more similar.
        excluded: pairs to exclude without it.

    Returns:
        similarity (B,) float32, index (B,) int64, and whether a row of `own` is more similar, (B,) bool. The first row
        wins a tie.
    """
    if z.device.type == "cpu" and excluded is None and len(z) * len(queue) >= LEAST_PRUNED:
        return _nearest_by_pieces(z, queue, own, torch.bfloat16 if multiplies_bf16() else torch.float32)
    best, best_of_all = _BestSoFar(z), _BestSoFar(z)
    for piece, similarity in _pieces(z, queue):
        _masked(similarity, excluded, piece)
        if own is not None:
            best_of_all.add(similarity, piece)
        best.add(_masked(similarity, own, piece), piece)
    return best.value, best.index, best_of_all.value > best.value


def _nearest_by_pieces(z: Tensor, queue: Tensor, own: Mask | None, kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Find neighbors on a CPU: maxima of pieces in this precision, and then rows in the pieces that may have them.

    Maxima without an index are nearly free, and masks are needed in few pieces. A piece whose maximum is below the best
    similarity, by more than the error of the precision, has no better row; so the result is exact.
    """
    size = max(1, CPU_PIECE // len(z))
    pieces = [slice(start, start + size) for start in range(0, len(queue), size)]
    rounded = z.to(kind)
    highest = [(rounded @ queue[piece].to(kind).T).amax(dim=1) for piece in pieces]
    bound = torch.stack(highest, dim=1).float() + ERRORS[kind]  # (B, pieces)
    best, best_of_all = _BestSoFar(z), _BestSoFar(z)
    while True:
        value, number = bound.max(dim=1)
        waiting = (value >= best.value) & value.isfinite()
        if not waiting.any():
            return best.value, best.index, best_of_all.value > best.value
        for one in number[waiting].unique().tolist():
            queries = (waiting & (number == one)).nonzero()[:, 0]
            similarity = z[queries] @ queue[pieces[one]].float().T
            best_of_all.add(similarity, pieces[one], queries)
            if own is not None:
                similarity.masked_fill_(own(queries, pieces[one]), -torch.inf)
            best.add(similarity, pieces[one], queries)
            bound[queries, one] = -torch.inf


def top_k(z: Tensor, queue: Tensor, k: int, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
    """Find the k most similar rows, most similar first: similarity and index, both (B, min(k, M))."""
    values, places = [], []
    for piece, similarity in _pieces(z, queue):
        value, place = _masked(similarity, mask, piece).topk(min(k, similarity.shape[1]))
        values.append(value)
        places.append(place + piece.start)
    best, order = torch.cat(values, dim=1).sort(descending=True, stable=True)
    return best[:, :k], torch.cat(places, dim=1).gather(1, order[:, :k])


def soft_nearest(z: Tensor, queue: Tensor, temperature: float, mask: Mask | None = None) -> Tensor:
    """Average the rows of Q, weighted by the softmax of their similarity ("soft nearest neighbor").

    The softmax is accumulated piece by piece relative to the highest logit so far, so it cannot overflow.

    Args:
        z: (B, D) float32 unit rows.
        queue: (M, D) float32 unit rows.
        temperature: temperature of the softmax; towards 0 the result becomes the nearest row.
        mask: pairs to exclude.

    Returns:
        (B, D) float32, not normalized; zeros for a query without a candidate.
    """
    # the lowest number and not -inf, because exp(-inf - -inf) of a query without a candidate would be NaN
    highest = z.new_full((len(z), 1), torch.finfo(z.dtype).min)
    total = torch.zeros_like(highest)
    combined = torch.zeros_like(z)
    for piece, similarity in _pieces(z, queue):
        logits = _masked(similarity, mask, piece) / temperature
        reference = torch.maximum(highest, logits.amax(dim=1, keepdim=True))
        weight, before = (logits - reference).exp(), (highest - reference).exp()
        total = total * before + weight.sum(dim=1, keepdim=True)
        combined = combined * before + weight @ queue[piece].float()
        highest = reference
    return combined / total.clamp(min=torch.finfo(total.dtype).tiny)
