"""Every loading method gives equal outputs for a model folder, and equal models give equal bytes."""

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F

from nnclr_hub import load_encoder
from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest, ModelFilesMissing, WeightsMismatch
from nnclr_hub.method import ProjectionHead
from nnclr_hub.publish.export import export_model, export_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=[("resnet18", {"channels": [8, 16, 24, 32]}, 48), ("test_vit", {}, 160)], ids=["resnet", "vit"])
def folder(request, make_model) -> Path:
    return make_model(*request.param)


def test_timm_transformers_torch_hub_and_we_agree(folder):
    encoder = load_encoder(folder, device="cpu")
    size = encoder.transform.preprocessing.input_size
    x = torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(0))
    want = encoder.embed(x)
    from transformers import AutoImageProcessor, AutoModel

    with torch.no_grad():
        methods = {
            "timm": timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(x),
            "transformers": AutoModel.from_pretrained(folder).eval()(x).pooler_output.flatten(1),
        }
    for name, vectors in methods.items():
        np.testing.assert_allclose(F.normalize(vectors).numpy(), want, atol=1e-5, err_msg=name)
    processor = AutoImageProcessor.from_pretrained(folder)
    assert processor.image_mean if hasattr(processor, "image_mean") else processor.data_config["mean"]


def test_torch_hub_loads_it(model):
    encoder = load_encoder(model, device="cpu")
    backbone = torch.hub.load(str(ROOT), "nnclr_resnet50", source="local", pretrained=False, channels=(8, 8, 8, 8))
    assert backbone(torch.zeros(1, 3, 32, 32)).shape == (1, 32)
    with pytest.raises(WeightsMismatch):
        torch.hub.load(str(ROOT), "nnclr_resnet50", source="local", weights=str(model))
    from nnclr_hub.hub.registry import default_model

    starter = torch.hub.load(str(ROOT), default_model(), source="local")
    ours = load_encoder(default_model(), device="cpu")
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        np.testing.assert_allclose(F.normalize(starter(x)).numpy(), ours.embed(x), atol=1e-5)
    ten = torch.hub.load(str(ROOT), default_model(), source="local", weights=str(model), num_classes=10, in_chans=1)
    assert ten(torch.zeros(2, 1, 48, 48)).shape == (2, 10)
    assert encoder.embed_dim == 32


def test_torch_hub_lists_nothing_but_entry_points():
    from nnclr_hub.hub.registry import list_models

    assert set(_listed()) == {
        "nnclr_resnet50",
        "nnclr_vit_small",
        "nnclr_vit_base",
        "nnclr_vit_base_patch8",
        *list_models(),
    }


def _listed() -> list[str]:
    """torch.hub.list's own rule, on the local file: it takes no local source."""
    import runpy

    return [
        name for name, value in runpy.run_path(str(ROOT / "hubconf.py")).items() if callable(value) and name[0] != "_"
    ]


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


def test_the_config_is_what_timm_and_transformers_need(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["num_classes"] == 0
    assert "model_args" in config
    assert not [key for key in config["pretrained_cfg"] if key.startswith("test_")]
    assert config["pretrained_cfg"]["crop_pct"] == 0.875


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


def test_the_card_says_how_to_load_it_and_only_what_was_measured(model):
    card = (model / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: timm")
    assert "pretrained=True" in card
    assert "knn20/made_up | 0.5" in card
