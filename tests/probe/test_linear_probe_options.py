"""What a probe can do beside being fitted: hold back, be saved, refuse what is not its encoder's."""

import numpy as np
import pytest

from nnclr_hub import LinearProbe, fit_linear_probe
from nnclr_hub.errors import FingerprintMismatch, InvalidRequest


@pytest.fixture
def probe():
    rng = np.random.default_rng(0)
    labels = np.repeat(["cat", "dog"], 50)
    features = rng.normal(size=(100, 6)).astype(np.float32)
    features[:, 0] += np.where(labels == "cat", 2, -2)
    return fit_linear_probe(features, labels, l2=0.01, threshold=0.9, fingerprint="abc")


def test_below_the_threshold_the_answer_is_none(probe):
    sure, unsure = np.array([[4, 0, 0, 0, 0, 0], [0.02, 0, 0, 0, 0, 0]], np.float32)
    assert probe.predict(np.stack([sure, unsure])).labels == ["cat", None]


def test_features_of_another_encoder_are_refused(probe):
    with pytest.raises(FingerprintMismatch, match="fit a new probe"):
        probe.predict(np.zeros((1, 6)), fingerprint="xyz")
    assert probe.predict(np.zeros((1, 6)), fingerprint="abc").labels == [None]


def test_saved_and_loaded_it_is_the_same(probe, tmp_path):
    again = LinearProbe.load(probe.save(tmp_path / "probe"))
    np.testing.assert_array_equal(again.weight, probe.weight)
    assert (again.classes, again.threshold, again.fingerprint) == (("cat", "dog"), 0.9, "abc")


def test_a_folder_without_a_probe_or_with_a_damaged_one_is_explained(probe, tmp_path):
    with pytest.raises(InvalidRequest, match="holds no probe"):
        LinearProbe.load(tmp_path)
    folder = probe.save(tmp_path / "probe")
    (folder / "probe.safetensors").write_bytes(b"short")
    with pytest.raises(InvalidRequest, match="damaged"):
        LinearProbe.load(folder)


def test_held_out_rows_choose_and_then_join():
    """With features that only a strong penalty tames, the choice is the strong one."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 100)).astype(np.float32), np.arange(60) % 2
    x[:, 0] += 2 * y
    val_x, val_y = rng.normal(size=(200, 100)).astype(np.float32), np.arange(200) % 2
    val_x[:, 0] += 2 * val_y
    probe = fit_linear_probe(x, y, validation=(val_x, val_y))
    assert probe.l2 >= 0.1
    joined = fit_linear_probe(np.concatenate([x, val_x]), np.concatenate([y, val_y]), l2=probe.l2)
    np.testing.assert_allclose(probe.weight, joined.weight, atol=1e-3)


def test_what_cannot_be_fitted_is_named():
    x = np.eye(4, dtype=np.float32)
    with pytest.raises(InvalidRequest, match="eel"):
        fit_linear_probe(x, ["cat", "dog"] * 2, validation=(x[:1], ["eel"]))
    with pytest.raises(InvalidRequest, match="give l2"):
        fit_linear_probe(x, ["a", "b", "c", "d"])
    x[2, 1] = np.nan
    with pytest.raises(InvalidRequest, match="row 2"):
        fit_linear_probe(x, ["cat", "dog"] * 2)
