"""Supervised training of a classifier on labeled files: what the protocols that look at images again share.

Frozen, it is linear evaluation; else fine-tuning. Images are decoded by this library, cropped and augmented by
timm in worker processes; every epoch is checkpointed, so that the same call goes on where it was stopped.
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from timm.data import Mixup
from timm.optim import Lars, param_groups_layer_decay
from timm.scheduler import CosineLRScheduler
from torch import Tensor, nn

from nnclr_hub.encoder.outputs import vector_length
from nnclr_hub.encoder.preprocess import Preprocessing
from nnclr_hub.errors import NoImages, TrainingDiverged
from nnclr_hub.progress import bar

from ..assemble import choose_precision
from ..checkpoint import load_checkpoint, save_checkpoint
from ..interrupt import Interrupted, stop_signals
from .pictures import image_loader, in_batches
from .plan import Plan
from .task import Part


class Classifier(nn.Module):
    """backbone and head: (B, 3, S, S) -> (B, C) logits."""

    def __init__(self, backbone: nn.Module, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(vector_length(backbone), classes)
        nn.init.zeros_(self.head.bias)
        nn.init.normal_(self.head.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x).float())


def train_classifier(
    model: Classifier,
    part: Part,
    preprocessing: Preprocessing,
    plan: Plan,
    where: torch.device,
    place: Path,
    say: Console,
    title: str,
) -> list[tuple[str, str]]:
    """Trains the model in place; gives the files that could not be read, with the reason.

    Args:
        model: on any device; afterwards on `where`, in evaluation mode.
        part: files and (N,) int64 labels.
        preprocessing: size and normalization of the input.
        plan: how.
        where: the device.
        place: folder of the checkpoint.
        say: where progress is shown.
        title: of the bar.

    Raises:
        Interrupted: by a signal; the epochs before are kept.
        TrainingDiverged: the loss is no longer a number.
        NoImages: no image can be read.
    """
    model.to(where)
    place.mkdir(parents=True, exist_ok=True)
    per_epoch = max(1, round(len(part.paths) / plan.batch_size))
    optimizer = _optimizer(model, plan)
    schedule = _schedule(optimizer, plan, per_epoch)
    epoch, broken = 0, {}
    saved = load_checkpoint(place)
    if saved is not None:
        model.load_state_dict(saved["model"])
        if saved["optimizer"] is not None:
            optimizer.load_state_dict(saved["optimizer"])
        epoch, broken = saved["epoch"], dict(saved["broken"])
    loader = image_loader(part, preprocessing, plan)
    mixup = None
    if plan.augmentation == "deit":
        mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.0, num_classes=model.head.out_features)
    bf16 = choose_precision("auto", where) == "bf16"
    with stop_signals() as stop, bar(say, title) as advance:
        while epoch < plan.epochs:
            _seed(plan.seed * 100_003 + epoch)
            _mode(model, plan)
            seen = 0
            for step, chunks in enumerate(in_batches(loader, per_epoch, mixup, broken)):
                schedule.step_update(epoch * per_epoch + step)
                _step(model, optimizer, chunks, plan, where, bf16)
                seen += sum(len(x) for x, _ in chunks)
                advance(epoch * len(part.paths) + seen, plan.epochs * len(part.paths))
                if stop.is_set():
                    raise Interrupted(
                        f"Stopped in epoch {epoch + 1} of {plan.epochs}: the same command begins it again."
                    )
            if not seen:
                raise NoImages(f"Not one of {len(part.paths)} images could be read, such as {part.paths[0]}.")
            epoch += 1
            going_on = optimizer.state_dict() if epoch < plan.epochs else None  # the last one is for its weights alone
            state = {"model": model.state_dict(), "optimizer": going_on, "epoch": epoch}
            save_checkpoint(place, {**state, "broken": list(broken.items())})
    model.eval()
    return sorted(broken.items())


@torch.no_grad()
def logits(model: Classifier, features: np.ndarray) -> np.ndarray:
    """(N, C) float32 of the head on raw features (N, D)."""
    weight, bias = model.head.weight.detach().cpu(), model.head.bias.detach().cpu()
    return (torch.from_numpy(np.asarray(features)) @ weight.T + bias).numpy()


# ------------------------------------------------------------------------------ a step


def _step(
    model: Classifier,
    optimizer: torch.optim.Optimizer,
    chunks: list[tuple[Tensor, Tensor]],
    plan: Plan,
    where: torch.device,
    bf16: bool,
) -> None:
    """One optimizer step over a batch in chunks; labels are classes, or probabilities of classes."""
    total = sum(len(x) for x, _ in chunks)
    optimizer.zero_grad()
    for x, y in chunks:
        with (
            torch.autocast(where.type, torch.bfloat16, enabled=bf16),
            torch.no_grad() if plan.frozen else nullcontext(),
        ):
            features = model.backbone(x.to(where, non_blocking=True))
        loss = F.cross_entropy(model.head(features.float()), y.to(where), label_smoothing=plan.label_smoothing)
        if not loss.isfinite():
            raise TrainingDiverged("The loss is no longer a number: lower the learning rate with --set lr=...")
        (loss * (len(x) / total)).backward()
    optimizer.step()


def _seed(seed: int) -> None:
    """torch shuffles and seeds the workers; timm's mixup draws from numpy, its crops in this process from random."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _mode(model: Classifier, plan: Plan) -> None:
    model.train()
    if plan.frozen:
        model.backbone.eval()


def _optimizer(model: Classifier, plan: Plan) -> torch.optim.Optimizer:
    """Biases, norms, positions and [CLS] neither decay nor adapt; LARS adapts what does not decay when told to."""
    if plan.frozen:
        groups: Any = [
            {"params": [model.head.weight], "weight_decay": plan.weight_decay, "always_adapt": True},
            {"params": [model.head.bias], "weight_decay": 0.0, "always_adapt": False},
        ]
    elif plan.layer_decay < 1:
        skip = tuple(getattr(model.backbone, "no_weight_decay", set)())
        groups = param_groups_layer_decay(
            model.backbone, plan.weight_decay, no_weight_decay_list=skip, layer_decay=plan.layer_decay
        )
        groups.append({"params": list(model.head.parameters()), "weight_decay": plan.weight_decay})
    else:
        skip = {f"backbone.{name}" for name in getattr(model.backbone, "no_weight_decay", set)()}
        decays = {name: p.ndim > 1 and name not in skip for name, p in model.named_parameters()}
        groups = [
            {"params": [p for name, p in model.named_parameters() if decays[name]], "weight_decay": plan.weight_decay},
            {"params": [p for name, p in model.named_parameters() if not decays[name]], "weight_decay": 0.0},
        ]
    if plan.optimizer == "lars":
        return Lars(groups, lr=plan.lr, momentum=0.9, nesterov=True)  # type: ignore[arg-type]
    if plan.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=plan.lr, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(groups, lr=plan.lr)


def _schedule(optimizer: torch.optim.Optimizer, plan: Plan, per_epoch: int) -> CosineLRScheduler:
    warmup = min(round(plan.warmup_epochs * per_epoch), plan.epochs * per_epoch - 1)
    return CosineLRScheduler(
        optimizer,
        t_initial=plan.epochs * per_epoch - warmup,
        warmup_t=warmup,
        warmup_lr_init=0.0,
        warmup_prefix=True,
        t_in_epochs=False,
    )
