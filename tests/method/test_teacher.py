"""Methods with a frozen teacher equal loops written from their definitions."""

import pytest
import torch
from linear_learner import B, D, contrast, make, two_views, unit

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method import SupportSet

N = 20


@pytest.fixture
def views():
    return two_views()


@pytest.fixture
def teacher():
    return torch.randn(N, D, generator=torch.Generator().manual_seed(2))


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
