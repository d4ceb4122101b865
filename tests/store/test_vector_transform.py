"""Centering and whitening, compared with scikit-learn's PCA."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store import vector_transform
from nnclr_hub.store.vector_transform import VectorTransform, unit_length


@pytest.fixture
def vectors():
    """Return (400, 6) float32 around a common direction, with unequal variances."""
    random = np.random.default_rng(0)
    return (random.standard_normal((400, 6)) * [3, 2, 1, 1, 0.5, 0.2] + [4, 0, 0, 2, 0, 0]).astype(np.float32)


def test_centered_vectors_have_no_common_direction(vectors):
    centered = VectorTransform.fit(vectors, "center")(vectors)
    unit = unit_length(vectors)
    assert centered == pytest.approx(unit_length(unit - unit.mean(axis=0)), abs=1e-5)


@pytest.mark.parametrize(("kind", "power"), [("half_whiten", 0.25), ("whiten", 0.5)])
def test_whitening_without_a_ridge_is_that_of_scikit_learn(vectors, kind, power, monkeypatch):
    monkeypatch.setattr(vector_transform, "RIDGE", 0.0)
    pca = PCA()
    components = pca.fit_transform(unit_length(vectors))
    cosines = (lambda x: x @ x.T)(VectorTransform.fit(vectors, kind)(vectors))
    expected = unit_length(components / pca.explained_variance_**power)
    assert cosines == pytest.approx(expected @ expected.T, abs=1e-3)


@pytest.mark.parametrize("kind", ["half_whiten", "whiten"])
def test_fewer_vectors_than_dimensions_stay_finite(kind):
    few = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    found = VectorTransform.fit(few, kind)(np.vstack([few, -few, few[:1] * 7]))
    assert np.isfinite(found).all()
    assert found[0] == pytest.approx(found[-1], abs=1e-5), "the length of a vector does not count"
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)


def test_equal_vectors_become_zero_instead_of_nan():
    found = VectorTransform.fit(np.ones((3, 4), np.float32), "whiten")(np.ones((1, 4), np.float32))
    assert np.isfinite(found).all()


def test_raw_only_normalizes(vectors):
    assert VectorTransform.fit(vectors, "raw")(vectors) == pytest.approx(unit_length(vectors), abs=1e-6)


@pytest.mark.parametrize(("rows", "kind"), [(3, "sphere"), (0, "whiten")])
def test_impossible_fits_are_refused(rows, kind):
    with pytest.raises(InvalidRequest):
        VectorTransform.fit(np.ones((rows, 4), np.float32), kind)
