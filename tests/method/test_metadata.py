"""Neighbors by metadata: which rows are allowed, what happens without any, and a planted scanner effect."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from linear_learner import B, D, contrast, make, two_views, unit
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method import METHODS, Learner, ProjectionHead, SupportSet


def scores(guided: bool, seed: int) -> tuple[float, float]:
    """Train on vectors of five classes and two scanners.

    Returns:
        How well a probe finds the scanner of held-out samples, and 20-NN of the classes from one scanner to the other.
    """
    draws = torch.Generator().manual_seed(seed)
    label, scanner = torch.arange(400) % 5, torch.arange(400) // 5 % 2
    classes, effect = torch.randn(5, 16, generator=draws), 0.8 * torch.randn(2, 16, generator=draws)
    x = classes[label] + effect[scanner] + 0.5 * torch.randn(400, 16, generator=draws)
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    support = SupportSet(256, 16, **({"not_same": scanner[:, None]} if guided else {}))
    learner = Learner(body, METHODS["nnclr"], ProjectionHead(16, 64, 16), None, support)
    optimizer = torch.optim.Adam(learner.parameters(), 1e-2)
    for number in range(200):
        ids = torch.randperm(400, generator=draws)[:64]
        views = [x[ids] + 0.5 * torch.randn(64, 16, generator=draws) for _ in range(2)]
        step = learner(views, ids=ids, neighbor_share=min(1.0, number / 50))
        optimizer.zero_grad()
        step.loss.backward()
        optimizer.step()
        learner.enqueue(step, ids)
    learner.eval()
    z = learner.project(x)
    z = F.normalize(z - z.mean(dim=0)).numpy()
    half, first = np.arange(400) < 200, (scanner == 0).numpy()
    probe = LogisticRegression(max_iter=500).fit(z[half], scanner[half]).score(z[~half], scanner[~half])
    knn = KNeighborsClassifier(20, metric="cosine").fit(z[first], label[first])
    return float(probe), float(knn.score(z[~first], label[~first]))


def test_a_planted_scanner_effect_is_removed():
    """Plain NNCLR separates the scanners, because their images are neighbors; guided neighbors cross them."""
    scanner, classes = scores(False, 0)
    guided_scanner, guided_classes = scores(True, 0)
    assert scanner > 0.9
    assert guided_scanner < 0.75, "chance is .5"
    assert guided_classes > max(0.85, classes + 0.05)


@pytest.fixture
def views():
    return two_views()


def filled(**options) -> tuple[SupportSet, torch.Tensor]:
    """Return a support set of 30 rows, 24 of them of the samples 0 to 23, and the similarities of 8 queries."""
    torch.manual_seed(3)
    support = SupportSet(30, D, **options)
    support.enqueue(torch.randn(24, D), torch.arange(24))
    z = torch.randn(8, D)
    return support, unit(z) @ support.queue.T


@pytest.mark.parametrize("mask_own", [True, False])
@pytest.mark.parametrize("columns", [{"same": 1}, {"not_same": 1}, {"same": 1, "not_same": 2}])
def test_only_rows_that_metadata_allows_are_neighbors(columns, mask_own):
    torch.manual_seed(4)
    tables = {name: torch.randint(-1, 3, (24, count)) for name, count in columns.items()}
    support, similarity = filled(mask_own=mask_own, **tables)
    torch.manual_seed(3)
    torch.randn(24, D)
    z, ids = torch.randn(8, D), torch.arange(8)
    similarity = unit(z) @ support.queue.T
    found = support.lookup(z, ids=ids)
    for query in range(8):
        allowed = []
        for row in range(24):
            fits = not (mask_own and row == query)
            for name, table in tables.items():
                for mine, theirs in zip(table[query].tolist(), table[row].tolist(), strict=True):
                    fits &= mine >= 0 and theirs >= 0 and (mine == theirs) == (name == "same")
            if fits:
                allowed.append(row)
        if allowed:
            assert found.index[query] == max(allowed, key=lambda row: float(similarity[query, row]))
        else:
            assert found.similarity[query] == -torch.inf
        others = support.nearest_k(z, 3, ids)[0][query]
        want = sorted(allowed, key=lambda row: -float(similarity[query, row]))[:3]
        expected = [*support.queue[want], *[unit(z[query])] * (3 - len(want))]
        torch.testing.assert_close(others, torch.stack(expected))
    assert (found.similarity == -torch.inf).any()
    assert found.similarity.isfinite().any()


def test_a_view_without_an_allowed_row_is_its_own_target(views):
    """The samples 0 to 2 share a patient with rows of Q, and the others with none."""
    patients = torch.tensor([[0]] * 3 + [[1]] * 3 + [[0]] * 4)
    support = SupportSet(8, D, same=patients)
    learner, ids = make("nnclr", support), torch.arange(B)
    support.enqueue(torch.randn(4, D), torch.arange(6, 10))
    z = [learner.projection(learner.backbone(x)) for x in views]
    targets = [
        torch.stack(
            [support.queue[:4][(support.queue[:4] @ unit(row)).argmax()] if i < 3 else row for i, row in enumerate(one)]
        )
        for one in z
    ]
    step = learner(views, ids=ids)
    torch.testing.assert_close(step.loss, (contrast(targets[0], z[1]) + contrast(targets[1], z[0])) / 2)
    with pytest.raises(InvalidRequest, match="pass ids"):
        support.lookup(z[0])
