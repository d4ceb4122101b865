"""--init: start from an encoder."""

import json
import shutil

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from nnclr_hub.errors import InvalidRequest, UnknownModel
from training.network import adopt, build_learner, find_initial_encoder, load_initial_encoder
from training.pretrain import pretrain
from training.recipes import find_recipe

QUIET = Console(quiet=True)
FAST = [
    *("projection_hidden=16", "projection_dim=8", "image_size=32", "pack_size=32", "eval_size=32", "batch_size=16"),
    *("epochs=1", "checkpoint_every=1", "log_every=1", "precision=fp32", "queue_size=40"),
]


def test_the_backbone_and_its_widths_come_from_the_source(model):
    start = find_initial_encoder(str(model))
    recipe = adopt(find_recipe("small_cpu"), start, QUIET)
    assert recipe.channels == (8, 16, 24, 32)
    learner = build_learner(recipe)
    load_initial_encoder(learner, start, QUIET)
    for name, value in load_file(model / "model.safetensors").items():
        assert torch.equal(learner.backbone.state_dict()[name], value), name


def test_the_momentum_encoder_starts_from_the_online_encoder(model):
    start = find_initial_encoder(str(model))
    recipe = adopt(find_recipe("small_cpu").with_settings(["method=momentum_nnclr"]), start, QUIET)
    learner = build_learner(recipe)
    load_initial_encoder(learner, start, QUIET)
    for ours, theirs in zip(
        learner.momentum.encoder.state_dict().values(), learner.online.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_mean_and_std_come_from_the_source(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"]["mean"] = config["pretrained_cfg"]["std"] = [0.5, 0.5, 0.5]
    (folder / "config.json").write_text(json.dumps(config))
    recipe = adopt(find_recipe("small_cpu"), find_initial_encoder(str(folder)), QUIET)
    assert recipe.mean == recipe.std == (0.5, 0.5, 0.5)
    given = adopt(find_recipe("small_cpu").with_settings(["mean=.1,.2,.3"]), find_initial_encoder(str(folder)), QUIET)
    assert (given.mean, given.std) == ((0.1, 0.2, 0.3), recipe.std)
    vit = adopt(find_recipe("small_cpu"), find_initial_encoder("timm:vit_small_patch16_224.augreg_in21k"), QUIET)
    assert vit.mean == (0.5, 0.5, 0.5)


def test_a_run_folder_is_rejected_with_a_hint_to_its_encoder(photos, tmp_path):
    (tmp_path / "run" / "encoder").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="run/encoder"):
        find_initial_encoder(str(tmp_path / "run"))


def test_an_encoder_of_a_run_brings_its_heads(photos, tmp_path, capsys):
    recipe = find_recipe("small_cpu").with_settings([*FAST, "channels=8,8,8,8"])
    pretrain(recipe, [photos], tmp_path / "first")
    pretrain(
        find_recipe("small_cpu").with_settings(FAST),
        [photos],
        tmp_path / "second",
        init=str(tmp_path / "first" / "encoder"),
    )
    printed = " ".join(capsys.readouterr().err.split())
    assert "its projection head" in printed
    assert "resnet18 [8, 8, 8, 8] from --init" in printed


def test_the_backbone_is_fixed_while_the_heads_learn(photos, model, tmp_path):
    recipe = find_recipe("small_cpu").with_settings([*FAST, "heads_first=1"])
    pretrain(recipe, [photos], tmp_path / "run", init=str(model))
    before, after = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "run" / "encoder"))
    assert all(torch.equal(before[name], after[name]) for name in before if "running" not in name and "num" not in name)
    assert any(not torch.equal(before[name], after[name]) for name in before if "running" in name)


def test_a_different_architecture_is_rejected(model):
    recipe = find_recipe("small_cpu").with_settings(["backbone=resnet34"])
    with pytest.raises(InvalidRequest, match="resnet34"):
        adopt(recipe, find_initial_encoder(str(model)), QUIET)
    with pytest.raises(InvalidRequest, match="untrained"):
        find_initial_encoder("random:resnet18")
    with pytest.raises(UnknownModel):
        find_initial_encoder("./no-such-folder")
