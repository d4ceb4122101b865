"""Exports: equal models give equal bytes, half precision, and refusals."""

import numpy as np
import pytest
import torch

from nnclr_hub import load_encoder
from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest, ModelFilesMissing, WeightsMismatch
from nnclr_hub.method import ProjectionHead
from nnclr_hub.publish.export import export_model, export_run


def test_the_same_model_gives_the_same_bytes(tmp_path):
    torch.manual_seed(0)
    backbone, head = create_backbone("test_resnet"), ProjectionHead(96, 16, 8)
    folders = [
        export_model(
            backbone,
            tmp_path / name / "model",
            architecture="test_resnet",
            preprocessing=Preprocessing(64),
            heads={"projection": head},
            provenance={"recipe": "r"},
        )
        for name in ("one", "two")
    ]
    for file in ("config.json", "model.safetensors", "nnclr_heads.safetensors", "README.md"):
        assert (folders[0] / file).read_bytes() == (folders[1] / file).read_bytes(), file
    again = [export_run(folders[0], tmp_path / "three" / "model"), export_run(folders[0], tmp_path / "four" / "model")]
    for file in ("config.json", "model.safetensors"):
        assert (again[0] / file).read_bytes() == (again[1] / file).read_bytes() == (folders[0] / file).read_bytes()


def test_half_precision_stays_within_a_thousandth(model, tmp_path, image_files):
    half = export_run(model, tmp_path / "half", dtype="fp16")
    assert (half / "model.safetensors").stat().st_size < 0.6 * (model / "model.safetensors").stat().st_size
    full, small = (load_encoder(folder, device="cpu").embed(image_files) for folder in (model, half))
    np.testing.assert_allclose(full, small, atol=1e-3)


def test_an_invalid_export_is_refused(model, tmp_path):
    with pytest.raises(ModelFilesMissing):
        export_run(tmp_path, tmp_path / "out")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidRequest):
        export_run(model, tmp_path / "taken")
    with pytest.raises(InvalidRequest, match="fp64"):
        export_run(model, tmp_path / "x", dtype="fp64")
    backbone = create_backbone("test_resnet")
    with torch.no_grad():
        next(backbone.parameters())[0] = float("nan")
    with pytest.raises(WeightsMismatch, match="NaN"):
        export_model(backbone, tmp_path / "nan", architecture="test_resnet", preprocessing=Preprocessing(64))
    assert not (tmp_path / "nan").exists()
