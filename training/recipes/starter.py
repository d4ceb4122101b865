"""Recipes of starter encoders: several small sets together, on one GPU.

They use a momentum encoder and multi-crop, and the view itself as positive at first. Batches come mostly from one set,
and views are degraded at random, because the sets differ in sharpness and compression.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .settings import setting
from .small import Small


@dataclass(frozen=True, kw_only=True)
class StarterResNet50(Small):
    """ResNet-50 with a momentum encoder, 2 x 96 to 128 and 4 x 48 pixels.

    Command:   nnclr pretrain starter_resnet50 --data PHOTOS --data MORE_PHOTOS --out RUN
    Hardware:  one GPU.
    Time:      estimate: 10 to 20 minutes of an H100 for 37,000 images.
    Expected:  estimate: 20-NN .80 to .86 on imagenette128's test split. Not yet run by this project.
    """

    method: str = setting("momentum_nnclr", "row of METHODS")
    encoder: Literal["online", "momentum"] = setting("momentum", "the network that is evaluated and exported")
    backbone: str = setting("resnet50", "any timm architecture, or resnet18_cifar, resnet50_cifar")
    queue_size: int = setting(16_384, "rows of the support set; shrinks to the number of images")
    pack_size: int = setting(128, "side of the stored decoded images, in pixels")
    early_size: int = setting(96, "side of the large views in the early part of the run; 0 for none")
    early_share: float = setting(0.75, "share of the steps at early_size")
    crop_scale: tuple[float, ...] = setting((0.25, 1.0), "area of large crops, LEAST,MOST")
    local_crops: int = setting(4, "number of small views (multi-crop)")
    local_size: int = setting(48, "side of the small views, in pixels")
    local_scale: tuple[float, ...] = setting((0.05, 0.25), "area of the small crops, LEAST,MOST")
    degrade: float = setting(0.3, "probability of degrading a view, for sets of different quality")
    one_folder: float = setting(0.75, "share of a batch that comes from one --data folder")
    nesterov: bool = setting(True, "Nesterov's momentum for lars and sgd")
    compile_views: bool = setting(True, "compile the augmentation alone, on a GPU")
    epochs: int = setting(100, "passes over the images")


@dataclass(frozen=True, kw_only=True)
class StarterViTSmall(StarterResNet50):
    """ViT-S/8 with a momentum encoder, 2 x 64 to 96 and 4 x 32 pixels.

    Command:   nnclr pretrain starter_vit_small --data PHOTOS --data MORE_PHOTOS --out RUN
    Hardware:  one GPU.
    Time:      estimate: 10 to 20 minutes of an H100 for 37,000 images.
    Expected:  estimate: 20-NN .72 to .80 on imagenette128's test split. Not yet run by this project.
    """

    backbone: str = setting("vit_small_patch8_224", "any timm architecture, or resnet18_cifar, resnet50_cifar")
    drop_path: float = setting(0.1, "stochastic depth of a vision transformer, in the online network alone")
    freeze_patches: bool = setting(True, "do not train a vision transformer's patch projection")
    image_size: int = setting(96, "side of the large views, in pixels")
    eval_size: int = setting(96, "input side of the exported encoder, in pixels")
    early_size: int = setting(64, "side of the large views in the early part of the run; 0 for none")
    early_share: float = setting(0.7, "share of the steps at early_size")
    local_size: int = setting(32, "side of the small views, in pixels")
    optimizer: Literal["lars", "sgd", "adamw"] = setting("adamw", "lars, sgd or adamw")
    base_lr: float = setting(5e-4, "learning rate at a batch of 256; scaled linearly with the batch")
    weight_decay: float = setting(0.05, "not applied to biases, norms, positions and [CLS]")
    warmup_epochs: float = setting(10.0, "linear warm-up, then cosine to 0")
    clip: float = setting(3.0, "largest norm of the gradient; 0 for no limit")
