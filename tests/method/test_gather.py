"""Losses and targets of one rank of two: columns, shares and statistics are those of the whole batch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nnclr_hub.method import (
    METHODS,
    Gather,
    Learner,
    ProjectionHead,
    Prototypes,
    SupportSet,
    info_nce,
    lejepa_loss,
    random_directions,
    sigreg,
    sinkhorn,
)


class SecondOfTwo(Gather):
    """The second rank; the first one has the same numbers in other columns."""

    rank, world = 1, 2

    def __call__(self, x):
        return torch.cat([x.roll(1, -1), x]).detach()

    def with_gradient(self, x):
        return torch.cat([x.roll(1, -1).detach(), x])


def both(x):
    return torch.cat([x.roll(1, -1), x], dim=-2)


def cross_entropy(rows, columns, tau):
    """Row i belongs to column B + i, since the columns of the other rank come first."""
    rows, columns = F.normalize(rows, dim=1), F.normalize(both(columns), dim=1)
    batch = len(rows)
    losses = [-(columns @ rows[i] / tau).log_softmax(0)[batch + i] for i in range(batch)]
    return torch.stack(losses).mean()


@pytest.mark.parametrize("anchor", ["target", "prediction"])
def test_the_columns_of_info_nce_are_those_of_all_ranks(anchor):
    torch.manual_seed(0)
    targets, views = torch.randn(5, 8), torch.randn(3, 5, 8)
    pairs = [(targets, p) if anchor == "target" else (p, targets) for p in views]
    want = torch.stack([cross_entropy(rows, columns, 0.2) for rows, columns in pairs]).mean()
    got = [info_nce(targets, p, 0.2, anchor=anchor, gather=SecondOfTwo()) for p in views]
    torch.testing.assert_close(torch.stack(got).mean(), want)
    if anchor == "target":
        torch.testing.assert_close(info_nce(targets, views, 0.2, gather=SecondOfTwo()), want)
    transposed = [(cross_entropy(targets, p, 0.2) + cross_entropy(p, targets, 0.2)) / 2 for p in views]
    got = [info_nce(targets, p, 0.2, anchor=anchor, transposed_term=True, gather=SecondOfTwo()) for p in views]
    torch.testing.assert_close(torch.stack(got), torch.stack(transposed))


def test_assignments_and_statistics_are_those_of_the_whole_batch():
    torch.manual_seed(0)
    scores, z, directions = torch.randn(6, 5) / 5, torch.randn(3, 6, 5), random_directions(5, 8)
    torch.testing.assert_close(sinkhorn(scores, gather=SecondOfTwo()), sinkhorn(both(scores))[6:])
    whole = sigreg(both(z), directions)
    torch.testing.assert_close(sigreg(z, directions, SecondOfTwo()), whole)
    agreement = (z - z[:2].mean(dim=0)).square().mean()
    torch.testing.assert_close(lejepa_loss(z, directions, 0.1, gather=SecondOfTwo()), 0.9 * agreement + 0.1 * whole)


def make(method, prediction=None, support_set=None, **options):
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 8))
    head = ProjectionHead(8, 16, 8)
    return Learner(backbone, METHODS[method], head, prediction, support_set, gather=SecondOfTwo(), **options)


@pytest.fixture
def views():
    torch.manual_seed(1)
    return torch.randn(10, 3, 2, 2), torch.randn(10, 3, 2, 2)


def test_the_learner_collects_the_batch_for_each_loss(views):
    simclr = make("simclr", temperature=0.2)
    z1, z2 = (simclr.projection(simclr.backbone(x)) for x in views)
    torch.testing.assert_close(simclr(views).loss, (cross_entropy(z1, z2, 0.2) + cross_entropy(z2, z1, 0.2)) / 2)
    swav = make("swav", Prototypes(8, 6))
    scores = [swav.prediction(swav.projection(swav.backbone(x))) for x in views]
    codes = [sinkhorn(both(one))[10:] for one in scores]
    terms = [-(codes[i] * (scores[1 - i] / 0.1).log_softmax(1)).sum(1).mean() for i in (0, 1)]
    torch.testing.assert_close(swav(views).loss, sum(terms) / 2)
    lejepa = make("lejepa", sigreg_weight=1.0)
    z = torch.stack([lejepa.projection(lejepa.backbone(x)) for x in views])
    torch.manual_seed(7)
    loss = lejepa(views).loss
    torch.manual_seed(7)
    torch.testing.assert_close(loss, sigreg(both(z), random_directions(8, 256)))


def test_the_gate_compares_the_similarities_of_all_ranks(views):
    """A share of 0.3 of 20 images: the 6 most similar of both ranks, of which some are here."""
    given = []

    def objective(targets, predictions, temperature, *, gather):
        given.append(targets.detach())
        return predictions.mean()

    learner = make("nnclr", nn.Identity(), SupportSet(40, 8), objective=objective)
    step = learner(views, neighbor_share=0.3)
    similarity = step.neighbors.similarity
    top = torch.cat([similarity.roll(1), similarity]).argsort(descending=True)[:6]
    chosen = torch.isin(torch.arange(10, 20), top)
    assert 0 < chosen.sum() < 6
    torch.testing.assert_close(given[0], torch.where(chosen[:, None], step.neighbors.embeddings, step.z1))
    assert step.neighbor_share == pytest.approx(0.3)


def test_the_support_set_takes_the_rows_of_all_ranks(views):
    support, ids, labels = SupportSet(40, 8), torch.arange(10), torch.arange(10) % 3
    learner = make("nnclr", nn.Identity(), support)
    step = learner(views, ids=ids)
    learner.enqueue(step, ids, labels)
    torch.testing.assert_close(support.queue[:20], F.normalize(both(step.z1), dim=1))
    assert torch.equal(support.ids[:20], torch.cat([ids.roll(1), ids]))
    assert torch.equal(support.labels[:20], torch.cat([labels.roll(1), labels]))
