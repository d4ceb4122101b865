"""The solver against autograd and scikit-learn, in every form it comes in."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression

from nnclr_hub import fit_linear_probe
from nnclr_hub.probe import logistic
from nnclr_hub.probe.logistic import Rows, Solver, Stacked, calibrated_temperature

CPU = torch.device("cpu")


@pytest.fixture
def clouds():
    """Four overlapping clouds with an offset and one long axis: (240, 12) and classes."""
    rng = np.random.default_rng(0)
    y = np.arange(240) % 4
    x = rng.normal(size=(240, 12)) * np.array([30] + [1] * 11) + 5
    x[:, 1:5] += 1.5 * np.eye(4)[y]
    return torch.from_numpy(x).float(), torch.from_numpy(y)


@pytest.mark.parametrize("several", [False, True])
def test_loss_and_gradient_are_autograds(clouds, several, monkeypatch):
    monkeypatch.setattr(logistic, "PIECE", 4 * 50)  # in pieces of 50 rows
    x, y = clouds
    if several:
        targets = F.one_hot(y, 4).float()
        targets[::7, 2] = torch.nan
    else:
        targets = y
    weight = torch.rand(240) + 0.5
    parameters = torch.randn(4, 13, requires_grad=True)
    loss, gradient = Rows(Stacked((x, None)), targets, weight, 4).loss_and_gradient(parameters.detach(), 0.3)
    scores = x @ parameters[:, :-1].T + parameters[:, -1]
    if several:
        known = ~targets.isnan()
        each = F.binary_cross_entropy_with_logits(scores, targets.nan_to_num(), reduction="none")
        each = (each * known).sum(1)
    else:
        each = F.cross_entropy(scores, targets, reduction="none")
    slow = (each * weight).mean() + 0.15 * parameters[:, :-1].square().sum()
    slow.backward()
    torch.testing.assert_close(loss, slow.detach())
    torch.testing.assert_close(gradient, parameters.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("turned", [0, 1 << 26], ids=["rows as they are", "rows turned"])
@pytest.mark.parametrize("l2", [1e-3, 1e-1, 10])
def test_the_optimum_is_scikit_learns(clouds, l2, turned, monkeypatch):
    monkeypatch.setattr(logistic, "MAX_ROTATED", turned)
    x, y = clouds
    found = Solver(Rows(Stacked((x, None)), y, None, 4), CPU).minimize(l2)
    theirs = LogisticRegression(C=1 / (l2 * 240), tol=1e-10, max_iter=20_000).fit(x.double(), y)
    np.testing.assert_allclose(found[:, :-1], theirs.coef_, atol=2e-3)


@pytest.mark.parametrize("seed", range(4))  # for most seeds, MKL's solver for float32 does not converge
def test_few_rows_with_columns_of_zeros_are_fitted(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.zeros(40, 256)
    x[:, torch.randperm(256, generator=generator)[:48]] = torch.rand(40, 48, generator=generator)
    x, y = F.normalize(x), torch.arange(40) % 4
    found = Solver(Rows(Stacked((x, None)), y, None, 4), CPU).minimize(1e-2)
    theirs = LogisticRegression(C=1 / (1e-2 * 40), tol=1e-10, max_iter=20_000).fit(x.double(), y)
    np.testing.assert_allclose(found[:, :-1], theirs.coef_, atol=5e-3)


def test_axes_of_few_rows_are_not_used_for_others():
    x, y = torch.randn(60, 200, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    few = Solver(Rows(Stacked((x[:30], None)), y[:30], None, 3), CPU)
    assert few.basis.axes.shape == (200, 30)
    both = Rows(Stacked((x, None)), y, None, 3)
    alone = Solver(both, CPU).minimize(1e-2)
    torch.testing.assert_close(Solver(both, CPU, few.basis).minimize(1e-2), alone)


def test_a_path_of_penalties_ends_where_single_fits_do(clouds):
    x, y = clouds
    solver = Solver(Rows(Stacked((x, None)), y, None, 4), CPU)
    for l2 in (10, 1, 0.1, 0.01):
        on_the_path = solver.minimize(l2)
    alone = Solver(Rows(Stacked((x, None)), y, None, 4), CPU).minimize(0.01)
    torch.testing.assert_close(on_the_path[:, :-1], alone[:, :-1], atol=3e-3, rtol=1e-2)


def test_several_labels_are_one_regression_each(clouds):
    x, y = clouds
    targets = np.stack([y == 0, y >= 2], axis=1).astype(np.float32)
    probe = fit_linear_probe(x.numpy(), targets, classes=["zero", "high"], l2=0.01)
    for column in range(2):
        theirs = LogisticRegression(C=1 / (0.01 * 240), tol=1e-10, max_iter=20_000).fit(x.double(), targets[:, column])
        np.testing.assert_allclose(probe.weight[column], theirs.coef_[0], atol=3e-3)
    said = probe.predict(x.numpy())
    assert said.labels[0] == tuple(np.array(["zero", "high"])[said.probabilities[0] >= 0.5])


def test_uncertain_labels_count_neither_way(clouds):
    x, y = clouds
    targets = np.stack([y == 0, y >= 2], axis=1).astype(np.float32)
    targets[:100, 0] = np.nan
    with_gaps = fit_linear_probe(x.numpy(), targets, classes=["a", "b"], l2=0.02)
    rest = fit_linear_probe(x.numpy()[100:], targets[100:, :1], classes=["a"], l2=0.02 * 240 / 140)
    np.testing.assert_allclose(with_gaps.weight[0], rest.weight[0], atol=5e-3)


def test_balanced_classes_are_scikit_learns(clouds):
    x, y = clouds
    few = np.concatenate([np.flatnonzero(y == one)[: 5 + 15 * one] for one in range(4)])
    x, y = x.numpy()[few], y.numpy()[few]
    ours = fit_linear_probe(x, y, l2=0.05, class_weight="balanced")
    theirs = LogisticRegression(C=1 / (0.05 * len(x)), class_weight="balanced", tol=1e-10, max_iter=20_000)
    np.testing.assert_allclose(ours.weight, theirs.fit(x.astype(float), y).coef_, atol=3e-3)


def test_half_precision_features_are_taken_as_they_are(clouds):
    x, y = clouds
    half = fit_linear_probe(x.half().numpy(), y.numpy(), l2=0.1)
    full = fit_linear_probe(x.half().float().numpy(), y.numpy(), l2=0.1)
    np.testing.assert_allclose(half.weight, full.weight, atol=1e-3)


def test_a_decomposition_that_returns_nan_is_repeated_in_float64(clouds, monkeypatch):
    """MKL does not always raise an error if many columns are zero."""
    x, _ = clouds
    for rows, name in ((x, "eigh"), (x[::41].repeat(1, 2), "svd")):  # few rows are decomposed themselves
        decompose = getattr(torch.linalg, name)

        def broken(matrix, *, decompose=decompose, **options):
            found = decompose(matrix, **options)
            return found if matrix.dtype == torch.float64 else tuple(one * torch.nan for one in found)

        monkeypatch.setattr(torch.linalg, name, broken)
        basis = logistic.Basis.of(Stacked((rows, None)), CPU)
        torch.testing.assert_close(basis.axes.T @ basis.axes, torch.eye(basis.axes.shape[1]))
        assert basis.variance.isfinite().all()


def test_repeated_features_need_no_penalty(clouds):
    x, y = clouds
    once = fit_linear_probe(x.numpy(), y.numpy(), l2=0)
    thrice = fit_linear_probe(
        np.concatenate([x.numpy()] * 3 + [np.zeros((240, 2), np.float32)], axis=1), y.numpy(), l2=0
    )
    np.testing.assert_allclose(sum(np.split(thrice.weight[:, :36], 3, axis=1)), once.weight, atol=0.02)


def test_the_temperature_undoes_overconfidence():
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 3, generator=rng)
    y = torch.distributions.Categorical(logits=logits).sample()
    assert calibrated_temperature(logits, y) == pytest.approx(1, abs=0.15)
    assert calibrated_temperature(5 * logits, y) == pytest.approx(5, rel=0.15)
