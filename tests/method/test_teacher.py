"""Methods with a frozen teacher equal loops written from their definitions."""

import pytest
import torch
from torch import nn

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method import METHODS, Learner, ProjectionHead, SupportSet

B, D, N = 6, 5, 20


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def make(method: str, support_set: SupportSet | None = None, **options) -> Learner:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 7))
    return Learner(
        backbone, METHODS[method], ProjectionHead(7, 0, D, layers=1, last_norm="none"), None, support_set, **options
    )


@pytest.fixture
def views():
    torch.manual_seed(1)
    return torch.randn(B, 3, 2, 2), torch.randn(B, 3, 2, 2)


@pytest.fixture
def teacher():
    return torch.randn(N, D, generator=torch.Generator().manual_seed(2))


def contrast(targets, predictions, tau=0.1) -> torch.Tensor:
    """InfoNCE, one image after the other: the target of an image against the predictions of all."""
    losses = []
    for i in range(len(targets)):
        logits = torch.stack([unit(targets[i]) @ unit(p) / tau for p in predictions])
        losses.append(logits.exp().sum().log() - logits[i])
    return torch.stack(losses).mean()


@pytest.mark.parametrize("method", ["teacher", "teacher_cosine"])
def test_both_views_are_compared_with_the_teachers_vector(method, views, teacher):
    learner, ids = make(method, teacher=teacher), torch.tensor([3, 19, 0, 7, 5, 11])
    z1, z2 = (learner.projection(learner.backbone(x)) for x in views)
    if method == "teacher":
        want = (contrast(teacher[ids], z2) + contrast(teacher[ids], z1)) / 2
    else:
        want = sum(-(unit(teacher[i]) @ unit(z)) for z_ in (z1, z2) for i, z in zip(ids, z_, strict=True)) / (2 * B)
    step = learner(views, ids=ids)
    torch.testing.assert_close(step.loss, want)
    torch.testing.assert_close((step.z1, step.online), (teacher[ids], z1.detach()))
    step.loss.backward()
    assert not teacher.requires_grad
    assert "teacher" not in learner.state_dict(), "its vectors are computed again"


def test_neighbors_are_those_of_the_teacher(views, teacher):
    """Q holds the teacher's vectors, and the target is the vector nearest to that of the image."""
    learner, ids = make("teacher_nnclr", SupportSet(12, D), teacher=teacher), torch.arange(B)
    before = learner(views, ids=torch.arange(8, 8 + B))
    learner.enqueue(before, torch.arange(8, 8 + B))
    queue = learner.support_set.queue.clone()
    torch.testing.assert_close(queue[:B], unit(teacher[8 : 8 + B]))
    nearest = torch.stack([queue[max(range(12), key=lambda row: float(teacher[i] @ queue[row]))] for i in ids])
    z1, z2 = (learner.projection(learner.backbone(x)) for x in views)
    step = learner(views, ids=ids)
    torch.testing.assert_close(step.loss, (contrast(nearest, z2) + contrast(nearest, z1)) / 2)


def test_a_teacher_is_required_where_it_is_used_and_refused_elsewhere(teacher, views):
    with pytest.raises(InvalidRequest, match="needs the vectors of a teacher"):
        make("teacher")
    with pytest.raises(InvalidRequest, match="does not use a teacher"):
        make("simclr", teacher=teacher)
    with pytest.raises(InvalidRequest, match="pass ids"):
        make("teacher", teacher=teacher)(views)
