"""The check for weights and losses that are not finite."""

import math

import pytest
from torch import nn

from nnclr_hub.errors import TrainingDiverged
from training.monitor import stop_if_diverged


def network(value: float) -> nn.Sequential:
    """Return weights of two types, all finite except for `value`."""
    made = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2).bfloat16())
    made[1].bias.data[1] = value
    return made


@pytest.mark.parametrize("value", [1e20, -1e38, 0.0])
def test_large_finite_weights_are_accepted(value, tmp_path):
    """The square of 1e20 is beyond float32."""
    made = network(0.0)
    made[0].weight.data[2, 1] = value
    stop_if_diverged(made, 0.5, 7, tmp_path, None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_not_finite_stops_the_run(value, tmp_path):
    with pytest.raises(TrainingDiverged, match=r"step 7.*step 5"):
        stop_if_diverged(network(value), 0.5, 7, tmp_path, 5)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    with pytest.raises(TrainingDiverged, match=r"loss.*step 7"):
        stop_if_diverged(network(0.0), math.nan, 7, tmp_path, None)
