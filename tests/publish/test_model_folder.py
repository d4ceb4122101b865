"""What an export leaves on disk: whole or not at all, readable, and only what really loads."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

from nnclr_hub import load_encoder
from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest, ModelError, TamperedModel, WeightsMismatch
from nnclr_hub.publish.card import write_card
from nnclr_hub.publish.export import export_model, export_run


def export_tiny(folder, backbone=None, **options):
    backbone = backbone or create_backbone("test_resnet")
    return export_model(backbone, folder, architecture="test_resnet", preprocessing=Preprocessing(64), **options)


def test_files_have_the_mode_of_any_new_file(tmp_path):
    """Another user, such as a container's, must be able to read them."""
    (tmp_path / "plain").write_text("")
    folder = export_tiny(tmp_path / "model", heads={"projection": torch.nn.Linear(3, 3)})
    assert len(list(folder.iterdir())) == 4
    for path in folder.iterdir():
        assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode, path
    assert not (export_tiny(folder) / "nnclr_heads.safetensors").exists(), "heads of the older export"


@pytest.mark.parametrize("fails", ["safetensors.torch.save", "nnclr_hub.publish.export.model_card"])
def test_an_export_that_fails_leaves_the_old_model(tmp_path, monkeypatch, fails):
    """Also if only its card is written again."""
    folder = export_tiny(tmp_path / "model")
    old = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fails, full)
    torch.manual_seed(1)
    with pytest.raises(ModelError):
        export_tiny(folder)
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ModelError):
        write_card(folder, repository="org/name")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == old


@pytest.mark.parametrize("moves", [1, 2])
def test_a_stop_between_two_moves_is_detected_and_fixed_by_the_next_export(tmp_path, monkeypatch, moves):
    """Refuse new weights with an old config."""
    folder = export_tiny(tmp_path / "model")
    replace = os.replace

    def stop(source: str, target: str) -> None:
        nonlocal moves
        moves -= 1
        if moves < 0:
            raise KeyboardInterrupt
        replace(source, target)

    torch.manual_seed(1)
    backbone = create_backbone("test_resnet")
    monkeypatch.setattr("os.replace", stop)
    with pytest.raises(KeyboardInterrupt):
        export_tiny(folder, backbone)
    monkeypatch.setattr("os.replace", replace)
    with pytest.raises(TamperedModel, match=r"model\.safetensors"):
        load_encoder(folder, device="cpu")
    (folder / ".export-left").mkdir()
    x = torch.randn(2, 3, 64, 64)
    got = load_encoder(export_tiny(folder, backbone), device="cpu").embed(x)
    with torch.no_grad():
        np.testing.assert_allclose(got, torch.nn.functional.normalize(backbone.eval()(x)), atol=1e-5)
    assert not list(folder.glob(".export-*"))


def test_an_input_size_that_positions_depend_on_is_written_down(tmp_path):
    """Without img_size in model_args neither we nor transformers could build the network again."""
    backbone = create_backbone("vit_tiny", model_args={"depth": 1}, image_size=64).eval()
    folder = export_model(
        backbone, tmp_path / "vit", architecture="vit_tiny", model_args={"depth": 1}, preprocessing=Preprocessing(64)
    )
    assert json.loads((folder / "config.json").read_text())["model_args"] == {"depth": 1, "img_size": 64}
    x = torch.randn(2, 3, 64, 64)
    from transformers import AutoModel

    with torch.no_grad():
        want = torch.nn.functional.normalize(backbone(x)).numpy()
        theirs = torch.nn.functional.normalize(AutoModel.from_pretrained(folder).eval()(x).pooler_output).numpy()
        timms = torch.nn.functional.normalize(timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(x))
    for got in (load_encoder(folder, device="cpu").embed(x), theirs, timms.numpy()):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_folder_with_another_model_is_not_overwritten(model, tmp_path):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "file").write_text("")
    for target in ("bert", "file"):
        with pytest.raises(InvalidRequest):
            export_run(model, tmp_path / target)
        with pytest.raises(InvalidRequest):
            export_tiny(tmp_path / target)
    assert (tmp_path / "bert" / "config.json").read_text() == '{"model_type": "bert"}'
    ours = shutil.copytree(model, tmp_path / "ours")
    (ours / ".git").mkdir()
    assert (export_run(model, ours, dtype="fp16") / ".git").is_dir()


def test_the_hub_reads_the_cards_front_matter(tmp_path):
    """With the Hub's own reader: names, license, and a model index of what was measured and nothing else."""
    from huggingface_hub import ModelCard

    about = {
        "metrics": {"knn20/imagenette128": 0.62},
        "license": "apache-2.0",
        "data": ["imagenette"],
        "data_terms": "research only: see ImageNet's terms",
    }
    card = ModelCard.load(export_tiny(tmp_path / "mine", provenance=about) / "README.md")
    assert card.data.license == "apache-2.0"
    assert card.data.library_name == "timm"
    assert card.data.pipeline_tag == "image-feature-extraction"
    results = [(r.dataset_name, r.metric_name, r.metric_value) for r in card.data.eval_results]
    assert results == [("imagenette128", "knn20/imagenette128", 0.62)]
    assert "Weights: apache-2.0. Training images: imagenette; research only" in card.text
    assert "@COMMIT" in card.text

    bare = ModelCard.load(export_tiny(tmp_path / "bare") / "README.md")
    assert bare.data.license == "unknown"
    assert bare.data.eval_results is None
    assert "license not stated" in bare.text
    assert "No results" in bare.text


def test_an_edited_card_is_kept(tmp_path):
    folder = export_tiny(tmp_path / "model")
    (folder / "README.md").write_text("My own words.")
    export_tiny(folder)
    assert (folder / "README.md").read_text() == "My own words."
    export_run(export_tiny(tmp_path / "another"), folder)
    assert (folder / "README.md").read_text() == "My own words."


def test_what_an_export_cannot_write_is_refused(tmp_path):
    with pytest.raises(WeightsMismatch):  # of another architecture
        export_tiny(tmp_path / "model", create_backbone("resnet18"))
    assert not (tmp_path / "model").exists()
    for value in (float("nan"), object()):
        with pytest.raises(InvalidRequest, match="JSON"):
            export_tiny(tmp_path / "model", provenance={"metrics": {"knn20/x": value}})
    backbone = create_backbone("test_resnet")
    backbone.get_buffer("stem.bn1.running_var" if hasattr(backbone, "stem") else "bn1.running_var")[0] = 1e5
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    assert export_tiny(tmp_path / "full", backbone).exists()
    # a checkpoint of a training run must not change what follows
    assert torch.equal(torch.rand(3), want)
    with pytest.raises(WeightsMismatch):  # too large a number
        export_run(tmp_path / "full", tmp_path / "half", dtype="fp16")


@pytest.mark.slow
def test_a_full_disk_is_reported_and_leaves_no_files(model, tmp_path):
    """Simulate a full disk with the limit on the size of a file."""
    code = (
        "import resource, sys; sys.dont_write_bytecode = True\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "from pathlib import Path; from nnclr_hub.errors import ModelError\n"
        "from nnclr_hub.publish.export import export_run\n"
        "try: export_run(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "except ModelError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, model, tmp_path / "copy"], capture_output=True, text=True)
    assert "File too large" in done.stdout
    assert list((tmp_path / "copy").iterdir()) == []
