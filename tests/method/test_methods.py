"""Which rows of METHODS are possible, and a row of a plug-in."""

import dataclasses

import pytest
import torch
from torch import nn

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method import LOSSES, METHODS, TARGETS, Learner, Loss, Targets


@pytest.mark.parametrize("choices", [{"target": "neighbour"}, {"objective": "cosine"}])
def test_names_without_a_function_are_refused(choices):
    with pytest.raises(InvalidRequest):
        Learner(nn.Flatten(), dataclasses.replace(METHODS["simclr"], **choices))


def test_a_row_of_new_functions_needs_no_change_of_the_learner(monkeypatch):
    """The target is the view with its numbers reversed, and the loss is the mean squared difference."""
    monkeypatch.setitem(TARGETS, "reversed", lambda learner, batch: Targets([z.flip(1) for z in batch.own]))
    between = lambda learner, batch, targets: sum(  # noqa: E731
        (targets.of[i] - batch.p[1 - i]).square().mean() for i in range(2)
    )
    monkeypatch.setitem(LOSSES, "squares", Loss(between))
    row = dataclasses.replace(METHODS["simclr"], name="mine", target="reversed", objective="squares")
    x1, x2 = torch.rand(2, 5, 3, 2, 2)
    loss = Learner(nn.Flatten(), row)([x1, x2]).loss
    z1, z2 = x1.flatten(1), x2.flatten(1)
    torch.testing.assert_close(loss, (z1.flip(1) - z2).square().mean() + (z2.flip(1) - z1).square().mean())
