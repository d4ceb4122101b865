"""Recipes are the paper's, tables are the paper's, and `auto` decides by data and device."""

import dataclasses

import pytest

from nnclr_hub.errors import InvalidRequest, UnknownSetting
from nnclr_hub.method import METHODS
from training.assemble import build_learner
from training.recipes import RECIPES, find_recipe
from training.tables import TABLES, find_table


def test_the_papers_settings():
    """Section 4.1, the tables of section 4.4, and the appendix on vision transformers."""
    best = find_recipe("resnet50_imagenet")
    assert (best.epochs, best.queue_size, best.base_lr, best.batch_size) == (1000, 98_304, 0.3, 4096)
    assert (best.optimizer, best.weight_decay, best.warmup_epochs, best.temperature) == ("lars", 1e-6, 10, 0.1)
    rates = {epochs: find_recipe(f"resnet50_imagenet_{epochs}").base_lr for epochs in (100, 200, 400, 800)}
    assert rates == {100: 0.4, 200: 0.3, 400: 0.3, 800: 0.3}
    ablation = find_recipe("resnet50_imagenet_ablation")
    assert (ablation.queue_size, ablation.base_lr, ablation.epochs) == (32_768, 0.15, 1000)
    crops = find_recipe("resnet50_imagenet_multicrop")
    assert (crops.epochs, crops.local_crops, crops.local_size, crops.image_size) == (800, 6, 96, 224)
    vit = find_recipe("vit_base_imagenet")
    assert (vit.optimizer, vit.base_lr, vit.weight_decay, vit.drop_path, vit.epochs) == ("adamw", 3e-4, 0.05, 0.1, 1000)
    assert vit.projection == "none"
    siam = find_recipe("resnet50_imagenet_nnsiam")
    assert (siam.method, siam.base_lr) == ("nnsiam", 0.2)
    assert METHODS["nnsiam"].projection == "simsiam", "d = 2048"
    assert find_recipe("resnet50_imagenet_crop_only").epochs == 300


@pytest.mark.parametrize("name", [name for name in RECIPES if "imagenet_" not in name or name.endswith("_nnsiam")])
def test_every_recipe_builds_its_learner(name):
    recipe = dataclasses.replace(find_recipe(name).for_data(9000, 200, True), queue_size=64)
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
    recipe = find_recipe("starter_vit_small").with_settings(["queue_size=8", "backbone=vit_tiny_patch16_224"])
    learner = build_learner(recipe)
    rates = [getattr(m, "drop_prob", None) for m in learner.backbone.modules() if type(m).__name__ == "DropPath"]
    assert max(rates) == pytest.approx(0.1)
    theirs = [getattr(m, "drop_prob", None) for m in learner.momentum.modules() if type(m).__name__ == "DropPath"]
    assert set(theirs) == {0.0}
    assert not learner.backbone.patch_embed.proj.weight.requires_grad, "frozen patch projection"


def test_auto_follows_the_data_and_the_device_but_not_against_set():
    auto = find_recipe("auto")
    assert auto.for_data(3000, 200, False).image_size == 48
    assert auto.for_data(3000, 200, True).backbone == "resnet18"
    assert auto.for_data(50_000, 32, True).backbone == "resnet18_cifar"
    assert auto.for_data(3000, 32, False).image_size == 32
    assert auto.for_data(50_000, 200, True).backbone == "resnet50"
    assert auto.for_data(2_000_000, 200, True).queue_size == 98_304
    chosen = auto.with_settings(["epochs=3", "method=byol"]).for_data(3000, 200, False)
    assert (chosen.epochs, chosen.method, chosen.channels) == (3, "byol", (32, 64, 128, 256))
    assert auto.for_data(3000, 200, False).epochs > auto.for_data(30_000, 200, False).epochs


@pytest.mark.parametrize(
    ("assignments", "sentence"),
    [
        (["k=4", "pick=soft"], "k must be 1"),
        (["early_share=0.5"], "needs early_size"),
        (["encoder=momentum"], "momentum encoder"),
        (["batch_size=16", "accumulate=16"], "accumulate"),
        (["local_scale=0.5"], "two shares"),
        (["crop_scale=0.9,0.1"], "two shares"),
        (["local_scale=a,b"], "comma-separated numbers"),
        (["method=nnclrr"], "nnclr"),
        (["projection=vicreg"], "projection must be one of"),
        (["ema=1.5"], "between 0 and 1"),
        (["optimizer=lars", "weight_decay=0"], "lars"),  # timm's LARS would silently become plain SGD
        (["epoch=3"], "'epochs'"),
        (["epochs=x"], "an integer"),
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


def test_a_frozen_patch_projection_needs_patches_and_a_vits_sizes_agree():
    with pytest.raises(InvalidRequest, match="freeze_patches"):
        build_learner(find_recipe("small_cpu").with_settings(["freeze_patches=true", "queue_size=8"]))
    with pytest.raises(InvalidRequest, match="eval_size"):
        build_learner(find_recipe("vit_small_imagenet").with_settings(["image_size=64", "queue_size=8"]))


@pytest.mark.parametrize("name", list(TABLES))
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
                "epochs": recipe.epochs,
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


def test_the_old_name_of_a_setting_works():
    assert find_recipe("small_cpu").with_settings(["eval_pictures=7"]).eval_images == 7


def test_every_recipe_states_its_command_and_cost():
    for name, preset in RECIPES.items():
        text = preset.describe(name)
        assert f"nnclr pretrain {name} " in text
        assert all(word in text for word in ("Command:", "Hardware:", "Time:", "Expected:"))
    assert all(help for _, _, help in RECIPES["auto"].recipe.settings())
