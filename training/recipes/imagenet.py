"""The paper's ResNet-50 recipes on ImageNet: one class per row of its tables.

All times are estimates for one H100 at 2,000 images per second; the project has not run these recipes. A batch of 4096
at 224 pixels does not fit into one GPU of 80 GB. Use --gpus 8, or --set chunk=512, which computes the activations twice
instead of keeping them (the loss is still that of the whole batch).
"""

from __future__ import annotations

from dataclasses import dataclass

from .recipe import Recipe
from .settings import setting


@dataclass(frozen=True, kw_only=True)
class ResNet50ImageNet(Recipe):
    """ResNet-50, 1000 epochs, two views, a support set of 98,304: the paper's best two-view row.

    Command:   nnclr pretrain resnet50_imagenet --data IMAGENET --out RUN --gpus 8
    Hardware:  8 GPUs of 80 GB, or one with --set chunk=512.
    Time:      estimate: 180 hours of one H100, more with chunks.
    Expected:  75.4 top-1 in linear evaluation (the paper, table "Support set size").
    """


@dataclass(frozen=True, kw_only=True)
class Ablation(ResNet50ImageNet):
    """The base of the paper's ablations: a support set of 32,768, base rate 0.15, 1000 epochs.

    Command:   nnclr pretrain resnet50_imagenet_ablation --data IMAGENET --out RUN --gpus 8
    Hardware:  8 GPUs of 80 GB, or one with --set chunk=512.
    Time:      estimate: 180 hours of one H100.
    Expected:  74.9 top-1 in linear evaluation (the paper, tables of section 4.4).
    """

    queue_size: int = setting(32_768, "rows of the support set; shrinks to the number of images")
    base_lr: float = setting(0.15, "learning rate at a batch of 256; scaled linearly with the batch")


@dataclass(frozen=True, kw_only=True)
class Epochs100(Ablation):
    """100 epochs at base rate 0.4.

    Command:   nnclr pretrain resnet50_imagenet_100 --data IMAGENET --out RUN --gpus 8
    Hardware:  8 GPUs of 80 GB, or one with --set chunk=512.
    Time:      estimate: 18 hours of one H100.
    Expected:  69.4 top-1 in linear evaluation (the paper, table "Number of pre-training epochs").
    """

    epochs: int = setting(100, "passes over the images")
    base_lr: float = setting(0.4, "learning rate at a batch of 256; scaled linearly with the batch")


@dataclass(frozen=True, kw_only=True)
class Epochs200(Ablation):
    """200 epochs at base rate 0.3.

    Command:   nnclr pretrain resnet50_imagenet_200 --data IMAGENET --out RUN --gpus 8
    Hardware:  8 GPUs of 80 GB, or one with --set chunk=512.
    Time:      estimate: 36 hours of one H100.
    Expected:  70.7 top-1 in linear evaluation (the paper, table "Number of pre-training epochs").
    """

    epochs: int = setting(200, "passes over the images")
    base_lr: float = setting(0.3, "learning rate at a batch of 256; scaled linearly with the batch")


@dataclass(frozen=True, kw_only=True)
class Epochs400(Epochs200):
    """400 epochs at base rate 0.3.

    Command:   nnclr pretrain resnet50_imagenet_400 --data IMAGENET --out RUN --gpus 8
    Hardware:  8 GPUs of 80 GB, or one with --set chunk=512.
    Time:      estimate: 72 hours of one H100.
    Expected:  74.2 top-1 in linear evaluation (the paper, table "Number of pre-training epochs").
    """

    epochs: int = setting(400, "passes over the images")


@dataclass(frozen=True, kw_only=True)
class Epochs800(Epochs200):
    """800 epochs at base rate 0.3.

    Command:   nnclr pretrain resnet50_imagenet_800 --data IMAGENET --out RUN --gpus 8
    Hardware:  8 GPUs of 80 GB, or one with --set chunk=512.
    Time:      estimate: 144 hours of one H100.
    Expected:  74.9 top-1 in linear evaluation (the paper, table "Number of pre-training epochs").
    """

    epochs: int = setting(800, "passes over the images")


@dataclass(frozen=True, kw_only=True)
class MultiCrop(ResNet50ImageNet):
    """800 epochs with two views of 224 pixels and six of 96, neighbors from the large views only.

    The paper does not state the area of the crops: these are SwAV's.

    Command:   nnclr pretrain resnet50_imagenet_multicrop --data IMAGENET --out RUN --gpus 8
    Hardware:  8 GPUs of 80 GB, or one with --set chunk=512.
    Time:      estimate: 290 hours of one H100.
    Expected:  75.6 top-1 in linear evaluation (the paper, table "ImageNet linear evaluation results").
    """

    epochs: int = setting(800, "passes over the images")
    local_crops: int = setting(6, "number of small views (multi-crop)")
    crop_scale: tuple[float, ...] = setting((0.14, 1.0), "area of large crops, LEAST,MOST")


@dataclass(frozen=True, kw_only=True)
class Momentum(Ablation):
    """Algorithm 2: a momentum encoder looks up and enqueues the neighbors.

    The paper does not state t; 0.99 rising to 1 is BYOL's schedule.

    Command:   nnclr pretrain resnet50_imagenet_momentum --data IMAGENET --out RUN --gpus 8
    Hardware:  8 GPUs of 80 GB, or one with --set chunk=512.
    Time:      estimate: 230 hours of one H100.
    Expected:  74.9 top-1 in linear evaluation (the paper, table "Effect of adding nearest-neighbors as positives").
    """

    method: str = setting("momentum_nnclr", "row of METHODS")


@dataclass(frozen=True, kw_only=True)
class CropOnly(Ablation):
    """Random crops as the only augmentation, 300 epochs.

    Command:   nnclr pretrain resnet50_imagenet_crop_only --data IMAGENET --out RUN --gpus 8
    Hardware:  8 GPUs of 80 GB, or one with --set chunk=512.
    Time:      estimate: 54 hours of one H100.
    Expected:  68.2 top-1 in linear evaluation; SimCLR 40.3 (table "Performance with only crop augmentation").
    """

    epochs: int = setting(300, "passes over the images")
    augmentation: str = setting("crop_only", "see AUGMENTATIONS")


@dataclass(frozen=True, kw_only=True)
class NNSiam(Ablation):
    """SimSiam with the neighbor as target: negative cosine, d = 2048, base rate 0.2.

    Command:   nnclr pretrain resnet50_imagenet_nnsiam --data IMAGENET --out RUN --gpus 8
    Hardware:  8 GPUs of 80 GB, or one with --set chunk=512.
    Time:      estimate: 180 hours of one H100; the paper does not state the number of epochs.
    Expected:  72.6 top-1 in linear evaluation; SimSiam 71.3 (table "SimSiam with nearest-neighbor as positive").
    """

    method: str = setting("nnsiam", "row of METHODS")
    base_lr: float = setting(0.2, "learning rate at a batch of 256; scaled linearly with the batch")
