"""The paper's vision transformers on ImageNet ("Experiments with Vision Transformers").

"We use the output corresponding to the [CLS] token of the final layer as the embedding z_i in the loss": taken
literally, there is no projection head. --set projection=nnclr adds the ResNet's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .recipe import Recipe
from .settings import setting


@dataclass(frozen=True, kw_only=True)
class ViTBaseImageNet(Recipe):
    """ViT-B/16, 1000 epochs with AdamW.

    The paper calls its optimizer Adam with weight decay 0.05; we read this as decoupled decay, as in DeiT.

    Command:   nnclr pretrain vit_base_imagenet --data IMAGENET --out RUN --gpus 8
    Hardware:  8 GPUs of 80 GB, or one with --set chunk=256.
    Time:      estimate: 400 hours of one H100. Not yet run by this project.
    Expected:  76.5 top-1 in linear evaluation; SimCLR 74.5 (the paper, table "Vision Transformer").
    """

    backbone: str = setting("vit_base", "any timm architecture")
    drop_path: float = setting(0.1, "stochastic depth of a vision transformer, in the online network alone")
    projection: str = setting("none", "projection head: method, none, ...")
    optimizer: Literal["lars", "sgd", "adamw"] = setting("adamw", "lars, sgd or adamw")
    base_lr: float = setting(3e-4, "learning rate at a batch of 256; scaled linearly with the batch")
    weight_decay: float = setting(0.05, "not applied to biases, norms, positions and [CLS]")
    clip: float = setting(3.0, "largest norm of the gradient; 0 for no limit. Not in the paper")
    eval_crop: float = setting(0.875, "share of the resized short side that the exported encoder's center crop keeps")


@dataclass(frozen=True, kw_only=True)
class ViTSmallImageNet(ViTBaseImageNet):
    """ViT-S/16, 1000 epochs with AdamW; 384 pixels with image_size=384 eval_size=384 pack_size=432.

    Command:   nnclr pretrain vit_small_imagenet --data IMAGENET --out RUN --gpus 8
    Hardware:  8 GPUs of 80 GB, or one with --set chunk=512.
    Time:      estimate: 180 hours of one H100. Not yet run by this project.
    Expected:  82.7 top-1 after supervised fine-tuning (the paper, table "Self-supervised learning as pre-training").
    """

    backbone: str = setting("vit_small", "any timm architecture")


@dataclass(frozen=True, kw_only=True)
class ViTBase8ImageNet(ViTBaseImageNet):
    """ViT-B/8, 1000 epochs with AdamW.

    Command:   nnclr pretrain vit_base8_imagenet --data IMAGENET --out RUN --gpus 8
    Hardware:  8 GPUs of 80 GB with --set chunk=64.
    Time:      estimate: 1,600 hours of one H100. Not yet run by this project.
    Expected:  84.4 top-1 after supervised fine-tuning (the paper, table "Self-supervised learning as pre-training").
    """

    backbone: str = setting("vit_base_patch8", "any timm architecture")
