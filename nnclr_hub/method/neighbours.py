"""NN(z, Q): the nearest row of the support set (eq. 4).

For unit vectors the nearest in L2 is the one of the highest dot product, so the look-up is a matrix
product and a running maximum. It goes over Q in chunks: at B = 4096 and M = 98,304 the whole
similarity matrix would be 1.6 GB.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# rows of Q a chunk; with B = 4096 a chunk of similarities takes 128 MiB
CHUNK = 8192


@dataclass(frozen=True)
class Neighbours:
    """What a look-up found for a batch of B queries.

    embeddings: (B, D) float32 unit rows of Q, without gradient.
    index: (B,) int64, the rows' places in Q.
    similarity: (B,) float32, cosine of query and neighbour in [-1, 1].
    own: (B,) bool, true where the nearest row was the sample's own older embedding, which was passed
        over for the next one (or kept, where masking is off).
    """

    embeddings: Tensor
    index: Tensor
    similarity: Tensor
    own: Tensor


def nearest(z: Tensor, queue: Tensor, forbidden: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """The most similar row of `queue` for each row of `z`.

    Args:
        z: (B, D) float32 unit rows.
        queue: (M, D) float32 unit rows.
        forbidden: ids of the queries (B,) and of the queue (M,), both int64: a pair with equal ids is
            not a candidate. If nothing else is left, index 0 with similarity -inf comes back.

    Returns:
        similarity (B,) float32 and index (B,) int64; of equals, the first.
    """
    best = torch.full((len(z),), -torch.inf, device=z.device)
    index = torch.zeros(len(z), dtype=torch.int64, device=z.device)
    for start in range(0, len(queue), CHUNK):
        similarity = z @ queue[start : start + CHUNK].T  # (B, chunk)
        if forbidden is not None:
            query_ids, queue_ids = forbidden
            same = query_ids[:, None] == queue_ids[None, start : start + CHUNK]
            similarity.masked_fill_(same, -torch.inf)
        value, place = similarity.max(dim=1)
        closer = value > best
        best = torch.where(closer, value, best)
        index = torch.where(closer, place + start, index)
    return best, index
