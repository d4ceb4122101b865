"""LeJEPA (Balestriero and LeCun, arXiv:2511.08544): views agree, and embeddings are an isotropic Gaussian.

There is no queue, no momentum encoder, no stop-gradient and no negative. SIGReg keeps the embeddings from collapsing:
along random directions, their distribution must be that of a standard normal variable, which the Epps-Pulley test
measures by the distance between characteristic functions.

    loss = lejepa_loss(torch.stack([z1, z2, z3]), directions=random_directions(dim, 256), weight=0.02)
"""

from __future__ import annotations

import torch
from torch import Tensor

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method.gather import ALONE, Gather

KNOTS = 17  # points at which characteristic functions are compared
LARGEST = 3.0  # the last of them; both functions are nearly zero beyond


def random_directions(dim: int, count: int, device: torch.device | None = None) -> Tensor:
    """Sample `count` unit vectors from torch's global generator: (D, count) float32."""
    directions = torch.randn(dim, count, device=device)
    return directions / directions.norm(dim=0)


def sigreg(z: Tensor, directions: Tensor, gather: Gather = ALONE) -> Tensor:
    """Return the mean Epps-Pulley statistic of the embeddings along the directions (LeJEPA, section 4).

    The statistic of one direction is B times the integral over t of |phi(t) - exp(-t^2 / 2)|^2 exp(-t^2 / 2), where phi
    is the empirical characteristic function of the projected batch; the trapezoid rule has 17 knots on [0, 3], doubled
    because the integrand is even.

    Args:
        z: (..., B, D) float, not normalized; leading axes are views, tested separately.
        directions: (D, S) float unit columns.
        gather: collects the batch over the ranks of a distributed run.

    Returns:
        A float32 scalar, at least 0; 1.05 in expectation for a standard normal batch.

    Raises:
        InvalidRequest: the lengths of embeddings and directions differ.
    """
    if z.shape[-1] != len(directions):
        raise InvalidRequest(
            f"Embeddings of length {z.shape[-1]} cannot be projected on directions of length {len(directions)}."
        )
    with torch.autocast(z.device.type, enabled=False):
        everyone = gather.with_gradient(z.float().transpose(0, -2)).transpose(0, -2)  # (..., world B, D)
        t = torch.linspace(0, LARGEST, KNOTS, device=z.device)
        gauss = (-t.square() / 2).exp()
        weights = torch.full_like(t, 2 * LARGEST / (KNOTS - 1))
        weights[0] /= 2
        weights[-1] /= 2
        angles = (everyone @ directions.float()).unsqueeze(-1) * t  # (..., B, S, knots)
        distance = (angles.cos().mean(dim=-3) - gauss).square() + angles.sin().mean(dim=-3).square()
        return (distance @ (weights * gauss)).mean() * everyone.shape[-2]


def lejepa_loss(z: Tensor, directions: Tensor, weight: float = 0.02, large: int = 2, gather: Gather = ALONE) -> Tensor:
    """Combine the prediction term and SIGReg: (1 - weight) * agreement + weight * sigreg (LeJEPA, eq. of section 5).

    Args:
        z: (V, B, D) float, embeddings of all views, the large ones first; not normalized.
        directions: (D, S) float unit columns, see `random_directions`.
        weight: lambda, 0 to 1.
        large: number of large views; every view must predict their mean.
        gather: collects the batch over the ranks of a distributed run.

    Returns:
        A float32 scalar.

    Raises:
        InvalidRequest: the weight is outside 0 to 1, or there are fewer views than `large`.
    """
    if not 0 <= weight <= 1 or z.dim() != 3 or len(z) < large:
        raise InvalidRequest(
            f"lejepa_loss takes (V, B, D) embeddings of at least {large} views and a weight between 0 and 1, got "
            f"{tuple(z.shape)} and {weight}."
        )
    center = z[:large].float().mean(dim=0)  # (B, D)
    agreement = (z.float() - center).square().mean()
    return (1 - weight) * agreement + weight * sigreg(z, directions, gather)
