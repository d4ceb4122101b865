"""A plug-in: a support set whose targets are the mean of the k nearest rows instead of the nearest one.

nnclr pretrain small_cpu --data PHOTOS --out RUN --plugin examples/mean_of_nearest.py \
    --set support_set=mean_of_nearest --set k=5
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from nnclr_hub.method import SUPPORT_SETS, Neighbors, SupportSet


class MeanOfNearest(SupportSet):
    """Returns the normalized mean of the k nearest rows, of which none is the image's own."""

    @torch.no_grad()
    def lookup(self, z: Tensor, ids: Tensor | None = None, labels: Tensor | None = None) -> Neighbors:
        """Find the k nearest rows of each row of z, (B, D) float, and return their mean as its neighbor."""
        rows, nearest = self.nearest_k(z, self.k, ids)  # (B, k, D) unit rows
        return replace(nearest, embeddings=F.normalize(rows.mean(dim=1), dim=1))


SUPPORT_SETS["mean_of_nearest"] = MeanOfNearest
