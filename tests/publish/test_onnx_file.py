"""The ONNX file gives torch's vectors under ONNX Runtime alone, and says what it is."""

import errno
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import output_of

from nnclr_hub import load_encoder
from nnclr_hub.errors import InvalidRequest, MissingDependency, ModelError, UnknownModel, WeightsMismatch
from nnclr_hub.publish import export
from nnclr_hub.publish.export import export_onnx, probe_images

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

RESNET, VIT = ("resnet18", {"channels": [8, 16, 24, 32]}, 48), ("test_vit", {}, 160)


@pytest.fixture(scope="module", params=[RESNET, pytest.param(VIT, marks=pytest.mark.slow)])
def exported(request, make_model, tmp_path_factory) -> tuple[Path, Path]:
    """Return a model folder and the file that the verb writes of it."""
    folder, path = make_model(*request.param), tmp_path_factory.mktemp("onnx") / "model.onnx"
    assert "cosine with torch's vectors 1.0" in output_of("onnx", folder, path)
    return folder, path


def test_the_file_gives_torchs_vectors_for_any_batch(exported):
    folder, path = exported
    assert [one.name for one in path.parent.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    encoder = load_encoder(folder, device="cpu")
    crops = probe_images(encoder.transform.preprocessing.input_size, 9)
    for count in (1, 2, 9):
        features, vectors = session.run(["features", "embedding"], {"pixels": crops[:count]})
        np.testing.assert_array_equal(session.run(None, {"pixels": crops[:count]})[0], vectors)
        np.testing.assert_allclose(vectors, encoder.forward_crops(crops[:count]), atol=1e-5)
        np.testing.assert_allclose(features, encoder.forward_crops(crops[:count], unit=False), rtol=1e-3, atol=1e-4)
    about = session.get_modelmeta().custom_metadata_map
    assert about["fingerprint"] == encoder.fingerprint
    assert json.loads(about["preprocessing"])["input_size"] == crops.shape[1]


def test_an_invalid_onnx_export_is_explained(model, tmp_path, monkeypatch):
    for wrong in (tmp_path / "model.bin", tmp_path / "no" / "model.onnx"):
        with pytest.raises(InvalidRequest):
            export_onnx(model, wrong)
    with pytest.raises(UnknownModel):
        export_onnx("no_such_model", tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingDependency, match=r"onnxscript.*nnclr_hub\[torch\]"):
        export_onnx(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_file_with_other_vectors_is_not_written(exported, make_model, tmp_path, monkeypatch):
    (tmp_path / "model.onnx").write_text("older")
    monkeypatch.setattr(export, "onnx_bytes", lambda network, about: exported[1].read_bytes())
    with pytest.raises(WeightsMismatch):
        export_onnx(make_model(seed=1), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_text() == "older"


def test_an_unwritable_path_is_reported_before_the_export(model, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "onnx_bytes", None)
    (tmp_path / "model.onnx").mkdir()
    with pytest.raises(ModelError):
        export_onnx(model, tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_a_full_disk_is_reported_and_keeps_the_older_file(model, tmp_path, monkeypatch):
    def full(self, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(export, "onnx_bytes", lambda network, about: b"model")
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    monkeypatch.setattr(Path, "write_bytes", full)
    (tmp_path / "model.onnx").write_text("older")
    with pytest.raises(ModelError):
        export_onnx(model, tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert (tmp_path / "model.onnx").read_text() == "older"
