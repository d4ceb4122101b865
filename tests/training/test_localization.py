"""Pointing, AUROC and bootstrap intervals, compared with literal implementations and scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from training.evals.boxes.bootstrap import estimate
from training.evals.boxes.maps import BASELINES
from training.evals.boxes.scoring import auroc, pointing


@pytest.mark.parametrize("levels", [2, 5, 10**6])
def test_auroc_equals_scikit_learns_with_ties(levels):
    rng = np.random.default_rng(levels)
    for share in (0.02, 0.5, 0.97):
        values = (rng.integers(0, levels, (37, 53)) / levels).astype(np.float32)
        inside = rng.random((37, 53)) < share
        assert auroc(values, inside) == pytest.approx(roc_auc_score(inside.ravel(), values.ravel()), abs=1e-12)


def test_auroc_needs_pixels_on_both_sides():
    assert np.isnan(auroc(np.ones((2, 2)), np.ones((2, 2), bool)))
    assert np.isnan(auroc(np.ones((2, 2)), np.zeros((2, 2), bool)))


def test_pointing_is_the_share_of_maxima_in_boxes():
    inside = np.zeros((4, 5), bool)
    inside[1:3, 2:] = True
    values = np.arange(20, dtype=np.float32).reshape(4, 5)
    assert pointing(values, inside) == 0
    values[2, 3] = 99
    assert pointing(values, inside) == 1
    values[0, 0] = 99
    assert pointing(values, inside) == 0.5
    assert pointing(np.zeros((4, 5)), inside) == pytest.approx(6 / 20)


def test_baselines_have_the_shape_of_their_names():
    inside = np.zeros((90, 130), bool)
    inside[45, 65] = True
    for name in ("center", "gaussian"):
        values = BASELINES[name].draw(130, 90)
        assert values.shape == (90, 130)
        assert pointing(values, inside) == 1
    assert auroc(BASELINES["gaussian"].draw(130, 90), inside) == 1
    assert pointing(BASELINES["area"].draw(130, 90), inside) == pytest.approx(1 / (90 * 130))
    values = BASELINES["gaussian"].draw(128, 64)
    assert values[32, 64 + 32] == pytest.approx(values[32 + 16, 64]), "an ellipse of the image's proportions"


def literal(scores, images, classes, draws, seed):
    """One draw after another, one score after another, with the same numbers counts."""
    distinct = sorted({int(one) for row in images for one in np.atleast_1d(row)})
    rng = np.random.default_rng(seed)
    found = []
    for counts in rng.multinomial(len(distinct), [1 / len(distinct)] * len(distinct), size=draws):
        times = dict(zip(distinct, counts.tolist(), strict=True))
        sums: dict[int, list[float]] = {}
        for score, row, kind in zip(scores, images, classes, strict=True):
            weight = 1
            for one in np.atleast_1d(row):
                weight *= times[int(one)]
            pair = sums.setdefault(int(kind), [0.0, 0.0])
            pair[0] += weight * score
            pair[1] += weight
        means = [total / weight for total, weight in sums.values() if weight]
        if means:
            found.append(sum(means) / len(means))
    return np.percentile(found, [2.5, 97.5])


def test_the_bootstrap_equals_a_literal_one():
    rng = np.random.default_rng(3)
    scores, classes = rng.random(40), rng.integers(0, 4, 40) * 3
    pairs = np.stack([rng.integers(0, 9, 40) * 7, rng.integers(0, 9, 40) * 7], axis=1)
    got = estimate(scores, pairs, classes=classes, draws=60, seed=5)
    assert got.mean == pytest.approx(np.mean([scores[classes == kind].mean() for kind in np.unique(classes)]))
    np.testing.assert_allclose([got.low, got.high], literal(scores, pairs, classes, 60, 5))
    alone = estimate(scores, np.arange(40), draws=60, seed=5)
    assert alone.mean == pytest.approx(scores.mean())
    np.testing.assert_allclose([alone.low, alone.high], literal(scores, np.arange(40), [0] * 40, 60, 5))


def test_missing_scores_do_not_count():
    scores = np.array([0.25, np.nan, 0.75])
    assert estimate(scores, np.arange(3), draws=50) == estimate(scores[[0, 2]], np.array([0, 1]), draws=50)
    nothing = estimate(np.array([np.nan]), np.array([0]))
    assert np.isnan([nothing.mean, nothing.low, nothing.high]).all()


def test_intervals_cover_the_truth_about_95_percent_of_the_time():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        got = estimate((rng.random(80) < 0.7).astype(float), np.arange(80), draws=200, seed=trial)
        hits += got.low <= 0.7 <= got.high
    assert 0.88 <= hits / 200 <= 0.99
