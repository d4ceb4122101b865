"""Few-shot curves."""

import numpy as np
import pytest

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.few_shot import few_shot_curve


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    y = np.arange(400) % 4
    x = rng.normal(size=(400, 16)) + 1.2 * np.eye(16)[y]
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), y


def test_more_labels_are_better_and_seeds_repeat(rows):
    x, y = rows
    curve = few_shot_curve(x[:200], y[:200], x[200:], y[200:], shots=(1, 10, 50), seeds=3)
    assert [point.per_class for point in curve] == [1, 10, 50]
    means = [np.mean(point.accuracy) for point in curve]
    assert means[0] < means[1] < means[2]
    assert curve == few_shot_curve(x[:200], y[:200], x[200:], y[200:], shots=(1, 10, 50), seeds=3)
    assert len(set(curve[0].accuracy)) > 1  # seeds draw other images


def test_all_labels_are_the_whole_probe(rows):
    """With as many shots as there are, every seed has the same rows, and so the same accuracy."""
    x, y = rows
    (point,) = few_shot_curve(x[:200], y[:200], x[200:], y[200:], shots=(50, 1000), seeds=3)
    assert max(point.accuracy) - min(point.accuracy) < 0.02


def test_impossible_curves_are_refused(rows):
    x, y = rows
    with pytest.raises(InvalidRequest):
        few_shot_curve(x, np.zeros(400, int), x, y)
    with pytest.raises(InvalidRequest):
        few_shot_curve(x, y, x, y, shots=(1000,))


def test_labels_that_cannot_be_scored_are_named(rows):
    x, y = rows
    with pytest.raises(InvalidRequest, match="1 of 400 labels are missing"):
        few_shot_curve(x, y, x, [None, *y[1:]])
    with pytest.raises(InvalidRequest, match="lack: \\['0', '1', '2', '3'\\]"):
        few_shot_curve(x, y, x, y.astype(str))
    with pytest.raises(InvalidRequest, match=r"per row, got 400 test rows and 399 test labels\.$"):
        few_shot_curve(x, y, x, y[1:])
