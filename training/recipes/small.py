"""Recipes for small sets and small machines.

A few thousand steps are too few for the paper's schedule. In all of these recipes the view itself is the positive at
first, the support set is smaller, and the optimizer is SGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .recipe import Recipe
from .settings import setting


@dataclass(frozen=True, kw_only=True)
class Small(Recipe):
    """The base of the recipes for small sets: SGD at 0.06 x B / 256, BYOL's augmentation.

    Command:   nnclr pretrain small --data PHOTOS --out RUN --set image_size=96
    Hardware:  one GPU.
    Time:      estimate: 10 minutes of an H100 for 15,000 images at 96 pixels, 200 epochs.
    Expected:  not yet run by this project.
    """

    backbone: str = setting("resnet18", "any timm architecture, or resnet18_cifar, resnet50_cifar")
    projection: str = setting("nnclr", "projection head; the same for all methods, so that they compare")
    queue_size: int = setting(8192, "rows of the support set; shrinks to the number of images")
    warm_start: float = setting(0.1, "share of the steps in which the view itself is the positive")
    ramp: float = setting(0.1, "share of the steps over which neighbors are phased in afterwards")
    image_size: int = setting(128, "side of the large views, in pixels")
    pack_size: int = setting(160, "side of the stored decoded images, in pixels")
    eval_size: int = setting(128, "input side of the exported encoder, in pixels")
    epochs: int = setting(200, "passes over the images")
    batch_size: int = setting(512, "images per step over all GPUs; shrinks to fit a small set")
    optimizer: Literal["lars", "sgd", "adamw"] = setting("sgd", "lars, sgd or adamw")
    base_lr: float = setting(0.06, "learning rate at a batch of 256; scaled linearly with the batch")
    weight_decay: float = setting(5e-4, "not applied to biases, norms, positions and [CLS]")
    warmup_epochs: float = setting(5.0, "linear warm-up, then cosine to 0")


@dataclass(frozen=True, kw_only=True)
class SmallCPU(Small):
    """A narrow ResNet-18 at 48 pixels: an encoder from a few thousand images on a laptop's CPU.

    Command:   nnclr pretrain small_cpu --data PHOTOS --out RUN
    Hardware:  2 CPU cores.
    Time:      about 20 minutes for 16,000 images at the default number of epochs.
    Expected:  see docs/results/small_cpu.md; --set epochs=N for more.

    No prediction head; the view itself is the positive for the first third of the steps, then the half
    of each batch with the most similar neighbors is phased in; narrower heads.
    """

    channels: tuple[int, ...] = setting((32, 64, 128, 256), "widths of a ResNet's four stages; empty for timm's widths")
    projection_hidden: int = setting(1024, "width of its hidden layers; 0 for the head's default")
    projection_dim: int = setting(128, "d, length of z and p; 0 for the head's default")
    prediction: str = setting("none", "prediction head: method, none, paper, simsiam")
    image_size: int = setting(48, "side of the large views, in pixels")
    pack_size: int = setting(96, "side of the stored decoded images, in pixels")
    eval_size: int = setting(48, "input side of the exported encoder, in pixels")
    eval_crop: float = setting(1.0, "share of the resized short side that the exported encoder's center crop keeps")
    warm_start: float = setting(0.3, "share of the steps in which the view itself is the positive")
    ramp: float = setting(0.3, "share of the steps over which neighbors are phased in afterwards")
    gate: float = setting(0.5, "final share of a batch, the most similar, that uses neighbors")
    epochs: int = setting(25, "passes over the images")
    batch_size: int = setting(256, "images per step over all GPUs; shrinks to fit a small set")
    warmup_epochs: float = setting(1.0, "linear warm-up, then cosine to 0")
    checkpoint_every: int = setting(5, "epochs between checkpoints, with 20-NN, encoder and report")


@dataclass(frozen=True, kw_only=True)
class CIFAR10ResNet18(Small):
    """ResNet-18 with a CIFAR stem, at 32 pixels, no blur.

    Command:   nnclr pretrain cifar10_resnet18 --data cifar10 --out RUN
    Hardware:  one GPU.
    Time:      estimate: 10 minutes of an H100 for 200 epochs.
    Expected:  not yet run by this project. Elsewhere, with other settings and their best epoch: 83.4 k-NN after 200
               epochs (lightly's benchmark), 91.88 linear after 1000 (solo-learn).
    """

    backbone: str = setting("resnet18_cifar", "any timm architecture, or resnet18_cifar, resnet50_cifar")
    image_size: int = setting(32, "side of the large views, in pixels")
    pack_size: int = setting(32, "side of the stored decoded images, in pixels")
    eval_size: int = setting(32, "input side of the exported encoder, in pixels")
    eval_crop: float = setting(1.0, "share of the resized short side that the exported encoder's center crop keeps")
    augmentation: str = setting("cifar", "see AUGMENTATIONS")
    queue_size: int = setting(16_384, "rows of the support set; shrinks to the number of images")


@dataclass(frozen=True, kw_only=True)
class ImagenetteResNet18(Small):
    """ResNet-18 at 128 pixels.

    Command:   nnclr pretrain imagenette_resnet18 --data imagenette --out RUN
    Hardware:  one GPU.
    Time:      estimate: 3 minutes of an H100 for 200 epochs.
    Expected:  not yet run by this project. Elsewhere, with other settings and their best epoch: 80.9 k-NN after 200
               epochs, 88.4 after 800 (lightly's benchmark).
    """

    batch_size: int = setting(256, "images per step over all GPUs; shrinks to fit a small set")
    queue_size: int = setting(4096, "rows of the support set; shrinks to the number of images")
