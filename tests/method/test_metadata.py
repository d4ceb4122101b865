"""Neighbors by metadata: which rows are allowed, what happens without any, and a planted scanner effect."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from linear_learner import B, D, contrast, make, two_views, unit
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method import METHODS, Learner, ProjectionHead, SupportSet, explained_share, info_nce


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


def test_the_explained_share_is_that_of_ridge_regressions_between_halves():
    draws = np.random.default_rng(0)
    x = draws.normal(size=(120, 2, 8)) @ np.diag([3, 2, 1, 1, 0.5, 0.1, 0.1, 0.01])
    known = (x[:, :, 0].mean(axis=1) > 0).astype(int) + (x[:, :, 1].mean(axis=1) > 2)
    rows, shares = x / np.linalg.norm(x, axis=2, keepdims=True), []
    unknown = np.where(draws.random(120) < 0.3, -1, known)
    for groups in (known, unknown, draws.integers(0, 4, 120), np.zeros(120, int)):
        y = (groups[:, None] == np.unique(groups[groups >= 0])).astype(float).repeat(2, axis=0).reshape(120, 2, -1)
        of_halves, is_known = [], groups >= 0
        for start in range(2):
            (fitted, targets), (others, truth) = (
                [part[at::2][is_known[at::2]].reshape(-1, part.shape[-1]) for part in (rows, y)]
                for at in (start, 1 - start)
            )
            predicted = Ridge(fitted.var(axis=0).mean() * len(fitted)).fit(fitted, targets).predict(others)
            centered = truth - truth.mean(axis=0)
            of_halves.append((predicted.reshape(truth.shape) * centered).sum() / max(1, (centered**2).sum()))
        shares.append(np.mean(of_halves))
        found = explained_share(torch.from_numpy(x), torch.from_numpy(groups))
        assert float(found) == pytest.approx(shares[-1], abs=1e-5)
    assert min(shares[:2]) > 0.15 > 0.05 > max(shares[2:])
    assert explained_share(torch.from_numpy(x), torch.full((120,), -1)) == 0


def test_the_loss_at_chance_is_that_of_equal_vectors():
    groups, equal = torch.tensor([0, 0, 1, -1, 1, -1, 1, 2]), torch.ones(8, D)
    learner = make("nnclr", SupportSet(8, D), groups=groups)
    loss = info_nce(equal, equal, 0.1, groups=(groups, groups))
    assert learner.chance_loss(8)["chance"] == pytest.approx(float(loss), abs=1e-5)


@pytest.mark.parametrize("anchor", ["target", "prediction"])
def test_negatives_of_a_row_are_those_of_its_group(anchor):
    """An unknown group, -1, restricts nothing."""
    draws = torch.Generator().manual_seed(0)
    targets, predictions = torch.randn(2, 9, D, generator=draws)
    groups = torch.tensor([[1, 1, 0, -1, 2, 0, -1, 1, 3], [0, 1, 1, 0, 2, -1, -1, 1, 0]])
    rows, columns = (0, 1) if anchor == "target" else (1, 0)
    logits = unit((targets, predictions)[rows]) @ unit((targets, predictions)[columns]).T / 0.1
    losses = []
    for i in range(9):
        fits = (groups[columns] == groups[rows, i]) | (groups[columns] == -1) | (groups[rows, i] == -1)
        negatives = [k for k in range(9) if k != i and fits[k]]
        losses.append(logits[i, [i, *negatives]].logsumexp(0) - logits[i, i])
    loss = info_nce(targets, predictions, 0.1, anchor=anchor, groups=(groups[0], groups[1]))
    torch.testing.assert_close(loss, torch.stack(losses).mean())


def test_the_group_of_a_target_is_that_of_the_neighbor_if_it_is_used(views):
    """Half of the batch has its neighbor as target; rows of Q are of samples of the other group."""
    groups = torch.arange(10) % 2
    support = SupportSet(8, D, not_same=groups[:, None])
    support.enqueue(torch.randn(4, D), torch.arange(6, 10))
    learner, ids = make("nnclr", support, groups=groups, forget=0.0), torch.arange(B)
    z = [learner.projection(learner.backbone(x)) for x in views]
    losses = []
    for one, other in (z, z[::-1]):
        found = support.lookup(one, ids)
        for i in range(B):
            use = found.similarity[i] >= found.similarity.sort(descending=True).values[B // 2 - 1]
            group = 1 - groups[i] if use else groups[i]
            columns = [i, *(k for k in range(B) if k != i and groups[k] == group)]
            logits = unit(found.embeddings[i] if use else one[i]) @ unit(other[columns]).T / 0.1
            losses.append(logits.logsumexp(0) - logits[0])
    torch.testing.assert_close(learner(views, ids=ids, neighbor_share=0.5).loss, torch.stack(losses).mean())


def test_negatives_from_the_queue_are_those_of_the_own_group(views):
    groups = torch.tensor([0, 0, -1, 1, 1, 1, 0, -1])
    support = SupportSet(4, D)
    support.enqueue(torch.randn(2, D), torch.tensor([6, 7]))  # the other two rows are those of sample 0 at first
    support.ids[2:] = torch.tensor([0, 3])
    learner = make("queue_nnclr", support, groups=groups, forget=0.0)
    z = [learner.projection(learner.backbone(x)) for x in views]
    losses = []
    for one, other in (z, z[::-1]):
        for i in range(B):
            own = support.ids == i
            similarity = (unit(one[i]) @ support.queue.T).masked_fill(own, -torch.inf)
            nn = int(similarity.argmax())
            negatives = [
                row
                for row in range(4)
                if row != nn
                and not own[row]
                and groups[support.ids[row]] in (groups[i], *((0, 1, -1) if groups[i] < 0 else (-1,)))
            ]
            logits = unit(other[i]) @ support.queue[[nn, *(row for row in negatives if row != nn)]].T / 0.1
            losses.append(logits.logsumexp(0) - logits[0])
    torch.testing.assert_close(learner(views, ids=torch.arange(B)).loss, torch.stack(losses).mean())


def test_forgetting_removes_a_group_from_the_output_of_the_backbone(views):
    """In 200 steps; without groups, nothing changes."""
    draws = torch.Generator().manual_seed(0)
    scanner = torch.arange(200) % 2
    x = torch.randn(200, 3, 2, 2, generator=draws)
    x[:, :2] += 1.5 * scanner[:, None, None, None]
    probed = []
    for groups in (None, scanner):
        learner = make("nnclr", SupportSet(64, D, not_same=scanner[:, None]), groups=groups)
        optimizer = torch.optim.Adam(learner.parameters(), 1e-2)
        for _ in range(200):
            ids = torch.randperm(200, generator=draws)[:64]
            step = learner([x[ids] + 0.3 * torch.randn(64, 3, 2, 2, generator=draws) for _ in range(2)], ids=ids)
            optimizer.zero_grad()
            step.loss.backward()
            optimizer.step()
            learner.enqueue(step, ids)
        h = F.normalize(learner.backbone(x).detach()).numpy()
        probed.append(LogisticRegression(max_iter=500).fit(h[:100], scanner[:100]).score(h[100:], scanner[100:]))
        assert (step.forgetting is None) == (groups is None)
    assert probed[0] > 0.9
    assert probed[1] < 0.65, "chance is .5"
    with pytest.raises(InvalidRequest, match="pass ids"):
        learner(views)


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
