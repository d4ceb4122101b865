"""nnclr export, card, publish and convert: what they print, and how they refuse."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from commands import nnclr

from nnclr_hub import load_encoder
from nnclr_hub.hub.layout import read_config

pytestmark = pytest.mark.usefixtures("without_graphs")


def test_export_reports_skipped_checks(model, tmp_path):
    code, text, _ = nnclr("export", model, tmp_path / "copy", "--license", "mit", "--trained-on", "my own")
    assert code == 0
    assert "knn20/made_up 0.5: not checked; --data" in text
    assert "accuracies of the run" in text
    card = (tmp_path / "copy" / "README.md").read_text()
    assert "Weights: mit. Training images: my own." in card
    assert read_config(tmp_path / "copy").nnclr["rechecked"] == {"knn20/made_up": None}


def test_card_prints_or_writes_and_keeps_edits(model, tmp_path):
    folder = tmp_path / "resnet18"
    shutil.copytree(model, folder)
    written = (folder / "README.md").read_text()
    assert nnclr("card", folder)[1] == written
    assert "hf-hub:org/name@v1" in nnclr("card", folder, "--repo", "org/name", "--tag", "v1")[1]
    (folder / "README.md").write_text("mine")
    code, _, error = nnclr("card", folder, "--write")
    assert code == 2
    assert "--overwrite" in error
    assert nnclr("card", folder, "--write", "--overwrite")[0] == 0
    assert (folder / "README.md").read_text() == written


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--repo", "name"], "'name'"),
        (["--tag", "v1"], "--repo"),
        (["--overwrite"], "--write"),
    ],
)
def test_card_refuses_options_that_have_no_effect(model, flags, sentence):
    code, text, error = nnclr("card", model, *flags)
    assert (code, text) == (2, "")
    assert sentence in " ".join(error.split())


def test_card_as_json(model):
    assert json.loads(nnclr("card", model, "--json")[1])["card"] == nnclr("card", model)[1]


def test_publish_refuses_a_wrong_call_with_2_and_a_missing_token_with_1(model, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
    assert nnclr("publish", model, "name")[0] == 2
    code, _, error = nnclr("publish", model, "org/name")
    assert code == 1
    assert "HF_TOKEN" in error


def test_convert_takes_arguments_of_the_architecture(tmp_path):
    from nnclr_hub.encoder.backbones import create_backbone

    torch.manual_seed(0)
    network = create_backbone("test_vit", model_args={"num_heads": 4}).eval()
    torch.save(network.state_dict(), tmp_path / "tiny.pth")
    code, _, error = nnclr("convert", tmp_path / "tiny.pth", tmp_path / "model")
    assert code == 1
    assert "--architecture" in error
    call = ["convert", tmp_path / "tiny.pth", tmp_path / "model", "--architecture", "test_vit"]
    code, text, _ = nnclr(*call, "--arg", "num_heads=4", "--json")
    assert code == 0
    done = json.loads(text)
    assert done["model_args"] == {"num_heads": 4}
    x = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        want = torch.nn.functional.normalize(network(x))
    got = load_encoder(Path(done["folder"]), device="cpu").embed(x)
    torch.testing.assert_close(torch.from_numpy(got), want, atol=1e-5, rtol=0)
    assert nnclr(*call, "--arg", "nonsense")[0] == 2
