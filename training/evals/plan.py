"""How a classifier is trained on labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Plan:
    """How a classifier is trained.

    lr: at the peak, for a whole batch.
    batch_size: images a step; `micro_batch` of them at a time through the network.
    augmentation: "crop" is random crops and flips, "deit" adds RandAugment, mixup, cutmix and erasing.
    frozen: the backbone stays as it is, in evaluation mode, and the head alone learns.
    """

    epochs: int
    lr: float
    batch_size: int
    micro_batch: int
    optimizer: Literal["lars", "sgd", "adamw"]
    weight_decay: float = 0.0
    warmup_epochs: float = 0.0
    augmentation: Literal["crop", "deit"] = "crop"
    label_smoothing: float = 0.0
    layer_decay: float = 1.0
    frozen: bool = False
    workers: int = 2
    seed: int = 0
