"""Recipe: every setting of a pretraining run, validated on construction.

A recipe is a frozen dataclass whose defaults are the paper's; the file of each family changes what it needs.
`--set` calls `Recipe.with_settings(["epochs=5"])`.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from nnclr_hub.method import METHODS, PREDICTIONS, PROJECTIONS

from ..data.augment import AUGMENTATIONS, IMAGENET_MEAN, IMAGENET_STD, View
from .settings import one_of, parse_settings, require, setting


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The paper's settings ("Implementation details" and section 4.1)."""

    # ---- method
    method: str = setting("nnclr", "row of METHODS: " + ", ".join(METHODS))
    temperature: float = setting(0.1, "tau of the InfoNCE loss")
    target_temperature: float = setting(
        0.05, "of a target that is a distribution over Q or an assignment (SwAV's epsilon)"
    )
    mean_of: int = setting(5, "method=msf: rows whose mean is the target, the view's own embedding included")
    prototypes: int = setting(300, "method=swav: number of prototypes")
    sigreg_weight: float = setting(0.02, "method=lejepa: weight of SIGReg; the rest is the agreement of the views")
    transposed_term: bool = setting(False, "add the loss term whose denominator runs over the targets")
    ema: float = setting(0.99, "initial t of the momentum encoder; a cosine raises it to 1")
    encoder: Literal["online", "momentum"] = setting("online", "the network that is evaluated and exported")
    # ---- support set
    queue_size: int = setting(98_304, "rows of the support set; shrinks to the number of images")
    support_set: Literal["queue", "random_replacement", "current_encoder"] = setting(
        "queue", "first in first out, rows replaced at random, or a random set embedded at each step"
    )
    enqueue: Literal["first", "both"] = setting("first", "views to add to the support set")
    pick: Literal["nearest", "soft", "oracle"] = setting("nearest", "which neighbor; oracle: of the same label")
    k: int = setting(1, "sample the neighbor from the k nearest")
    soft_temperature: float = setting(0.1, "temperature of the softmax over the support set, with pick=soft")
    mask_own: bool = setting(True, "never use an image's own older embedding as its neighbor")
    warm_start: float = setting(0.0, "share of the steps in which the view itself is the positive")
    ramp: float = setting(0.0, "share of the steps over which neighbors are phased in afterwards")
    gate: float = setting(1.0, "final share of a batch, the most similar, that uses neighbors")
    # ---- network
    backbone: str = setting("resnet50", "any timm architecture, or resnet18_cifar, resnet50_cifar")
    channels: tuple[int, ...] = setting((), "widths of a ResNet's four stages; empty for timm's widths")
    drop_path: float = setting(0.0, "stochastic depth of a vision transformer, in the online network alone")
    freeze_patches: bool = setting(False, "do not train a vision transformer's patch projection")
    projection: str = setting("method", f"projection head: method, none, {', '.join(PROJECTIONS)}")
    projection_hidden: int = setting(0, "width of its hidden layers; 0 for the head's default")
    projection_dim: int = setting(0, "d, length of z and p; 0 for the head's default")
    prediction: str = setting("method", f"prediction head: method, none, {', '.join(PREDICTIONS)}")
    prediction_hidden: int = setting(0, "width of its hidden layer; 0 for the head's default")
    # ---- starting from an encoder (--init)
    heads_first: float = setting(0.1, "with --init: share of the steps that train only the heads")
    layer_decay: float = setting(0.75, "with --init: rate of each layer relative to the next later layer")
    # ---- data
    image_size: int = setting(224, "side of the large views, in pixels")
    early_size: int = setting(0, "side of the large views in the early part of the run; 0 for none")
    early_share: float = setting(0.0, "share of the steps at early_size")
    pack_size: int = setting(256, "side of the stored decoded images, in pixels")
    eval_size: int = setting(224, "input side of the exported encoder, in pixels")
    eval_crop: float = setting(0.875, "share of the resized short side that the exported encoder's center crop keeps")
    mean: tuple[float, ...] = setting(IMAGENET_MEAN, "mean of the colors, subtracted; with --init the encoder's")
    std: tuple[float, ...] = setting(IMAGENET_STD, "standard deviation of the colors; with --init the encoder's")
    augmentation: str = setting("byol", ", ".join(AUGMENTATIONS))
    crop_scale: tuple[float, ...] = setting((), "area of large crops, LEAST,MOST; empty for the augmentation's default")
    local_crops: int = setting(0, "number of small views (multi-crop)")
    local_size: int = setting(96, "side of the small views, in pixels")
    local_scale: tuple[float, ...] = setting((0.05, 0.14), "area of the small crops, LEAST,MOST")
    degrade: float = setting(0.0, "probability of degrading a view, for sets of different quality")
    one_folder: float = setting(0.0, "share of a batch that comes from one --data folder")
    residency: Literal["auto", "device", "host"] = setting("auto", "where the decoded images are kept")
    # ---- optimization
    epochs: int = setting(1000, "passes over the images")
    batch_size: int = setting(4096, "images per step over all GPUs; shrinks to fit a small set")
    accumulate: int = setting(1, "number of parts of a batch, to save memory; each part has only its own negatives")
    chunk: int = setting(0, "images per pass of the backbone, at the cost of one more forward pass; 0: all")
    optimizer: Literal["lars", "sgd", "adamw"] = setting("lars", "lars, sgd or adamw")
    base_lr: float = setting(0.3, "learning rate at a batch of 256; scaled linearly with the batch")
    weight_decay: float = setting(1e-6, "not applied to biases, norms, positions and [CLS]")
    momentum: float = setting(0.9, "momentum of lars and sgd")
    nesterov: bool = setting(False, "Nesterov's momentum for lars and sgd")
    warmup_epochs: float = setting(10.0, "linear warm-up, then cosine to 0")
    clip: float = setting(0.0, "largest norm of the gradient; 0 for no limit")
    precision: Literal["auto", "fp32", "bf16"] = setting("auto", "auto: bf16 on devices where it is fast")
    channels_last: bool = setting(True, "memory layout of convolutions")
    compile: bool = setting(False, "compile the backbone, and on a GPU the augmentation")
    compile_views: bool = setting(False, "compile the augmentation alone, on a GPU")
    seed: int = setting(0, "seed of weights, order and augmentation")
    # ---- logging and checkpoints
    log_every: int = setting(10, "steps between log lines")
    eval_images: int = setting(25_000, "maximum number of images of train/ and of val/ to score at a checkpoint")
    checkpoint_every: int = setting(10, "epochs between checkpoints, with 20-NN, encoder and report")
    tensorboard: bool = setting(False, "write RUN/tensorboard in addition to log.jsonl")
    fixed: tuple[str, ...] = dataclasses.field(default=(), repr=False)  # names given with --set

    def __post_init__(self) -> None:
        one_of("method", self.method, METHODS)
        one_of("augmentation", self.augmentation, AUGMENTATIONS)
        one_of("projection", self.projection, ("method", "none", *PROJECTIONS))
        one_of("prediction", self.prediction, ("method", "none", *PREDICTIONS))
        for name, kind in typing.get_type_hints(type(self)).items():
            if typing.get_origin(kind) is Literal:
                one_of(name, getattr(self, name), typing.get_args(kind))
        self._check_ranges()
        self._check_together()

    def _check_ranges(self) -> None:
        sizes = ("queue_size", "log_every", "epochs", "checkpoint_every", "accumulate", "k", "eval_images")
        sizes += ("mean_of", "prototypes", "target_temperature")
        for name in (*sizes, "temperature", "soft_temperature", "base_lr"):
            require(getattr(self, name) > 0, name, getattr(self, name), "must be above 0")
        for name in ("image_size", "pack_size", "eval_size", "local_size"):
            require(getattr(self, name) >= 8, name, getattr(self, name), "must be at least 8 pixels")
        shares = ("warm_start", "ramp", "gate", "ema", "heads_first", "early_share", "degrade", "one_folder")
        for name in shares:
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "must be between 0 and 1")
        for name in ("eval_crop", "layer_decay"):
            require(0 < getattr(self, name) <= 1, name, getattr(self, name), "must be above 0 and at most 1")
        require(0 <= self.drop_path < 1, "drop_path", self.drop_path, "must be at least 0 and below 1")
        for name in ("weight_decay", "momentum", "warmup_epochs", "seed", "clip", "chunk", "local_crops"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "must not be negative")
        for name in ("projection_hidden", "projection_dim", "prediction_hidden", "early_size"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "must not be negative")
        for name, value in (("crop_scale", self.crop_scale), ("local_scale", self.local_scale)):
            if value or name == "local_scale":
                fits = len(value) == 2 and 0 < value[0] <= value[1] <= 1
                require(fits, name, value, "must be LEAST,MOST, two shares of the area above 0 and at most 1")
        for name, least in (("mean", -1e9), ("std", 0)):
            value = getattr(self, name)
            require(len(value) == 3 and min(value) > least, name, value, "must be three numbers, with std above 0")
        require(
            len(self.channels) in (0, 4), "channels", self.channels, "must be the widths of all four stages, or empty"
        )
        require(self.batch_size >= 2, "batch_size", self.batch_size, "must be at least 2 for batch norm and InfoNCE")

    def _check_together(self) -> None:
        require(
            self.pack_size >= self.image_size,
            "pack_size",
            self.pack_size,
            f"must be at least image_size ({self.image_size}), or every view would be enlarged",
        )
        require(
            not (self.optimizer == "lars" and self.weight_decay == 0),
            "weight_decay",
            0,
            "must be above 0 with lars, which adapts only tensors with weight decay (1e-9 is enough)",
        )
        require(
            not (self.k > 1 and self.pick == "soft"), "k", self.k, "must be 1 with pick=soft, which averages all rows"
        )
        require(
            self.early_share == 0 or self.early_size >= 8,
            "early_share",
            self.early_share,
            "needs early_size, the side of the views in the early part of the run",
        )
        require(
            self.encoder == "online" or METHODS[self.method].target_encoder == "momentum",
            "encoder",
            self.encoder,
            f"must be online: the method {self.method} has no momentum encoder",
        )
        parts = self.batch_size // self.accumulate
        require(parts >= 2, "accumulate", self.accumulate, f"must leave parts of at least 2 images, not {parts}")

    # ---- derived values

    @property
    def model_args(self) -> dict[str, Any]:
        """Arguments of the timm architecture, without the image size."""
        return {"channels": list(self.channels)} if self.channels else {}

    def neighbor_share(self, progress: float) -> float:
        """Return the share of a batch that uses neighbors at `progress` (0 to 1) of the steps."""
        if progress < self.warm_start:
            return 0.0
        if progress >= self.warm_start + self.ramp:
            return self.gate
        return self.gate * (progress - self.warm_start) / self.ramp

    def size_at(self, progress: float) -> int:
        """Return the side of the large views at `progress` (0 to 1) of the steps."""
        return self.early_size if progress < self.early_share else self.image_size

    def views_at(self, progress: float) -> list[View]:
        """Return the views of a step: two large ones, then the small ones of multi-crop, alternating the two styles."""
        styles = [
            dataclasses.replace(one, degrade=self.degrade, mean=self.mean, std=self.std)
            for one in AUGMENTATIONS[self.augmentation]
        ]
        size, scale = self.size_at(progress), self.crop_scale
        large = [dataclasses.replace(one, size=size, scale=scale or one.scale) for one in styles]
        small = [dataclasses.replace(one, size=self.local_size, scale=self.local_scale) for one in styles]
        return large + [small[i % 2] for i in range(self.local_crops)]

    @property
    def view_sizes(self) -> tuple[int, ...]:
        """Sides of all views of a run."""
        early = (self.early_size,) if self.early_share > 0 else ()
        return (self.image_size, *early, *([self.local_size] if self.local_crops else []))

    def for_data(self, images: int, side: int, on_gpu: bool) -> Recipe:
        """Return the recipe for a set of this size; only `auto` changes it."""
        return self

    # ---- --set

    @classmethod
    def settings(cls) -> list[tuple[str, Any, str]]:
        """Return (name, default, help) for every setting."""
        return [(f.name, f.default, f.metadata["help"]) for f in dataclasses.fields(cls) if "help" in f.metadata]

    def with_settings(self, assignments: Sequence[str]) -> Self:
        """Return a copy with `key=value` assignments applied.

        Raises:
            UnknownSetting: an unknown key, with the nearest one, or an invalid value.
        """
        hints = typing.get_type_hints(type(self))
        names = [name for name, _, _ in self.settings()]
        changes = parse_settings(assignments, {name: hints[name] for name in names}, dataclasses.asdict(self))
        return dataclasses.replace(self, **changes, fixed=tuple(dict.fromkeys([*self.fixed, *changes])))
