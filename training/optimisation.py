"""The optimiser and its schedule, from timm and torch, with the paper's rules about what decays."""

from __future__ import annotations

import torch
from timm.optim import Lars
from timm.scheduler import CosineLRScheduler
from torch import nn

from .recipes.recipe import Recipe


def make_optimizer(learner: nn.Module, recipe: Recipe, batch_size: int) -> torch.optim.Optimizer:
    """LARS, SGD or AdamW at base_lr x batch / 256; biases and norms neither decay nor adapt.

    timm's LARS adapts the rate of those tensors alone that decay, so the two groups settle both.
    """
    parameters = [p for p in learner.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    lr = recipe.base_lr * batch_size / 256
    if recipe.optimizer == "lars":
        return Lars(groups, lr=lr, momentum=recipe.momentum)  # type: ignore[arg-type]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=recipe.momentum)
    return torch.optim.AdamW(groups, lr=lr)


def make_schedule(
    optimizer: torch.optim.Optimizer, recipe: Recipe, steps: int, steps_per_epoch: int
) -> CosineLRScheduler:
    """Linear warm-up from 0, then half a cosine to 0; call `step_update(step)` before each step."""
    warmup = min(round(recipe.warmup_epochs * steps_per_epoch), steps - 1)
    return CosineLRScheduler(
        optimizer,
        t_initial=steps - warmup,
        warmup_t=warmup,
        warmup_lr_init=0.0,
        warmup_prefix=True,
        t_in_epochs=False,
    )
