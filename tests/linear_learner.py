"""A learner small enough for a loop over images: a linear backbone and head."""

import torch
from torch import Tensor, nn

from nnclr_hub.method import METHODS, Learner, ProjectionHead, SupportSet

B, D = 6, 5  # images of a batch, width of an embedding


def make(method: str, support_set: SupportSet | None = None, **options) -> Learner:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 7))
    return Learner(
        backbone, METHODS[method], ProjectionHead(7, 0, D, layers=1, last_norm="none"), None, support_set, **options
    )


def two_views() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(B, 3, 2, 2), torch.randn(B, 3, 2, 2)


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def contrast(targets, predictions, tau=0.1) -> Tensor:
    """InfoNCE, one image after the other: the target of an image against the predictions of all."""
    losses = []
    for i in range(len(targets)):
        logits = torch.stack([unit(targets[i]) @ unit(p) / tau for p in predictions])
        losses.append(logits.exp().sum().log() - logits[i])
    return torch.stack(losses).mean()
