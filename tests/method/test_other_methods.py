"""The losses of SwAV, ReSSL, SCE and LeJEPA equal their definitions written as literal loops."""

import math

import numpy as np
import pytest
import torch
from linear_learner import unit
from scipy.integrate import quad

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method import (
    Prototypes,
    lejepa_loss,
    random_directions,
    relation_loss,
    sigreg,
    sinkhorn,
    swapped_prediction,
)

# ---- SwAV


def sinkhorn_by_loops(scores: np.ndarray, epsilon: float, iterations: int) -> np.ndarray:
    """Sinkhorn-Knopp as in the appendix of SwAV: alternate scaling of prototypes and samples to equal shares."""
    q = np.exp(scores.astype(np.float64).T / epsilon)  # (K, B)
    prototypes, batch = q.shape
    q /= q.sum()
    for _ in range(iterations):
        for k in range(prototypes):
            q[k] /= q[k].sum() * prototypes
        for b in range(batch):
            q[:, b] /= q[:, b].sum() * batch
    return (q * batch).T


def test_scores_are_cosines_with_the_prototypes():
    torch.manual_seed(0)
    prototypes, z = Prototypes(5, 3), 4 * torch.randn(7, 5)
    with torch.autocast("cpu", torch.bfloat16):
        scores = prototypes(z)
    torch.testing.assert_close(scores, torch.cosine_similarity(z[:, None], prototypes.weight[None], dim=-1))


@pytest.mark.parametrize(("options", "epsilon", "iterations"), [({}, 0.05, 3), ({"iterations": 1}, 0.05, 1)])
def test_sinkhorn_equals_the_algorithm(options, epsilon, iterations):
    torch.manual_seed(0)
    scores = unit(torch.randn(24, 8)) @ unit(torch.randn(6, 8)).T
    got = sinkhorn(scores, **options)
    np.testing.assert_allclose(got, sinkhorn_by_loops(scores.numpy(), epsilon, iterations), atol=1e-5)
    torch.testing.assert_close(got.sum(dim=1), torch.ones(24))


def test_swapped_prediction_equals_a_loop():
    torch.manual_seed(0)
    codes, scores = torch.rand(4, 3).softmax(dim=1), torch.randn(2, 4, 3)
    total = 0.0
    for view in scores.tolist():
        for code, row in zip(codes.tolist(), view, strict=True):
            below = sum(math.exp(s / 0.1) for s in row)
            total -= sum(c * math.log(math.exp(s / 0.1) / below) for c, s in zip(code, row, strict=True))
    assert swapped_prediction(codes, scores).item() == pytest.approx(total / 8, rel=1e-5)


# ---- ReSSL and SCE


def relation_by_loops(targets, predictions, queue, tau, target_tau, weight, mask) -> float:
    total = 0.0
    for i, (t, p) in enumerate(zip(unit(targets.double()), unit(predictions.double()), strict=True)):
        rows = [q for j, q in enumerate(queue.double()) if not mask[i, j]]
        s = [math.exp(float(t @ q) / target_tau) for q in rows]
        target = [weight, *((1 - weight) * one / sum(s) for one in s)]
        own = math.exp(float(p @ t) / tau) if weight else 0.0
        scores = [own, *(math.exp(float(p @ q) / tau) for q in rows)]
        total -= sum(w * math.log(one / sum(scores)) for w, one in zip(target, scores, strict=True) if w)
    return total / len(targets)


@pytest.mark.parametrize(("weight", "target_tau"), [(0.0, 0.05), (0.5, 0.05), (1.0, 0.05), (0.7, 0.1)])
def test_the_relation_loss_equals_its_equations(weight, target_tau):
    torch.manual_seed(0)
    targets, predictions, queue = torch.randn(5, 8), torch.randn(5, 8), unit(torch.randn(11, 8))
    mask = torch.rand(5, 11) < 0.2
    chosen = {} if weight == 0.5 else {"temperature": 0.1, "target_temperature": target_tau, "weight": weight}
    got = relation_loss(targets, predictions, queue, mask=mask, **chosen)
    assert got.item() == pytest.approx(
        relation_by_loops(targets, predictions, queue, 0.1, target_tau, weight, mask), rel=1e-5
    )


# ---- LeJEPA


def test_sigreg_is_the_epps_pulley_integral():
    """A numerical integral of the definition, one direction and one sample at a time, exact and with 17 knots."""
    torch.manual_seed(0)
    z, directions = 0.5 + 2 * torch.randn(20, 6), random_directions(6, 4)
    total, knots, by_knots = 0.0, np.linspace(0, 3, 17), 0.0
    for direction in directions.T:
        x = (z @ direction).double().numpy()

        def integrand(t: float, x: np.ndarray = x) -> float:
            phi = np.exp(1j * t * x).mean()
            return abs(phi - math.exp(-t * t / 2)) ** 2 * math.exp(-t * t / 2)

        total += len(x) * quad(integrand, -3, 3, limit=200)[0]
        by_knots += 2 * len(x) * np.trapezoid([integrand(t) for t in knots], knots)
    with torch.autocast("cpu", torch.bfloat16):
        got = sigreg(z, directions).item()
    assert got == pytest.approx(total / 4, rel=0.02)
    assert got == pytest.approx(by_knots / 4, rel=1e-5)


def test_the_prediction_term_pulls_every_view_to_the_mean_of_the_large_ones():
    torch.manual_seed(0)
    z, directions = torch.randn(4, 6, 3), random_directions(3, 8)
    center = z[:2].mean(dim=0)
    want = sum(float(((view - center) ** 2).mean()) for view in z) / 4
    assert lejepa_loss(z, directions, weight=0.0).item() == pytest.approx(want, rel=1e-5)
    mixed = 0.98 * want + 0.02 * sigreg(z, directions).item()
    assert lejepa_loss(z, directions).item() == pytest.approx(mixed, rel=1e-5)
    torch.testing.assert_close(lejepa_loss(z, directions, weight=1.0), sigreg(z, directions))


@pytest.mark.parametrize(
    "call",
    [
        lambda: sinkhorn(torch.zeros(2, 2), epsilon=0),
        lambda: sinkhorn(torch.zeros(2, 2), iterations=0),
        lambda: swapped_prediction(torch.zeros(2, 2), torch.zeros(2, 3)),
        lambda: swapped_prediction(torch.zeros(2, 2), torch.zeros(2, 2), temperature=0),
        lambda: relation_loss(torch.ones(2, 3), torch.ones(2, 3), torch.ones(4, 3), target_temperature=0),
        lambda: lejepa_loss(torch.zeros(2, 4, 3), torch.ones(3, 5), weight=1.5),
        lambda: relation_loss(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(4, 2)),
        lambda: relation_loss(torch.ones(2, 3), torch.ones(2, 3), torch.ones(4, 3), weight=2),
        lambda: sigreg(torch.zeros(4, 3), torch.zeros(2, 5)),
        lambda: lejepa_loss(torch.zeros(1, 4, 3), torch.ones(3, 5)),
    ],
)
def test_impossible_calls_are_refused(call):
    with pytest.raises(InvalidRequest):
        call()
