"""Intervals and paired tests, compared with scipy and with exact values."""

import numpy as np
import pytest
from scipy import stats

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.uncertainty import confidence_interval, paired_difference


@pytest.mark.parametrize(("right", "count"), [(0.8, 400), (0.5, 50)])
def test_an_interval_of_an_accuracy_equals_the_exact_binomial_one(right, count):
    each = np.arange(count) < right * count
    exact = stats.binomtest(int(right * count), count).proportion_ci(method="wilson")
    assert confidence_interval(each) == pytest.approx((exact.low, exact.high), abs=0.03 if count < 100 else 0.01)


def test_intervals_contain_the_truth_as_often_as_they_claim():
    random = np.random.default_rng(0)
    inside = 0
    for seed in range(200):
        low, high = confidence_interval(random.random(100) < 0.7, seed=seed)
        inside += low <= 0.7 <= high
    assert 180 <= inside <= 198


def test_the_paired_test_agrees_with_mcnemar():
    """The two sources differ on 30 images: 22 times the first one is right, 8 times the second."""
    first, second = np.zeros(500), np.zeros(500)
    first[:22] = 1
    second[22:30] = 1
    first[100:300] = second[100:300] = 1
    found = paired_difference(first, second)
    assert found.mean == pytest.approx(14 / 500)
    assert found.low < found.mean < found.high
    assert found.p == pytest.approx(stats.binomtest(22, 30).pvalue, abs=0.006)
    opposite = paired_difference(second, first)
    assert (opposite.mean, opposite.p) == pytest.approx((-found.mean, found.p), abs=0.006)


def test_equal_sources_do_not_differ():
    each = np.random.default_rng(1).random(80)
    found = paired_difference(each, each)
    assert (found.mean, found.low, found.high, found.p) == (0, 0, 0, 1)


def test_missing_values_are_refused():
    with pytest.raises(InvalidRequest):
        confidence_interval(np.zeros(0))
    with pytest.raises(InvalidRequest):
        paired_difference(np.zeros(3), np.zeros(4))
