"""Recipes for small sets and small machines, and those of the starter encoders.

A few thousand steps are too few for the paper's schedule. In all of these recipes the view itself is the positive at
first, the support set is smaller, and the optimizer is SGD or AdamW. The projection head is the same for all methods,
so that they compare.

The recipes `starter_...` learn from several small sets together, on one GPU. They have the settings of the encoders of
these names in `weights/`. Their batches come mostly from one set, and views are degraded at random, because the sets
differ in sharpness and compression.
"""

from __future__ import annotations

from dataclasses import replace

from .preset import Preset
from .recipe import Recipe

SMALL = Recipe(
    backbone="resnet18",
    projection="nnclr",
    queue_size=8192,
    warm_start=0.1,
    ramp=0.1,
    image_size=128,
    pack_size=256,
    eval_size=128,
    epochs=200,
    batch_size=512,
    optimizer="sgd",
    base_lr=0.06,
    weight_decay=5e-4,
    warmup_epochs=5.0,
)
SMALL_CPU = replace(
    SMALL,
    channels=(32, 64, 128, 256),
    projection_hidden=1024,
    projection_dim=128,
    prediction="none",
    image_size=48,
    pack_size=96,
    eval_size=48,
    eval_crop=1.0,
    warm_start=0.3,
    ramp=0.3,
    gate=0.5,
    epochs=25,
    batch_size=256,
    warmup_epochs=1.0,
    checkpoint_every=5,
)
CIFAR10_RESNET18 = replace(
    SMALL,
    backbone="resnet18_cifar",
    image_size=32,
    pack_size=32,
    eval_size=32,
    eval_crop=1.0,
    augmentation="cifar",
    queue_size=16_384,
)
STARTER_RESNET50 = replace(
    SMALL,
    backbone="resnet50",
    prediction="none",
    queue_size=16_384,
    warm_start=0.3,
    ramp=0.3,
    gate=0.5,
    image_size=96,
    early_size=64,
    early_share=0.6,
    pack_size=128,
    eval_crop=1.0,
    degrade=0.3,
    one_folder=0.75,
    nesterov=True,
    warmup_epochs=4.0,
    epochs=68.85,
    checkpoint_every=25,
)
STARTER_VIT_SMALL = replace(
    STARTER_RESNET50,
    backbone="vit_small_patch8_224",
    drop_path=0.1,
    freeze_patches=True,
    eval_size=96,
    early_share=0.7,
    optimizer="adamw",
    base_lr=5e-4,
    weight_decay=0.05,
    nesterov=False,
    warmup_epochs=6.0,
    epochs=37.93,
    clip=3.0,
)


def _starter(recipe: Recipe, summary: str, time: str, expected: str) -> Preset:
    return Preset(
        recipe=recipe,
        summary=summary,
        data="--data PHOTOS --data MORE_PHOTOS --out RUN",
        time=f"{time} of an H200 for 21,461 images, next to other runs.",
        expected=f"20-NN of {expected} on imagenette128, see docs/results/larger.md.",
        notes="The settings of the starter of this name, except least_crop_of and keep_color_of, which name its data "
        "folders; docs/results/larger.md has the whole command.",
    )


SMALL_SETS: dict[str, Preset] = {
    "small_cpu": Preset(
        recipe=SMALL_CPU,
        summary="A narrow ResNet-18 at 48 pixels: an encoder from a few thousand images on a laptop's CPU.",
        hardware="2 CPU cores.",
        time="about 20 minutes for 16,000 images at the default number of epochs.",
        expected="see docs/results/small_cpu.md; --set epochs=N for more.",
        notes="No prediction head; the view itself is the positive for the first third of the steps, then the half of "
        "each batch with the most similar neighbors is phased in; narrower heads.",
    ),
    "small": Preset(
        recipe=SMALL,
        summary="The base of the recipes for small sets: SGD at 0.06 x B / 256, BYOL's augmentation.",
        data="--data PHOTOS --out RUN --set image_size=96",
        time="estimate: 7 minutes of an H200 for 15,000 images at 96 pixels, 200 epochs.",
        expected="see docs/results/starter.md: the default starter, made with more settings.",
    ),
    "cifar10_resnet18": Preset(
        recipe=CIFAR10_RESNET18,
        summary="ResNet-18 with a CIFAR stem, at 32 pixels, no blur.",
        data="--data cifar10 --out RUN",
        time="estimate: 10 minutes of an H100 for 200 epochs.",
        expected="not yet run by this project. Elsewhere, with other settings and their best epoch: 83.4 k-NN after "
        "200 epochs (lightly's benchmark), 91.88 linear after 1000 (solo-learn).",
    ),
    "imagenette_resnet18": Preset(
        recipe=replace(SMALL, batch_size=256, queue_size=4096),
        summary="ResNet-18 at 128 pixels.",
        data="--data imagenette --out RUN",
        time="estimate: 3 minutes of an H100 for 200 epochs.",
        expected="not yet run by this project. Elsewhere, with other settings and their best epoch: 80.9 k-NN after "
        "200 epochs, 88.4 after 800 (lightly's benchmark).",
    ),
    "starter_resnet50": _starter(STARTER_RESNET50, "ResNet-50 at 64, then 96 pixels.", "8 minutes", ".726"),
    "starter_vit_small": _starter(STARTER_VIT_SMALL, "ViT-S/8 at 64, then 96 pixels.", "7.5 minutes", ".648"),
}
