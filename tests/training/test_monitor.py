"""What a run looks at while it learns: its time, weights that are numbers, however large, and those that are none."""

import math
import time

import pytest
from torch import nn

from nnclr_hub.errors import TrainingDiverged
from training.monitor import Monitor, stop_if_diverged


def network(value: float) -> nn.Sequential:
    """Weights of two types, all finite but perhaps one."""
    made = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2).bfloat16())
    made[1].bias.data[1] = value
    return made


@pytest.mark.parametrize("value", [1e20, -1e38, 0.0])
def test_finite_weights_go_on_however_large(value, tmp_path):
    """The square of 1e20 is beyond float32."""
    made = network(0.0)
    made[0].weight.data[2, 1] = value
    stop_if_diverged(made, 0.5, 7, tmp_path, None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_weight_that_is_no_number_stops_the_run(value, tmp_path):
    with pytest.raises(TrainingDiverged, match="A weight is no number at step 7, and the checkpoint of step 5"):
        stop_if_diverged(network(value), 0.5, 7, tmp_path, 5)


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
    with pytest.raises(TrainingDiverged, match="The loss is no number at step 7: begin anew"):
        stop_if_diverged(network(0.0), math.nan, 7, tmp_path, None)


def test_training_time_is_counted_without_what_happens_in_between(tmp_path):
    monitor = Monitor(tmp_path, 0)
    for _ in range(4):
        time.sleep(0.05)
        monitor.add({}, 100, 0.0)
        with monitor.paused():
            time.sleep(0.2)
    line = monitor.log(4, 1.0)
    assert 400 / 0.5 < line["images_per_s"] < 400 / 0.2
