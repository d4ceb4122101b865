"""The losses equal the paper's equations written as literal loops."""

import math

import pytest
import torch
import torch.nn.functional as F

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method import info_nce, negative_cosine, queue_info_nce


def equation_3(targets: torch.Tensor, predictions: torch.Tensor, tau: float, transposed: bool) -> float:
    """Eqs. 2 and 3, and the term of "Implementation details", one sample and one exponential at a time."""
    t = [row / row.norm() for row in targets.double()]
    p = [row / row.norm() for row in predictions.double()]
    n, total = len(t), 0.0
    for i in range(n):
        own = math.exp(float(t[i] @ p[i]) / tau)
        over_predictions = sum(math.exp(float(t[i] @ p[k]) / tau) for k in range(n))
        term = -math.log(own / over_predictions)
        if transposed:
            over_targets = sum(math.exp(float(t[k] @ p[i]) / tau) for k in range(n))
            term = (term - math.log(own / over_targets)) / 2
        total += term
    return total / n


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tau", [0.1, 0.5])
@pytest.mark.parametrize("batch", [1, 2, 17])
def test_info_nce_equals_the_equation(batch, tau, transposed):
    torch.manual_seed(batch)
    targets, predictions = torch.randn(batch, 8), 3 * torch.randn(batch, 8)
    got = info_nce(targets, predictions, tau, transposed_term=transposed)
    assert got.item() == pytest.approx(equation_3(targets, predictions, tau, transposed), abs=1e-5)


def test_info_nce_has_no_negatives_but_the_other_predictions():
    """Two samples that share a neighbor are not negatives of each other, unlike in the 2N - 1 way NT-Xent."""
    predictions = torch.eye(4)
    shared = predictions[:1].expand(4, -1)
    want = torch.stack([-F.log_softmax(shared[i] @ predictions.T / 0.1, dim=0)[i] for i in range(4)]).mean()
    torch.testing.assert_close(info_nce(shared, predictions), want)


def test_losses_are_computed_in_float32_under_autocast():
    torch.manual_seed(0)
    z, p = torch.randn(16, 32), torch.randn(16, 32)
    with torch.autocast("cpu", torch.bfloat16):
        inside, cosine = info_nce(z, p), negative_cosine(z, p)
    assert inside.dtype == cosine.dtype == torch.float32
    assert inside == info_nce(z, p)
    assert cosine == negative_cosine(z, p)


def test_negative_cosine_is_minus_the_mean_cosine():
    z, p = torch.randn(5, 7), torch.randn(5, 7)
    want = -sum(float(a @ b / a.norm() / b.norm()) for a, b in zip(z, p, strict=True)) / 5
    assert negative_cosine(z, p).item() == pytest.approx(want, abs=1e-6)


def test_several_views_give_the_mean_over_them():
    """The multi-crop loss needs this."""
    torch.manual_seed(0)
    targets, predictions = torch.randn(6, 4), torch.randn(5, 6, 4)
    for loss in (info_nce, negative_cosine, lambda t, p: info_nce(t, p, transposed_term=True)):
        want = torch.stack([loss(targets, one) for one in predictions]).mean()
        torch.testing.assert_close(loss(targets, predictions), want)


@pytest.mark.parametrize("loss", [info_nce, negative_cosine])
@pytest.mark.parametrize(("targets", "predictions"), [((4, 8), (6, 8)), ((6, 8), (4, 8)), ((4, 8), (1, 8))])
def test_shapes_that_do_not_match_are_rejected(loss, targets, predictions):
    """Additional predictions would become negatives, and a single one would be broadcast."""
    with pytest.raises(InvalidRequest, match="shape"):
        loss(torch.randn(targets), torch.randn(predictions))


@pytest.mark.parametrize("temperature", [0, -0.1, math.nan])
def test_a_temperature_that_is_not_positive_is_rejected(temperature):
    with pytest.raises(InvalidRequest, match="temperature"):
        info_nce(torch.randn(4, 8), torch.randn(4, 8), temperature)


def test_a_queue_of_own_rows_has_no_negatives():
    left_out = torch.ones(4, 1, dtype=torch.bool)
    assert queue_info_nce(torch.randn(4, 8), torch.randn(4, 8), torch.eye(1, 8), left_out=left_out) == 0
