"""Optimizer and learning-rate schedule, from timm and torch, with the paper's rules for weight decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from timm.optim import Lars, param_groups_layer_decay
from timm.scheduler import CosineLRScheduler
from torch import nn

from nnclr_hub.method import Learner

from .recipes.recipe import Recipe

Groups = list[dict[str, Any]]


def make_optimizer(learner: Learner, recipe: Recipe, *, layer_decay: float = 1.0) -> torch.optim.Optimizer:
    """Create LARS, SGD or AdamW with rate base_lr x batch / 256.

    Biases, norms, positions and [CLS] have no weight decay. timm's LARS adapts the rate of exactly those tensors that
    decay, so they are not adapted either.

    Args:
        learner: its trained parameters form the groups of the backbone (marked "backbone") and of the heads.
        recipe: its settings; `batch_size` counts the images of all ranks.
        layer_decay: rate of each layer of the backbone relative to the next later layer.
    """
    heads = [p for part in (learner.projection, learner.prediction) for p in part.parameters()]
    backbone = backbone_groups(learner.backbone, recipe.weight_decay, layer_decay)
    groups = [{**group, "backbone": True} for group in backbone]
    groups += [{**group, "backbone": False} for group in by_decay(heads, recipe.weight_decay)]
    lr = recipe.base_lr * recipe.batch_size / 256
    return optimizer_of(recipe.optimizer, groups, lr, recipe.momentum, recipe.nesterov)


def optimizer_of(name: str, groups: Groups, lr: float, momentum: float, nesterov: bool) -> torch.optim.Optimizer:
    """Create the optimizer of that name; AdamW has its default moments."""
    if name == "lars":
        return Lars(groups, lr=lr, momentum=momentum, nesterov=nesterov)  # type: ignore[arg-type]
    if name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)
    return torch.optim.AdamW(groups, lr=lr)


def backbone_groups(backbone: nn.Module, weight_decay: float, layer_decay: float) -> Groups:
    """Return the trained parameters of a network in groups; biases, norms, positions and [CLS] do not decay."""
    skip = set(getattr(backbone, "no_weight_decay", set)())
    if layer_decay < 1:
        groups = param_groups_layer_decay(
            backbone, weight_decay, no_weight_decay_list=tuple(skip), layer_decay=layer_decay
        )
        return [
            {key: group[key] for key in ("params", "weight_decay", "lr_scale")} for group in groups if group["params"]
        ]
    trained = {name: p for name, p in backbone.named_parameters() if p.requires_grad}
    exempt = {"params": [p for name, p in trained.items() if name in skip], "weight_decay": 0.0}
    return [*by_decay((p for name, p in trained.items() if name not in skip), weight_decay), exempt]


def by_decay(parameters: Iterable[nn.Parameter], weight_decay: float) -> Groups:
    """Return the trained parameters in two groups: those with weight decay, and biases and norms without."""
    trained = [p for p in parameters if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]


class Schedule:
    """Linear warm-up from 0, then half a cosine to 0, per step; optionally the heads alone learn first.

    Args:
        from_encoder: whether the backbone is trained already; its rate is 0 for the share `heads_first` of the steps.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        recipe: Recipe,
        steps: int,
        steps_per_epoch: int,
        *,
        from_encoder: bool = False,
    ) -> None:
        self._optimizer, self._steps_per_epoch, self._from_encoder = optimizer, steps_per_epoch, from_encoder
        self.plan(recipe, steps)

    def plan(self, recipe: Recipe, steps: int) -> None:
        """Set the number of steps and the warm-up, also during a run."""
        self._heads_first = round(recipe.heads_first * steps) if self._from_encoder else 0
        self._cosine = cosine(self._optimizer, steps, round(recipe.warmup_epochs * self._steps_per_epoch))

    def set(self, step: int) -> float:
        """Set the rates for a step, before it, and return the rate of the heads."""
        self._cosine.step_update(step)
        for group in self._optimizer.param_groups:
            if group["backbone"] and step < self._heads_first:
                group["lr"] = 0.0
        return float(self._optimizer.param_groups[-1]["lr"])


def cosine(optimizer: torch.optim.Optimizer, steps: int, warmup: int) -> CosineLRScheduler:
    """Create timm's schedule per step: linear warm-up from 0 for less than `steps`, then half a cosine to 0."""
    warmup = min(warmup, steps - 1)
    return CosineLRScheduler(
        optimizer,
        t_initial=steps - warmup,
        warmup_t=warmup,
        warmup_prefix=True,
        t_in_epochs=False,
    )
