"""The example of one file is the library's NNCLR: the same losses, gradients and queue, step by step."""

import runpy
from pathlib import Path

import torch
from torch import nn

from nnclr_hub.method import METHODS, Learner, PredictionHead, ProjectionHead, SupportSet

EXAMPLE = Path(__file__).parents[2] / "examples" / "nnclr_minimal.py"


def test_it_is_at_most_150_lines():
    assert len(EXAMPLE.read_text().splitlines()) <= 150


def test_it_equals_the_library_over_several_steps():
    """A queue of 40 and batches of 12, which do not divide it, so the ring wraps around."""
    minimal = runpy.run_path(str(EXAMPLE))
    torch.manual_seed(0)
    ours = Learner(
        nn.Sequential(nn.Flatten(), nn.Linear(48, 16)),
        METHODS["nnclr"],
        ProjectionHead(16, 32, 8),
        PredictionHead(8, 24),
        SupportSet(40, 8),
    )
    model = minimal["NNCLR"](
        nn.Sequential(nn.Flatten(), nn.Linear(48, 16)),
        minimal["projection_head"](16, 32, 8),
        minimal["prediction_head"](8, 24),
        ours.support_set.queue.clone(),
    )
    theirs = {key.replace("layers.", ""): value for key, value in ours.state_dict().items()}
    model.load_state_dict({key: theirs.get(key, value) for key, value in model.state_dict().items()})
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (ours, model)]
    for _ in range(8):
        x1, x2 = torch.randn(12, 3, 4, 4), torch.randn(12, 3, 4, 4)
        step = ours([x1, x2])
        loss, z1 = model.loss(x1, x2)
        torch.testing.assert_close(loss, step.loss)
        for optimizer, value in zip(optimizers, (step.loss, loss), strict=True):
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        ours.enqueue(step)
        model.enqueue(z1)
        torch.testing.assert_close(model.queue, ours.support_set.queue)
    for mine, other in zip(ours.backbone.parameters(), model.backbone.parameters(), strict=True):
        torch.testing.assert_close(mine, other)
