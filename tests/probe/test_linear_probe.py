"""The linear probe against scikit-learn's logistic regression."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from nnclr_hub import fit_linear_probe
from nnclr_hub.errors import InvalidRequest


@pytest.fixture
def clouds():
    """Three overlapping clouds: (300, 5) features and their labels."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 100)
    return rng.normal(size=(300, 5)).astype(np.float32) + labels[:, None] * 0.7, labels


@pytest.mark.parametrize("l2", [1e-3, 1e-1])
def test_it_is_scikit_learns_logistic_regression(clouds, l2):
    features, labels = clouds
    ours = fit_linear_probe(features, labels, l2=l2)
    theirs = LogisticRegression(C=1 / (l2 * len(labels)), tol=1e-8, max_iter=5000).fit(features, labels)
    np.testing.assert_allclose(ours.predict(features).probabilities, theirs.predict_proba(features), atol=2e-3)
    assert ours.predict(features).labels == theirs.predict(features).tolist()


def test_labels_come_back_as_they_were_given(clouds):
    features, labels = clouds
    names = np.array(["cat", "dog", "eel"])[labels].tolist()
    probe = fit_linear_probe(features, names)
    assert probe.classes == ("cat", "dog", "eel")
    assert set(probe.predict(features).labels) <= {"cat", "dog", "eel"}
    np.testing.assert_allclose(probe.predict(features).probabilities.sum(axis=1), 1, atol=1e-5)


def test_the_penalty_is_chosen_by_held_out_accuracy():
    """Twenty useful rows among two hundred useless dimensions want a strong penalty, clean rows a weak one."""
    rng = np.random.default_rng(0)
    noisy = rng.normal(size=(40, 200)).astype(np.float32)
    labels = rng.integers(0, 2, 40)
    noisy[:, 0] += labels
    clean = np.eye(4, dtype=np.float32)[np.arange(200) % 4] + 0.01 * rng.normal(size=(200, 4)).astype(np.float32)
    probe = fit_linear_probe(clean, np.arange(200) % 4)
    assert probe.predict(clean).labels == (np.arange(200) % 4).tolist()
    assert fit_linear_probe(noisy, labels).l2 >= 1e-7


def test_bad_input_is_explained(clouds):
    features, labels = clouds
    with pytest.raises(InvalidRequest):
        fit_linear_probe(features, np.zeros(300))
    with pytest.raises(InvalidRequest):
        fit_linear_probe(features, labels[:-1])
    with pytest.raises(InvalidRequest):
        fit_linear_probe(np.full((300, 5), np.nan), labels)
    with pytest.raises(InvalidRequest):
        fit_linear_probe(features, labels).predict(np.zeros((2, 4)))
