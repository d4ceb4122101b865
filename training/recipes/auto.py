"""`auto`: a recipe that adapts to the images, the device and the time, and says why."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .imagenet import BEST
from .recipe import Preset, Recipe
from .small import CIFAR10_RESNET18, SMALL, SMALL_CPU

TINY = 40  # pixels of the short side up to which a stem for photographs loses nearly everything
SOME = 20_000  # images from which a ResNet-50 is worth its cost
MANY = 200_000  # images from which the paper's recipe fits
STEPS = 20_000  # for a small set on a GPU
CPU_STEPS = 3_000
# images of 48 pixels per core-minute, with views and optimizer, without and with bf16 (docs/results/auto.md); the cost
# of a view is proportional to its pixels
CPU_RATE = {False: 10_000, True: 16_000}
# Steps below which SimCLR replaces NNCLR. It is level or ahead in the measured runs of up to 8,700 steps
# (docs/results/budget.md, small_cpu.md, crop_only.md), and NNCLR overtakes it after 37,000 in the paper. Nothing in
# between was measured.
NEIGHBOR_STEPS = 10_000
# area of a crop in short runs on a CPU, docs/results/auto.md; the paper's are of .08 and more
WIDE = (0.4, 1.0)
FREE_STARTER = "nnclr_resnet18_free_starter"  # what `auto` starts from
START_BATCH = 64  # images of a step on a CPU from an encoder: its input is large, so larger batches leave few steps
START_STEPS = 1_000  # on a CPU without a time limit
HELPFUL_STEPS = 300  # runs of fewer steps from an encoder did not help in docs/results/auto.md
# settings of NNCLR that SimCLR would ignore; a user who sets one keeps NNCLR
OF_NEIGHBORS = (
    *("objective", "learner", "transposed_term", "queue_size", "support_set", "enqueue"),
    *("pick", "k", "soft_temperature", "mask_own", "warm_start", "ramp", "gate", "same", "not_same"),
)


@dataclass(frozen=True)
class Cues:
    """How well colors alone and shapes alone classify the labeled images, see `measure_cues`.

    color, shape: accuracy of the nearest neighbors by colors alone, and by shapes alone, in [0, 1].
    color_wins: whether color is better, beyond chance.
    """

    color: float
    shape: float
    color_wins: bool


@dataclass(frozen=True)
class Start:
    """The encoder that a run starts from.

    source: as given.
    settings: those that keep its input and its heads.
    cost: cost of a training step for an image, relative to that of `small_cpu` at 48 pixels.
    """

    source: str
    settings: Mapping[str, Any]
    cost: float


@dataclass(frozen=True)
class Situation:
    """What `auto` looks at.

    images: number of images.
    side: their typical short side, in pixels.
    on_gpu: whether the run has a GPU.
    minutes: time limit, or None.
    cores: number of CPU cores.
    cues: what labels that the user gave say about colors and shapes, if there are any.
    bf16: whether the CPU trains in bf16.
    start: the encoder that the run starts from, if any.
    """

    images: int
    side: int
    on_gpu: bool
    minutes: float | None = None
    cores: int = 2
    cues: Cues | None = None
    bf16: bool = False
    start: Start | None = None


@dataclass(frozen=True, kw_only=True)
class Auto(Recipe):
    """Select network, method, size of the views and epochs for a situation."""

    def choose(self, now: Situation) -> tuple[Recipe, list[str]]:
        """Return the recipe, and sentences that say why."""
        given = self.image_size if "image_size" in self.fixed else None
        why: list[str] = []
        if now.start is not None:
            chosen = _from_encoder(now, now.start)
        else:
            chosen = _on_gpu(now) if now.on_gpu else _on_cpu(now, given)
        if given and now.start is not None:
            chosen = dataclasses.replace(chosen, image_size=given, pack_size=max(given, chosen.pack_size))
        elif given:
            pack_size = given * chosen.pack_size // chosen.image_size
            chosen = dataclasses.replace(chosen, image_size=given, eval_size=given, pack_size=pack_size)
        kept = (*self.fixed, "in_chans", "mean", "std")
        chosen = dataclasses.replace(
            chosen, **{name: getattr(self, name) for name in kept}, fixed=self.fixed, name=self.name
        )
        changes_color = chosen.augmentation in ("byol", "cifar") and "augmentation" not in self.fixed
        if now.cues and now.cues.color_wins and changes_color:
            why.append(
                f"Views keep their colors, because colors predict {now.cues.color:.0%} of your labels, and shapes "
                f"{now.cues.shape:.0%}. For views with other colors, use --set augmentation={chosen.augmentation}."
            )
            small = {} if "crop_scale" in self.fixed else {"crop_scale": ()}  # with colors, large crops are too easy
            chosen = dataclasses.replace(chosen, augmentation="keep_color", **small)
        default = Recipe()
        own = {name: getattr(self, name) for name in OF_NEIGHBORS if getattr(self, name) != getattr(default, name)}
        chosen = dataclasses.replace(chosen, **own)
        if "batch_size" not in self.fixed:
            chosen = dataclasses.replace(chosen, batch_size=chosen.batch_for(now.images))
        steps = chosen.steps(max(1, now.images // chosen.batch_size))
        if steps < NEIGHBOR_STEPS and not own and not {"method", "encoder", *OF_NEIGHBORS} & set(self.fixed):
            chosen = dataclasses.replace(chosen, method="simclr")
            why.insert(
                0,
                f"SimCLR instead of NNCLR: it was level or ahead in all measured runs of fewer than {NEIGHBOR_STEPS:,} "
                f"steps, and this one plans {steps:,}; --set method=nnclr trains NNCLR.",
            )
        if now.start is not None:
            when = "are planned"
            if now.minutes:  # a run on a GPU, or with a given number of epochs, is not planned for the time
                fits = not now.on_gpu and "epochs" not in self.fixed
                when = ("fit" if fits else "are planned, or as many as fit") + f" into {_in_words(now.minutes)}"
            why += _prospects(now.start, steps, chosen.batch_size, when)
        return chosen, why


def _on_cpu(now: Situation, given: int | None) -> Recipe:
    """Return a recipe for a CPU: with the given size of the views, or 48 pixels, or 32 for tiny images."""
    size = given or (32 if now.side <= TINY else SMALL_CPU.image_size)
    steps = _steps(now, size)
    return dataclasses.replace(
        SMALL_CPU,
        epochs=_epochs(now.images, 256, steps, most=100),
        image_size=size,
        eval_size=size,
        pack_size=max(96, 2 * size),
        crop_scale=WIDE if steps < NEIGHBOR_STEPS else (),
    )


def _steps(now: Situation, size: int) -> int:
    """Return the number of steps of 256 images on a CPU: those that fit into the time limit, if there is one.

    A limit of 0 stops after one step; what is planned then is for a run that is resumed without a limit.
    """
    if not now.minutes:
        return CPU_STEPS
    return round(now.minutes * now.cores * CPU_RATE[now.bf16] * (48 / size) ** 2 / 256)


def _from_encoder(now: Situation, start: Start) -> Recipe:
    """Return a recipe that keeps the input and the heads of an encoder."""
    batch = 512 if now.on_gpu else START_BATCH
    steps = STEPS if now.on_gpu else START_STEPS
    if now.minutes and not now.on_gpu:
        steps = round(now.minutes * now.cores * CPU_RATE[now.bf16] / start.cost / batch)
    from_encoder = dataclasses.replace(
        SMALL,
        prediction="none",
        gate=0.5,
        checkpoint_every=5,
        batch_size=batch,
        epochs=_epochs(now.images, batch, steps, most=100),
        warmup_epochs=1.0,
        crop_scale=() if now.on_gpu else WIDE,
    )
    return dataclasses.replace(from_encoder, **start.settings)


def _in_words(minutes: float) -> str:
    return "1 minute" if minutes == 1 else f"{minutes:g} minutes"


def _prospects(start: Start, steps: int, batch: int, when: str) -> list[str]:
    about = f"about {steps:,} steps" if steps > 1 else "a single step"
    sentences = [f"{about} of {batch} images {when}: {steps * batch:,} images at most."]
    if steps < HELPFUL_STEPS:
        sentences.append(
            f"These are too few to improve on {start.source} (fewer than {HELPFUL_STEPS} steps): use it as it is, or "
            "train for longer. The run starts all the same."
        )
    return sentences


def _on_gpu(now: Situation) -> Recipe:
    if now.side <= TINY:
        return dataclasses.replace(CIFAR10_RESNET18, epochs=_epochs(now.images, 512, STEPS, most=800))
    if now.images < SOME:
        return dataclasses.replace(SMALL, epochs=_epochs(now.images, 512, STEPS, most=800))
    if now.images < MANY:
        return dataclasses.replace(
            SMALL,
            backbone="resnet50",
            image_size=160,
            eval_size=160,
            pack_size=320,
            queue_size=32_768,
            epochs=_epochs(now.images, 512, 2 * STEPS, most=400),
        )
    return dataclasses.replace(BEST, batch_size=1024, chunk=256, epochs=100, base_lr=0.4)


def _epochs(images: int, batch: int, steps: int, most: int) -> float:
    epochs = max(1, steps) * batch / max(images, batch)
    return min(most, int(epochs)) if epochs >= 1 else epochs


AUTO = Preset(
    recipe=Auto(),
    summary="Select network, method, size of the views and epochs for the images, the device and the time.",
    hardware="a CPU or a GPU.",
    time="estimate: 20 minutes to an hour for a few thousand images; at most --minutes.",
    expected="depends on the images; RUN/report.html shows whether the run learned anything.",
    notes="On a CPU it is `small_cpu` at 48 pixels; fine textures need image_size=96. In runs of fewer than 10,000 "
    "planned steps, crops have at least 40% of an image, unless views keep their colors. On a GPU it is a ResNet-18 at "
    "128 pixels, from 20,000 images on a ResNet-50 at 160, and from 200,000 on the paper's recipe at 224. Images of at "
    "most 40 pixels get the ResNet-18 with a CIFAR stem. Runs of fewer than 10,000 planned steps use SimCLR; "
    "--set method=nnclr keeps NNCLR. Values given with --set are kept. The other values that --settings shows are the "
    "paper's, and `auto` replaces them.",
)
