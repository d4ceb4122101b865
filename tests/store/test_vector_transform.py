"""Centering and whitening, compared with scikit-learn's PCA."""

import numpy as np
import pytest

from nnclr_hub.errors import InvalidRequest
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


@pytest.mark.parametrize("kind", ["half_whiten", "whiten"])
def test_fewer_vectors_than_dimensions_stay_finite(kind):
    few = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    found = VectorTransform.fit(few, kind)(np.vstack([few, -few, few[:1] * 7]))
    assert np.isfinite(found).all()
    assert found[0] == pytest.approx(found[-1], abs=1e-5), "the length of a vector does not count"
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("rows", "kind"), [(3, "sphere"), (0, "whiten")])
def test_impossible_fits_are_refused(rows, kind):
    with pytest.raises(InvalidRequest):
        VectorTransform.fit(np.ones((rows, 4), np.float32), kind)
