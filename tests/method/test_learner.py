"""A step of each method is Algorithm 1 with that method's choices."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method import METHODS, Learner, PredictionHead, ProjectionHead, SupportSet


def make(method: str) -> Learner:
    torch.manual_seed(0)
    row = METHODS[method]
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(48, 12))
    prediction = PredictionHead(8, 32) if row.prediction == "paper" else None
    support = SupportSet(40, 8) if row.target == "neighbour" else None
    return Learner(backbone, row, ProjectionHead(12, 24, 8), prediction, support)


@pytest.fixture
def views():
    torch.manual_seed(1)
    return torch.randn(10, 3, 4, 4), torch.randn(10, 3, 4, 4)


def cross_entropy_of_pairs(targets, predictions, tau=0.1):
    targets, predictions = F.normalize(targets, dim=1), F.normalize(predictions, dim=1)
    rows = [-torch.log_softmax(predictions @ targets[i] / tau, dim=0)[i] for i in range(len(targets))]
    return torch.stack(rows).mean()


def test_nnclr_is_algorithm_1(views):
    """loss = L(NN(z1), p2)/2 + L(NN(z2), p1)/2, neighbours from the queue as it was before the step."""
    learner = make("nnclr")
    with torch.no_grad():
        z1, z2 = (learner.projection(learner.backbone(x)) for x in views)
        p1, p2 = learner.prediction(z1), learner.prediction(z2)
        queue = learner.support_set.queue.clone()
        nn1, nn2 = (queue[(F.normalize(z, dim=1) @ queue.T).argmax(1)] for z in (z1, z2))
        want = cross_entropy_of_pairs(nn1, p2) / 2 + cross_entropy_of_pairs(nn2, p1) / 2
    step = learner(*views)
    torch.testing.assert_close(step.loss, want)
    assert torch.equal(learner.support_set.queue, queue), "the look-up must not write"
    learner.enqueue(step)
    torch.testing.assert_close(learner.support_set.queue[:10], F.normalize(z1, dim=1))
    assert torch.equal(learner.support_set.queue[10:], queue[10:]), "one view alone is enqueued"


def test_simclr_is_equation_2_over_both_views(views):
    learner = make("simclr")
    z1, z2 = (learner.projection(learner.backbone(x)) for x in views)
    want = cross_entropy_of_pairs(z1, z2) / 2 + cross_entropy_of_pairs(z2, z1) / 2
    torch.testing.assert_close(learner(*views).loss, want)


@pytest.mark.parametrize("method", list(METHODS))
def test_every_trained_tensor_gets_a_gradient_and_the_queue_gets_none(method, views):
    learner = make(method)
    learner(*views).loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in learner.parameters() if p.ndim > 1)
    assert not any(buffer.requires_grad for buffer in learner.buffers())


def test_simclr_sends_gradient_through_both_sides(views):
    """Its gradient is that of the loss with neither side held constant."""
    learner = make("simclr")
    z1, z2 = (learner.projection(learner.backbone(x)) for x in views)
    (cross_entropy_of_pairs(z1, z2) / 2 + cross_entropy_of_pairs(z2, z1) / 2).backward()
    want = learner.backbone[1].weight.grad.clone()
    learner.zero_grad()
    learner(*views).loss.backward()
    torch.testing.assert_close(learner.backbone[1].weight.grad, want)


def test_in_the_warm_start_the_view_is_the_positive(views):
    """With a neighbour share of 0 and no prediction head, NNCLR's step is SimCLR's."""
    simclr = make("simclr")
    nnclr = Learner(simclr.backbone, METHODS["nnclr"], simclr.projection, None, SupportSet(40, 8))
    torch.testing.assert_close(nnclr(*views, neighbour_share=0.0).loss, simclr(*views).loss)


def test_the_gate_gives_neighbours_to_the_most_similar(views):
    learner = make("nnclr")
    with torch.no_grad():
        z = learner.projection(learner.backbone(views[0]))
    found = learner.support_set.lookup(z)
    targets = learner._targets(z, found, 0.3)
    takes = (targets == found.embeddings).all(dim=1)
    assert takes.sum() == 3
    assert found.similarity[takes].min() >= found.similarity[~takes].max()
    assert torch.equal(targets[~takes], z[~takes])


def test_a_method_without_its_support_set_is_refused():
    backbone, projection = nn.Linear(3, 4), ProjectionHead(4, 8, 4)
    with pytest.raises(InvalidRequest, match="needs a support set"):
        Learner(backbone, METHODS["nnclr"], projection)
    with pytest.raises(InvalidRequest, match="no use for a support set"):
        Learner(backbone, METHODS["simclr"], projection, None, SupportSet(8, 4))


def test_heads_are_the_papers():
    """Projection [2048, 2048, 256], batch norm after each, ReLU on the first two; prediction [4096, 256]."""
    projection = [type(layer).__name__ for layer in ProjectionHead(2048).layers]
    assert projection == ["Linear", "BatchNorm1d", "ReLU"] * 2 + ["Linear", "BatchNorm1d"]
    assert [m.out_features for m in ProjectionHead(2048).layers if isinstance(m, nn.Linear)] == [2048, 2048, 256]
    assert [type(layer).__name__ for layer in PredictionHead().layers] == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert [m.out_features for m in PredictionHead().layers if isinstance(m, nn.Linear)] == [4096, 256]
