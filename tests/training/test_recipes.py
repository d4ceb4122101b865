"""Recipes are the paper's, tables are the paper's, and `auto` decides by data and device."""

import dataclasses
import json
import re

import numpy as np
import pytest
from rich.console import Console
from tiny_runs import nnclr

from nnclr_hub import cores
from nnclr_hub.errors import InvalidRequest, UnknownSetting
from nnclr_hub.method import METHODS
from training.ablate import for_data
from training.network import build_learner
from training.recipes import RECIPES, find_recipe
from training.recipes.auto import Auto, Cues, Situation, Start
from training.setup import fit_to_data
from training.tables import TABLES, find_table


def test_the_papers_settings():
    """Section 4.1, the tables of section 4.4, and the appendix on vision transformers."""
    best = find_recipe("resnet50_imagenet")
    assert (best.epochs, best.queue_size, best.base_lr, best.batch_size) == (1000, 98_304, 0.3, 4096)
    assert (best.optimizer, best.weight_decay, best.warmup_epochs, best.temperature) == ("lars", 1e-6, 10, 0.1)
    rows = [best.with_settings(row.settings) for row in TABLES["epochs"].rows(best.with_settings(["epochs=800"]))]
    assert {row.epochs: row.base_lr for row in rows} == pytest.approx({100: 0.4, 200: 0.3, 400: 0.3, 800: 0.3})
    ablation = find_recipe("resnet50_imagenet_ablation")
    assert (ablation.queue_size, ablation.base_lr, ablation.epochs) == (32_768, 0.15, 1000)
    crops = find_recipe("resnet50_imagenet_multicrop")
    assert (crops.epochs, crops.local_crops, crops.local_size, crops.image_size) == (800, 6, 96, 224)
    vit = find_recipe("vit_base_imagenet")
    assert (vit.optimizer, vit.base_lr, vit.weight_decay, vit.drop_path, vit.epochs) == ("adamw", 3e-4, 0.05, 0.1, 1000)
    assert vit.projection == "none"
    assert METHODS["nnsiam"].projection == "simsiam", "d = 2048"


def test_recipes_and_settings_for_programs():
    """Settings printed as JSON make the same recipe again."""
    assert json.loads(nnclr("pretrain", "--recipes", "--json")[1]).keys() == RECIPES.keys()
    code, printed, _ = nnclr("pretrain", "small_cpu", "--settings", "--json", "--set", "k=3", "--set", "epochs=2.5")
    changed = find_recipe("small_cpu").with_settings({"k": 3, "epochs": 2.5})
    assert code == 0
    assert find_recipe("small_cpu").with_settings(json.loads(printed)).values() == changed.values()


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_builds_its_learner(name):
    recipe = find_recipe(name)
    if isinstance(recipe, Auto):
        recipe, _ = recipe.choose(Situation(9000, 200, True))
    recipe = dataclasses.replace(recipe, queue_size=64)
    learner = build_learner(recipe)
    assert (learner.support_set is not None) == (METHODS[recipe.method].uses_support_set)


def test_methods_own_heads_are_used_unless_the_recipe_says_otherwise():
    recipe = find_recipe("resnet50_imagenet").with_settings(["backbone=test_resnet", "queue_size=8"])
    for method, layers, d in (("nnclr", 3, 256), ("simclr", 2, 128), ("simsiam", 3, 2048), ("byol", 2, 256)):
        learner = build_learner(dataclasses.replace(recipe, method=method))
        linear = [m for m in learner.projection.modules() if type(m).__name__ == "Linear"]
        assert (len(linear), linear[-1].out_features) == (layers, d)
    small = find_recipe("small_cpu").with_settings(["method=simclr"])
    assert len([m for m in build_learner(small).projection.modules() if type(m).__name__ == "Linear"]) == 3


def test_prototypes_are_built_even_where_a_recipe_leaves_out_the_prediction_head():
    recipe = find_recipe("small_cpu").with_settings(
        ["method=swav", "prototypes=7", "backbone=test_resnet", "channels="]
    )
    assert build_learner(recipe).prediction.weight.shape == (7, 128)


def test_stochastic_depth_is_in_the_online_network_alone():
    recipe = find_recipe("vit_base_imagenet").with_settings(
        ["method=momentum_nnclr", "queue_size=8", "backbone=vit_tiny_patch16_224"]
    )
    learner = build_learner(recipe)
    rates = [getattr(m, "drop_prob", None) for m in learner.backbone.modules() if type(m).__name__ == "DropPath"]
    assert max(rates) == pytest.approx(0.1)
    theirs = [getattr(m, "drop_prob", None) for m in learner.momentum.modules() if type(m).__name__ == "DropPath"]
    assert set(theirs) == {0.0}


OF_NEIGHBORS_GIVEN = (  # some of them the paper's values
    *("queue_size=1000", "support_set=random_replacement", "enqueue=first", "pick=nearest", "k=1", "k=5"),
    *("soft_temperature=0.1", "mask_own=true", "warm_start=0", "ramp=0", "gate=1", "transposed_term=false"),
)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        # images, side, on a GPU, minutes, cores, cues, bf16
        ((3000, 200, False, None, 2), {"image_size": 48, "method": "simclr", "channels": (32, 64, 128, 256)}),
        ((3000, 200, False, None, 2), {"image_size": 48, "epochs": 100}),
        ((3000, 32, False, None, 2), {"image_size": 32}),
        ((30_000, 200, False, 60, 2), {"epochs": 40, "crop_scale": (0.4, 1.0)}),  # 1.2 million images
        ((30_000, 200, False, 60, 2, None, True), {"epochs": 64}),  # in bf16
        ((100_000, 200, False, 1, 2), {"image_size": 48, "epochs": 0.19968}),  # 20,000 images
        ((30_000, 200, False, 0, 2), {"image_size": 48, "epochs": 25}),  # to resume without a limit
        ((100_000, 200, False, 600, 8), {"method": "nnclr", "epochs": 100, "crop_scale": ()}),
        ((3000, 200, True, None, 2), {"image_size": 128, "method": "simclr", "crop_scale": ()}),
        ((130, 200, True, None, 2), {"batch_size": 32, "method": "simclr"}),
        ((0, 200, True, None, 2), {"batch_size": 2}),
        ((3, 200, False, None, 2), {"batch_size": 2}),
        ((15_000, 200, True, None, 2), {"backbone": "resnet18", "method": "nnclr"}),
        ((50_000, 32, True, None, 2), {"backbone": "resnet18_cifar", "image_size": 32}),
        ((20_000, 200, True, None, 2), {"backbone": "resnet50", "image_size": 160, "queue_size": 32_768}),
        ((50_000, 200, True, None, 2), {"backbone": "resnet50", "pack_size": 320, "epochs": 400}),
        ((200_000, 200, True, None, 2), {"queue_size": 98_304, "image_size": 224, "method": "nnclr"}),
        ((2_000_000, 200, True, None, 2), {"batch_size": 1024, "chunk": 256, "epochs": 100, "base_lr": 0.4}),
    ],
)
def test_auto_follows_images_device_and_time(now, expected):
    chosen, _ = find_recipe("auto").choose(Situation(*now))
    assert {name: getattr(chosen, name) for name in expected} == expected


def test_auto_says_why_and_keeps_what_the_user_sets():
    small = Situation(3000, 200, False, None, 2)
    _, why = find_recipe("auto").choose(small)
    assert ["SimCLR" in why[0], len(why)] == [True, 1]
    given = {"epochs": 3, "method": "byol", "image_size": 64}
    chosen, _ = find_recipe("auto").with_settings(given).choose(small)
    assert {name: getattr(chosen, name) for name in given} == given
    chosen, _ = find_recipe("auto").with_settings(["batch_size=64"]).choose(dataclasses.replace(small, images=30))
    assert chosen.batch_size == 64
    for wins, settings, expected in (
        (True, [], "keep_color"),
        (False, [], "byol"),
        (True, ["augmentation=byol"], "byol"),
        (True, ["augmentation=simclr"], "simclr"),
    ):
        now = dataclasses.replace(small, cues=Cues(color=0.8, shape=0.5, color_wins=wins))
        chosen, why = find_recipe("auto").with_settings(settings).choose(now)
        assert (chosen.augmentation, len(why)) == (expected, 2 if expected == "keep_color" else 1)
        assert chosen.crop_scale == (() if expected == "keep_color" else (0.4, 1.0))
    neighbors, why = find_recipe("auto").with_settings(["k=5"]).choose(small)
    assert (neighbors.method, neighbors.k, len(why)) == ("nnclr", 5, 0)


STARTER = {"image_size": 128, "eval_size": 128, "eval_crop": 1.0, "pack_size": 256, "projection_dim": 64}


@pytest.mark.parametrize(
    ("now", "expected", "words"),
    [
        ((3000, 200, False, 60, 2), {"batch_size": 64, "channels": (), "crop_scale": (0.4, 1.0)}, "fit into 60"),
        ((3000, 200, False, 1, 1), {"epochs": 5 * 64 / 3000}, "too few"),  # 10,000 images of 48 pixels cost as much
        ((3000, 200, False, None, 2), {"epochs": 21}, "are planned"),
        ((3000, 200, True, 5, 2), {"batch_size": 512, "crop_scale": ()}, "as many as fit into 5 minutes"),
    ],
)
def test_auto_keeps_the_input_and_the_heads_of_an_encoder(now, expected, words):
    situation = dataclasses.replace(Situation(*now), start=Start("parent", STARTER, cost=32))
    chosen, why = find_recipe("auto").choose(situation)
    expected = {**STARTER, **expected, "epochs": pytest.approx(expected.get("epochs", chosen.epochs))}
    assert {name: getattr(chosen, name) for name in expected} == expected
    assert words in " ".join(why)
    assert not re.search(r"\b1 (images|minutes|steps)\b", " ".join(why))
    given, _ = find_recipe("auto").with_settings(["image_size=64", "method=nnclr"]).choose(situation)
    assert (given.image_size, given.eval_size, given.method) == (64, 128, "nnclr")


@pytest.mark.parametrize("size", [32, 48, 96, 128])
@pytest.mark.parametrize("now", [(30_000, 200, False, 60, 2), (3000, 32, True), (3000, 200, True)])
def test_auto_fits_the_rest_to_a_given_size(now, size):
    chosen, why = find_recipe("auto").with_settings({"image_size": size, "method": "nnclr"}).choose(Situation(*now))
    assert (chosen.image_size, chosen.eval_size, why) == (size, size, [])
    assert chosen.pack_size >= (2 * size if now[1] > 100 else size)
    if not chosen.channels:
        return  # on a GPU
    assert chosen.epochs == pytest.approx(40 * (48 / size) ** 2, abs=1), "proportional to the pixels"


@pytest.mark.parametrize("given", [*OF_NEIGHBORS_GIVEN, "method=nnclr"])
def test_auto_keeps_neighbors_for_their_settings(given):
    chosen, why = find_recipe("auto").with_settings([given]).choose(Situation(3000, 200, False, None, 2))
    assert (chosen.method, why) == ("nnclr", [])


@pytest.mark.parametrize("table", ["k", "queue_size", "soft", "support_set", "oracle", "enqueue"])
def test_tables_about_neighbors_have_them_with_auto(table, data):
    base = for_data(find_recipe("auto"), [data], "cpu", Console(quiet=True))
    for row in find_table(table).rows(base):
        assert METHODS[base.with_settings(row.settings).method].uses_support_set


def test_cores_are_those_that_the_process_may_use(tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "CGROUP", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(6)), raising=False)
    assert cores.usable_cores() == 6
    for text, want in (("150000 100000", 2), ("max 100000", 6), ("900000 100000", 6), ("1000 100000", 1)):
        (tmp_path / "cpu.max").write_text(text)
        assert cores.usable_cores() == want
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    for text, want in (("-1\n", 6), ("300000\n", 3)):
        (tmp_path / "cpu/cpu.cfs_quota_us").write_text(text)
        assert cores.usable_cores() == want


@pytest.mark.parametrize(
    ("assignments", "sentence"),
    [
        (["k=4", "pick=soft"], "k must be 1"),
        (["early_share=0.5"], "needs early_size"),
        (["encoder=momentum"], "momentum encoder"),
        (["local_scale=0.5"], "two shares"),
        (["crop_scale=0.9,0.1"], "two shares"),
        (["local_scale=a,b"], "comma-separated numbers"),
        (["method=nnclrr"], "nnclr"),
        (["projection=vicreg"], "projection must be one of"),
        (["ema=1.5"], "between 0 and 1"),
        (["optimizer=lars", "weight_decay=0"], "lars"),  # timm's LARS would silently become plain SGD
        (["optimizer=lars", "weight_decay=-1"], "must not be negative"),
        (["in_chans=0"], "must be from 1 to"),
        (["epoch=3"], "'epochs'"),
        (["epochs=x"], "a number"),
        (["epochs=inf"], "a number"),
        (["method=byoll"], "'byol'"),
        (["optimizer=adam"], "lars, sgd, adamw"),
        (["gate=2"], "between 0 and 1"),
        (["mask_own=maybe"], "true or false"),
        (["channels=a,b"], "comma-separated"),
        (["batch_size=1"], "at least 2"),
    ],
)
def test_invalid_and_contradictory_settings_are_rejected(assignments, sentence):
    with pytest.raises(UnknownSetting, match=sentence):
        find_recipe("small_cpu").with_settings(assignments)


def test_the_sizes_of_a_vision_transformer_agree():
    with pytest.raises(InvalidRequest, match="eval_size"):
        build_learner(
            find_recipe("vit_base_imagenet").with_settings(["backbone=vit_small", "image_size=64", "queue_size=8"])
        )


@pytest.mark.parametrize("name", [name for name in TABLES if name != "own"])
def test_the_rows_of_a_table_over_its_own_base_are_the_papers(name):
    base = find_recipe("resnet50_imagenet_ablation")
    base = base.with_settings(["queue_size=98304"]) if name == "queue_size" else base
    base = base.with_settings(["epochs=800"]) if name == "epochs" else base
    rows = TABLES[name].rows(base)
    assert len(rows) > 1
    for row in rows:
        recipe = base.with_settings(row.settings)
        if name in ("queue_size", "batch_size", "embedding_size", "epochs"):
            value = {
                "queue_size": recipe.queue_size,
                "batch_size": recipe.batch_size,
                "embedding_size": recipe.projection_dim,
                "epochs": int(recipe.epochs),
            }[name]
            assert row.label == f"{value:,} (the paper: {value:,})"


def test_the_positives_table_holds_the_prediction_head_fixed():
    base = find_recipe("small_cpu")
    recipes = [base.with_settings(row.settings) for row in TABLES["positives"].rows(base)]
    assert {recipe.prediction for recipe in recipes} == {"paper"}
    assert {recipe.projection for recipe in recipes} == {"nnclr"}
    assert [row.paper for row in TABLES["positives"].rows(base)] == [71.4, 74.5, 72.5, 74.9]


def test_sizes_of_a_small_base_are_varied_in_proportion():
    rows = TABLES["queue_size"].rows(find_recipe("small_cpu"))
    assert [row.settings[0] for row in rows] == [f"queue_size={round(8192 * m / 12)}" for m in (1, 2, 4, 8, 12)]
    with pytest.raises(InvalidRequest, match="positives"):
        find_table("nothing")


def test_every_recipe_states_its_command_and_cost():
    for name, preset in RECIPES.items():
        text = preset.describe(name)
        assert f"nnclr pretrain {name} " in text
        assert all(word in text for word in ("Command:", "Hardware:", "Time:", "Expected:"))
    assert all(help for _, _, help in RECIPES["auto"].recipe.settings())


@pytest.mark.parametrize(("method", "named"), [("nnclr", True), ("simclr", False)])
def test_only_methods_with_a_queue_report_its_size(method, named, capsys):
    settings = find_recipe("small_cpu").with_settings([f"method={method}", "queue_size=1000"])
    assert fit_to_data(settings, 100, np.zeros(100), 1, Console()).queue_size == 100
    assert ("queue_size" in capsys.readouterr().out) == named
