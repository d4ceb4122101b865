"""Recipes for small sets and small machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .recipe import Recipe, setting


@dataclass(frozen=True, kw_only=True)
class SmallCPU(Recipe):
    """A narrow ResNet-18 at 48 pixels: an encoder from a few thousand pictures on a laptop's CPU.

    Command:   nnclr pretrain small_cpu --data PHOTOS --out RUN
    Hardware:  2 CPU cores.
    Time:      about 20 minutes for 16,000 pictures at the default number of epochs.
    Expected:  see docs/results/small_cpu.md; --set epochs=N for more.

    What differs from the paper, since a few thousand steps are too few for its schedule: no prediction
    head; the view itself is the positive for the first third of the steps, then the half of each batch
    with the most similar neighbours is phased in; narrower heads; SGD.
    """

    backbone: str = setting("resnet18", "any timm architecture")
    channels: tuple[int, ...] = setting((32, 64, 128, 256), "widths of a ResNet's four stages; empty for timm's own")
    projection_hidden: int = setting(1024, "width of the projection head")
    projection_dim: int = setting(128, "d, length of z and p")
    prediction: str = setting("none", "prediction head: 'method' (as the method has it), 'none' or 'paper'")
    image_size: int = setting(48, "side of the views, in pixels")
    pack_size: int = setting(96, "side at which decoded pictures are kept, in pixels")
    eval_size: int = setting(48, "input side of the exported encoder, in pixels")
    eval_crop: float = setting(1.0, "share of the resized short side that the exported encoder's centre crop keeps")
    queue_size: int = setting(8192, "rows of the support set; shrinks to the number of pictures")
    warm_start: float = setting(0.3, "share of the steps in which the view itself is the positive")
    ramp: float = setting(0.3, "share of the steps over which neighbours are then phased in")
    gate: float = setting(0.5, "share of a batch, the most similar, that uses its neighbours in the end")
    epochs: int = setting(25, "passes over the pictures")
    batch_size: int = setting(256, "pictures a step; shrinks to fit a small set")
    optimizer: Literal["lars", "sgd", "adamw"] = setting("sgd", "lars, sgd or adamw")
    base_lr: float = setting(0.06, "learning rate at a batch of 256; scaled linearly with the batch")
    weight_decay: float = setting(5e-4, "not applied to biases and norms")
    warmup_epochs: float = setting(1.0, "linear warm-up, then cosine to 0")
    checkpoint_every: int = setting(5, "epochs between checkpoints, with 20-NN, encoder and report")
