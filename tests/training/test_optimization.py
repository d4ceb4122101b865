"""The optimizer follows the paper's rules for decay and adaptation, and the schedule its formula."""

import math

import pytest
import torch
from torch import nn

from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.method import METHODS, Learner
from training.optimization import Schedule, make_optimizer
from training.recipes import find_recipe


def network() -> Learner:
    torch.manual_seed(0)
    return Learner(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), METHODS["simclr"], nn.Linear(8, 2, bias=False))


@pytest.mark.parametrize("optimizer", ["lars", "sgd", "adamw"])
def test_biases_and_norms_do_not_decay(optimizer):
    model = network()
    recipe = find_recipe("small_cpu").with_settings(
        [f"optimizer={optimizer}", "weight_decay=0.1", "base_lr=0.4", "batch_size=128"]
    )
    made = make_optimizer(model, recipe)
    decays = {id(p): group["weight_decay"] for group in made.param_groups for p in group["params"]}
    assert len(decays) == len(list(model.parameters()))
    assert all(decays[id(p)] == (0.1 if p.ndim > 1 else 0) for p in model.parameters())
    assert made.param_groups[0]["lr"] == pytest.approx(0.4 * 128 / 256)


@pytest.mark.parametrize("layer_decay", [1.0, 0.75])
def test_positions_and_the_class_token_of_a_transformer_do_not_decay(layer_decay):
    """They have more than one dimension, so a rule by dimensions alone would decay them."""
    learner = Learner(create_backbone("test_vit"), METHODS["simclr"], nn.Linear(64, 2))
    recipe = find_recipe("vit_base_imagenet").with_settings(["backbone=vit_small", "weight_decay=0.1"])
    optimizer = make_optimizer(learner, recipe, layer_decay=layer_decay)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    exempt = {name for name, p in learner.backbone.named_parameters() if p.ndim > 1 and decays[id(p)] == 0}
    assert exempt == {"pos_embed", "cls_token"}
    assert set(decays.values()) == {0.0, 0.1}


def test_a_lars_step_equals_its_formula():
    """Matrices move by lr * 0.001 * |w| / |g + wd w| times the decayed gradient, vectors by lr times theirs."""
    model = network()
    recipe = find_recipe("resnet50_imagenet").with_settings(["weight_decay=0.01", "base_lr=0.3", "batch_size=256"])
    optimizer = make_optimizer(model, recipe)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.online(torch.randn(16, 4)).pow(2).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    optimizer.step()
    for name, p in model.named_parameters():
        w, g = before[name], gradients[name]
        step = g
        if w.ndim > 1:
            trust = 0.001 * w.norm() / (g.norm() + 0.01 * w.norm() + 1e-8)
            step = trust * (g + 0.01 * w)
        torch.testing.assert_close(p.detach(), w - 0.3 * step, msg=name)


def test_the_rate_rises_linearly_and_falls_along_a_cosine():
    recipe = find_recipe("small_cpu").with_settings(["warmup_epochs=2", "base_lr=1"])
    optimizer = make_optimizer(network(), recipe)
    schedule = Schedule(optimizer, recipe, steps=100, steps_per_epoch=10)
    rates = []
    for step in range(100):
        rates.append(schedule.set(step))
    assert rates[:20] == pytest.approx([step / 20 for step in range(20)])
    assert rates[20:] == pytest.approx([(1 + math.cos(math.pi * (step - 20) / 80)) / 2 for step in range(20, 100)])


def test_a_shortened_schedule_equals_one_of_that_length():
    recipe = find_recipe("small_cpu").with_settings(["warmup_epochs=2", "base_lr=1", "heads_first=0.2"])
    shorter = recipe.with_settings(["warmup_epochs=1"])
    optimizer = make_optimizer(network(), recipe)
    schedule = Schedule(optimizer, recipe, steps=100, steps_per_epoch=10, from_encoder=True)
    for step in range(8):
        schedule.set(step)
    schedule.plan(shorter, 50)
    other = make_optimizer(network(), shorter)
    expected = Schedule(other, shorter, steps=50, steps_per_epoch=10, from_encoder=True)
    for step in range(8, 50):
        assert schedule.set(step) == expected.set(step)
        assert [one["lr"] for one in optimizer.param_groups] == [one["lr"] for one in other.param_groups]


def test_a_warm_up_that_is_longer_than_the_run_ends_with_its_last_step():
    recipe = find_recipe("small_cpu").with_settings(["warmup_epochs=2", "base_lr=1", "epochs=3"])
    schedule = Schedule(make_optimizer(network(), recipe), recipe, steps=5, steps_per_epoch=10)
    assert [schedule.set(step) for step in range(5)] == pytest.approx([0, 0.25, 0.5, 0.75, 1])


@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_the_heads_learn_first_and_then_the_backbone_at_its_rates(layer_decay):
    """Each layer of the backbone has the rate of the next one times the decay; heads have the full rate."""
    learner = Learner(create_backbone("test_vit"), METHODS["simclr"], nn.Linear(64, 2))
    recipe = find_recipe("small_cpu").with_settings(
        ["warmup_epochs=0", "base_lr=1", "batch_size=256", "heads_first=0.2"]
    )
    optimizer = make_optimizer(learner, recipe, layer_decay=layer_decay)
    schedule = Schedule(optimizer, recipe, steps=10, steps_per_epoch=10, from_encoder=True)
    heads = {id(p) for p in learner.projection.parameters()}
    for step in range(4):
        rate = (1 + math.cos(math.pi * step / 10)) / 2
        assert schedule.set(step) == pytest.approx(rate)
        found = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
        assert found.keys() == {id(p) for p in learner.parameters()}
        assert all(found[one] == pytest.approx(rate) for one in heads)
        rates = {round(found[id(p)] / rate, 6) for p in learner.backbone.parameters()}
        if step < 2:
            assert rates == {0}
        else:
            assert rates == {round(layer_decay**depth, 6) for depth in range(len(learner.backbone.blocks) + 1)}


@pytest.mark.parametrize("nesterov", [True, False])
def test_momentum_is_that_of_the_recipe(nesterov):
    for name in ("sgd", "lars"):
        settings = [f"optimizer={name}", f"nesterov={nesterov}".lower(), "momentum=0.7"]
        group = make_optimizer(network(), find_recipe("small_cpu").with_settings(settings)).param_groups[0]
        assert (group["nesterov"], group["momentum"]) == (nesterov, 0.7)
