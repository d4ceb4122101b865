"""--init: going on from an encoder."""

import json
import shutil

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from nnclr_hub.errors import InvalidRequest, UnknownModel
from training.assemble import build_learner
from training.monitor import read_log
from training.optimization import Schedule, make_optimizer
from training.pretrain import pretrain
from training.recipes import find_recipe
from training.starting_point import adopt, find_start, load_start, warn_if_worse

pytestmark = pytest.mark.usefixtures("undrawn")

QUIET = Console(quiet=True)
FAST = [
    *("projection_hidden=16", "projection_dim=8", "image_size=32", "pack_size=32", "eval_size=32", "batch_size=16"),
    *("epochs=2", "checkpoint_every=2", "log_every=1", "precision=fp32", "queue_size=40"),
]


def test_the_backbone_is_the_sources_and_the_recipe_takes_its_shape(model):
    start = find_start(str(model))
    recipe = adopt(find_recipe("small_cpu"), start, QUIET)
    assert recipe.channels == (8, 16, 24, 32)
    learner = build_learner(recipe)
    load_start(learner, start, QUIET)
    for name, value in load_file(model / "model.safetensors").items():
        assert torch.equal(learner.backbone.state_dict()[name], value), name


def test_the_momentum_encoder_begins_where_the_online_one_does(model):
    start = find_start(str(model))
    recipe = adopt(find_recipe("small_cpu").with_settings(["method=momentum_nnclr"]), start, QUIET)
    learner = build_learner(recipe)
    load_start(learner, start, QUIET)
    for ours, theirs in zip(
        learner.momentum.encoder.state_dict().values(), learner.online.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_images_are_colored_as_the_source_wants_them(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"]["mean"] = config["pretrained_cfg"]["std"] = [0.5, 0.5, 0.5]
    (folder / "config.json").write_text(json.dumps(config))
    recipe = adopt(find_recipe("small_cpu"), find_start(str(folder)), QUIET)
    assert recipe.mean == recipe.std == (0.5, 0.5, 0.5)
    vit = adopt(find_recipe("small_cpu"), find_start("timm:vit_small_patch16_224.augreg_in21k"), QUIET)
    assert vit.mean == (0.5, 0.5, 0.5)


def test_a_run_folder_is_answered_with_its_encoder(photos, tmp_path):
    (tmp_path / "run" / "encoder").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="give its encoder"):
        find_start(str(tmp_path / "run"))


def test_a_run_goes_on_from_its_own_encoder_with_its_heads(photos, tmp_path, capsys):
    recipe = find_recipe("small_cpu").with_settings([*FAST, "channels=4,4,8,8"])
    pretrain("small_cpu", recipe, [photos], tmp_path / "first")
    pretrain(
        "small_cpu",
        find_recipe("small_cpu").with_settings(FAST),
        [photos],
        tmp_path / "second",
        init=str(tmp_path / "first" / "encoder"),
    )
    said = " ".join(capsys.readouterr().err.split())
    assert "and its projection head" in said
    assert "backbone: resnet18 [4, 4, 8, 8], as --init has it, instead of resnet18 [32, 64, 128, 256]" in said


def test_the_heads_learn_first_then_early_layers_slowest(model):
    """The backbone's rate is 0 at first; later each layer has a fraction of the next one's."""
    recipe = adopt(find_recipe("small_cpu"), find_start(str(model)), QUIET)
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


def test_while_the_heads_learn_the_backbone_stays(photos, model, tmp_path):
    recipe = find_recipe("small_cpu").with_settings([*FAST, "heads_first=1"])
    pretrain("small_cpu", recipe, [photos], tmp_path / "run", init=str(model))
    before, after = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "run" / "encoder"))
    assert all(torch.equal(before[name], after[name]) for name in before if "running" not in name and "num" not in name)
    assert any(not torch.equal(before[name], after[name]) for name in before if "running" in name)


def test_another_architecture_is_refused_when_asked_for(model):
    recipe = find_recipe("small_cpu").with_settings(["backbone=resnet34"])
    with pytest.raises(InvalidRequest, match="--set asks for a resnet34"):
        adopt(recipe, find_start(str(model)), QUIET)
    with pytest.raises(InvalidRequest, match="untrained"):
        find_start("random:resnet18")
    with pytest.raises(UnknownModel):
        find_start("./no-such-folder")


def test_a_fall_below_the_start_is_said(capsys):
    say = Console(stderr=True)
    warn_if_worse({"knn20/a": 0.5, "linear/a": 0.1}, {"knn20/a": 0.6, "linear/a": 0.6}, say)
    assert "knn20/a is 0.500, below the 0.600" in " ".join(capsys.readouterr().err.split())
    warn_if_worse({"knn20/a": 0.7}, {"knn20/a": 0.6}, say)
    warn_if_worse({"knn20/a": 0.7}, {}, say)
    assert not capsys.readouterr().err


def test_the_start_is_evaluated_before_the_first_step(photos, model, tmp_path):
    data = tmp_path / "data"
    for path in sorted(photos.rglob("*.jpg")):
        split = "train" if int(path.stem) < 14 else "test"
        (data / split / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, data / split / path.parent.name)
    recipe = find_recipe("small_cpu").with_settings([*FAST, "batch_size=8"])
    pretrain("small_cpu", recipe, [data], tmp_path / "run", init=str(model))
    first = read_log(tmp_path / "run")[0]
    assert first["step"] == 0
    assert "knn20/data" in first
