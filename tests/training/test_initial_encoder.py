"""--init: start from an encoder."""

import json
import shutil

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from nnclr_hub.errors import InvalidRequest, UnknownModel
from training.monitor import read_log
from training.network import adopt, build_learner, find_initial_encoder, load_initial_encoder
from training.optimization import Schedule, make_optimizer
from training.pretrain import pretrain
from training.recipes import find_recipe

pytestmark = pytest.mark.usefixtures("undrawn")

QUIET = Console(quiet=True)
FAST = [
    *("projection_hidden=16", "projection_dim=8", "image_size=32", "pack_size=32", "eval_size=32", "batch_size=16"),
    *("epochs=2", "checkpoint_every=2", "log_every=1", "precision=fp32", "queue_size=40"),
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


def test_the_heads_learn_first_and_early_layers_slowest(model):
    """The backbone's rate is 0 at first; later each layer has a fraction of the next layer's rate."""
    recipe = adopt(find_recipe("small_cpu"), find_initial_encoder(str(model)), QUIET)
    optimizer = make_optimizer(build_learner(recipe), recipe, layer_decay=0.5)
    schedule = Schedule(optimizer, recipe, 100, 10, heads_first=20)

    def rates(backbone):
        return [g["lr"] for g in optimizer.param_groups if g["backbone"] == backbone and g["params"]]

    schedule.set(15)
    assert set(rates(True)) == {0.0}
    assert min(rates(False)) > 0
    schedule.set(30)
    assert 0 < min(rates(True)) < max(rates(True)) <= rates(False)[0]
    stem = next(g for g in optimizer.param_groups if any(p.shape[1:] == (3, 7, 7) for p in g["params"]))
    assert stem["lr"] == min(rates(True))


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


def test_the_initial_encoder_is_evaluated_before_the_first_step(data, model, tmp_path):
    recipe = find_recipe("small_cpu").with_settings([*FAST, "batch_size=8"])
    pretrain(recipe, [data], tmp_path / "run", init=str(model))
    first = read_log(tmp_path / "run")[0]
    assert first["step"] == 0
    assert f"knn20/{data.name}" in first
