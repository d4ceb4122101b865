"""The paper's recipes on ImageNet; `training.tables` has the settings that the rows of the paper's tables change.

All times are estimates; the project has not run these recipes. For a ResNet-50 they assume that an H100 trains on 1,340
images per second, as many as its memory traffic allows. With 256 images per step, an H200 reached 2,270 images per
second. A batch of 4096 images at 224 pixels does not fit into one GPU of 80 GB. Use --gpus 8, or --set chunk=512: it
computes the activations twice instead of keeping them, and the loss is of the whole batch.
"""

from __future__ import annotations

from dataclasses import replace

from .recipe import Preset, Recipe

DATA = "--data IMAGENET --out RUN --gpus 8"
HARDWARE = "8 GPUs of 80 GB, or one with --set chunk=512."

BEST = Recipe()  # the defaults are the paper's best two-view row
ABLATION = replace(BEST, queue_size=32_768, base_lr=0.15)
# The paper calls the optimizer of its vision transformers Adam with weight decay 0.05; we read this as decoupled decay,
# as in DeiT. "We use the output corresponding to the [CLS] token of the final layer as the embedding z_i in the loss":
# taken literally, there is no projection head; --set projection=nnclr adds the ResNet's. `clip` is not in the paper.
VIT_BASE = replace(
    BEST,
    backbone="vit_base",
    drop_path=0.1,
    projection="none",
    optimizer="adamw",
    base_lr=3e-4,
    weight_decay=0.05,
    clip=3.0,
)


def _preset(
    recipe: Recipe, summary: str, hours: str, expected: str, notes: str = "", hardware: str = HARDWARE
) -> Preset:
    time = f"estimate: {hours} hours of one H100. Not yet run by this project."
    return Preset(
        recipe=recipe, summary=summary, hardware=hardware, time=time, expected=expected, notes=notes, data=DATA
    )


IMAGENET: dict[str, Preset] = {
    "resnet50_imagenet": _preset(
        BEST,
        "ResNet-50, 1000 epochs, two views, a support set of 98,304: the paper's best two-view row.",
        "265",
        '75.4 top-1 in linear evaluation (the paper, table "Support set size").',
    ),
    "resnet50_imagenet_ablation": _preset(
        ABLATION,
        "The base of the paper's ablations: a support set of 32,768, base rate 0.15, 1000 epochs.",
        "265",
        "74.9 top-1 in linear evaluation (the paper, tables of section 4.4).",
        "`nnclr ablate TABLE --recipe resnet50_imagenet_ablation` runs a table of the paper. Single rows: epochs=100 "
        "base_lr=0.4 (69.4 top-1), 200 with 0.3 (70.7), 400 with 0.3 (74.2), 800 with 0.3 (74.9); "
        "method=momentum_nnclr (74.9), whose t the paper does not state, so it is BYOL's; epochs=300 "
        "augmentation=crop_only (68.2); method=nnsiam base_lr=0.2 (72.6).",
    ),
    "resnet50_imagenet_multicrop": _preset(
        replace(BEST, epochs=800, local_crops=6, crop_scale=(0.14, 1.0)),
        "800 epochs with two views of 224 pixels and six of 96, neighbors from the large views only.",
        "425",
        '75.6 top-1 in linear evaluation (the paper, table "ImageNet linear evaluation results").',
        "The paper does not state the area of the crops: these are SwAV's.",
    ),
    "vit_base_imagenet": _preset(
        VIT_BASE,
        "ViT-B/16, 1000 epochs with AdamW.",
        "400",
        '76.5 top-1 in linear evaluation; SimCLR 74.5 (the paper, table "Vision Transformer").',
        "backbone=vit_small is ViT-S/16 (82.7 top-1 after supervised fine-tuning in the paper, estimate 180 hours). "
        "backbone=vit_base_patch8 with chunk=64 is ViT-B/8 (84.4, estimate 1,600 hours). For 384 pixels set "
        "image_size=384 eval_size=384 pack_size=432.",
        hardware="8 GPUs of 80 GB, or one with --set chunk=256.",
    ),
}
