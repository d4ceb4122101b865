"""Recipes for small sets and small machines, and those of the starter encoders.

A few thousand steps are too few for the paper's schedule. In all of these recipes the view itself is the positive at
first, the support set is smaller, and the optimizer is SGD or AdamW. The projection head is the same for all methods,
so that they compare.
"""

from __future__ import annotations

from dataclasses import replace

from .recipe import Preset, Recipe

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
}
