"""Recipe: every setting of a pretraining run, validated on construction.

A recipe is a frozen dataclass whose defaults are the paper's; the file of each family changes what it needs.
`--set` calls `Recipe.with_settings(["epochs=5"])`.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, Self

from nnclr_hub import method
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import UnknownSetting
from nnclr_hub.images.reading import MAX_CHANNELS, ImageReading
from nnclr_hub.method import METHODS, PREDICTIONS, PROJECTIONS

from ..data.views import AUGMENTATIONS, IMAGENET_MEAN, IMAGENET_STD, View

FIT = math.inf  # number of epochs that the time limit decides
UNPLANNED = 1_000_000  # steps of a run with epochs=fit until its speed is known
# ranges of settings: what a value must be, and whether it is
Range = tuple[str, Callable[[float], bool]]
POSITIVE: Range = ("must be above 0", lambda value: value > 0)
NOT_NEGATIVE: Range = ("must not be negative", lambda value: value >= 0)
SHARE: Range = ("must be between 0 and 1", lambda value: 0 <= value <= 1)
SOME: Range = ("must be above 0 and at most 1", lambda value: 0 < value <= 1)
BELOW_ONE: Range = ("must be at least 0 and below 1", lambda value: 0 <= value < 1)
SIDE: Range = ("must be at least 8 pixels", lambda value: value >= 8)
CHANNELS: Range = (f"must be from 1 to {MAX_CHANNELS}", lambda value: 1 <= value <= MAX_CHANNELS)
OF_PLUGIN = " If it is part of a plug-in, give that with --plugin."


def setting(default: Any, help: str, range: Range = NOT_NEGATIVE) -> Any:
    """Define a field of a recipe with the help that the command line shows, and the range of a number."""
    return dataclasses.field(default=default, metadata={"help": help, "range": range})


def assignments(settings: Sequence[str] | Mapping[str, Any]) -> Sequence[str]:
    """Return settings as ["key=value", ...]; {"key": value} is accepted too."""
    if isinstance(settings, Mapping):
        return [f"{name}={as_text(value)}" for name, value in settings.items()]
    return settings


def parse_settings(assignments: Sequence[str], hints: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Parse `key=value` texts into values of the right types.

    Args:
        hints: the type of every setting.
        now: present values, for examples in messages.
    """
    changes: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if key not in hints:
            close = get_close_matches(key, hints, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the settings are {', '.join(hints)}."
            raise UnknownSetting(f"No setting is named {key!r}; {hint}")
        if not equals:
            raise UnknownSetting(f"--set needs KEY=VALUE, for example {key}={as_text(now[key])}; got {assignment!r}.")
        changes[key] = _parse(key, text, hints[key])
    return changes


def as_text(value: Any) -> str:
    """Format a value as --set accepts it."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    if value == FIT:
        return "fit"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse(key: str, text: str, kind: Any) -> Any:
    if typing.get_origin(kind) is Literal or kind is str:
        return text
    try:
        if key == "epochs" and text == "fit":
            return FIT
        if kind is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        if typing.get_origin(kind) is tuple:
            number = typing.get_args(kind)[0]
            return tuple(number(part) for part in text.split(",") if part)
        number = kind(text)
        if math.isinf(number):  # inside the program, this means "fit"
            raise ValueError(text)
        return number
    except (ValueError, KeyError):
        if isinstance(kind, types.GenericAlias):
            name = f"comma-separated {'integers' if typing.get_args(kind)[0] is int else 'numbers'}"
        else:
            name = {int: "an integer", float: "a number", bool: "true or false"}[kind]
        raise UnknownSetting(f"{key} must be {name}; got {text!r}.") from None


def require(holds: bool, name: str, value: object, rule: str) -> None:
    """Raise UnknownSetting unless `holds`."""
    if not holds:
        raise UnknownSetting(f"{name} {rule}; got {as_text(value)}.")


def one_of(name: str, value: str, choices: Collection[str], hint: str = "") -> None:
    """Raise UnknownSetting, with the nearest choice or a hint, unless value is one of the choices."""
    if value not in choices:
        close = get_close_matches(value, choices, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else hint
        raise UnknownSetting(f"{name} must be one of {', '.join(choices)}; got {value}.{hint}")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The paper's settings ("Implementation details" and section 4.1)."""

    # ---- method
    method: str = setting("nnclr", "row of METHODS: " + ", ".join(METHODS))
    objective: str = setting("method", "loss: method for the method's own, or one of a plug-in")
    learner: str = setting("learner", "class that computes the loss of a step: learner, or one of a plug-in")
    temperature: float = setting(0.1, "tau of the InfoNCE loss", POSITIVE)
    target_temperature: float = setting(
        0.05, "of a target that is a distribution over Q or an assignment (SwAV's epsilon)", POSITIVE
    )
    mean_of: int = setting(5, "method=msf: rows whose mean is the target, the view's own embedding included", POSITIVE)
    prototypes: int = setting(300, "method=swav: number of prototypes", POSITIVE)
    sigreg_weight: float = setting(0.02, "method=lejepa: weight of SIGReg; the rest is the agreement of the views")
    transposed_term: bool = setting(False, "add the loss term whose denominator runs over the targets")
    ema: float = setting(0.99, "initial t of the momentum encoder; a cosine raises it to 1", SHARE)
    teacher: str = setting("", "frozen encoder whose vectors are the targets of the methods teacher...: any source")
    encoder: Literal["online", "momentum"] = setting("online", "the network that is evaluated and exported")
    # ---- support set
    queue_size: int = setting(98_304, "rows of the support set; shrinks to the number of images", POSITIVE)
    support_set: str = setting(
        "queue",
        "queue (first in, first out), random_replacement, current_encoder (a random set embedded at each step), or one "
        "of a plug-in",
    )
    enqueue: Literal["first", "both"] = setting("first", "views to add to the support set")
    pick: Literal["nearest", "soft", "oracle"] = setting("nearest", "which neighbor; oracle: of the same label")
    k: int = setting(1, "sample the neighbor from the k nearest", POSITIVE)
    soft_temperature: float = setting(0.1, "temperature of the softmax over the support set, with pick=soft", POSITIVE)
    mask_own: bool = setting(True, "never use an image's own older embedding as its neighbor")
    same: tuple[str, ...] = setting((), "columns of a table in which an image and its neighbor have the same value")
    not_same: tuple[str, ...] = setting((), "columns of a table in which they have different values")
    forget: float = setting(
        5.0, "with not_same: weight of the penalty on vectors that predict these columns; 0: only neighbors follow them"
    )
    warm_start: float = setting(0.0, "share of the steps in which the view itself is the positive", SHARE)
    ramp: float = setting(0.0, "share of the steps over which neighbors are phased in afterwards", SHARE)
    gate: float = setting(1.0, "final share of a batch, the most similar, that uses neighbors", SHARE)
    # ---- network
    backbone: str = setting("resnet50", "any timm architecture, or resnet18_cifar, resnet50_cifar")
    channels: tuple[int, ...] = setting((), "widths of a ResNet's four stages; empty for timm's widths")
    drop_path: float = setting(0.0, "stochastic depth of a vision transformer, in the online network alone", BELOW_ONE)
    projection: str = setting("method", f"projection head: method, none, {', '.join(PROJECTIONS)}")
    projection_hidden: int = setting(0, "width of its hidden layers; 0 for the head's default")
    projection_dim: int = setting(0, "d, length of z and p; 0 for the head's default")
    prediction: str = setting("method", f"prediction head: method, none, {', '.join(PREDICTIONS)}")
    prediction_hidden: int = setting(0, "width of its hidden layer; 0 for the head's default")
    # ---- starting from an encoder (--init)
    heads_first: float = setting(0.1, "with --init: share of the steps that train only the heads", SHARE)
    layer_decay: float = setting(0.75, "with --init: rate of each layer relative to the next later layer", SOME)
    # ---- data
    image_size: int = setting(224, "side of the large views, in pixels", SIDE)
    early_size: int = setting(0, "side of the large views in the early part of the run; 0 for none")
    early_share: float = setting(0.0, "share of the steps at early_size", SHARE)
    cut_from: Literal["auto", "pack", "originals"] = setting(
        "auto",
        "what views are cut from: originals, decoded at each step, or a pack of smaller copies, decoded once; auto: a "
        "pack if it takes at most 20 GB",
    )
    pack_size: int = setting(256, "most pixels of the short side of a copy in a pack", SIDE)
    workers: int = setting(0, "decoding processes, with cut_from=originals; 0: one per core")
    eval_size: int = setting(224, "input side of the exported encoder, in pixels", SIDE)
    eval_crop: float = setting(
        0.875, "share of the resized short side that the exported encoder's center crop keeps", SOME
    )
    eval_interpolation: Literal["bicubic", "bilinear"] = setting(
        "bicubic", "how the exported encoder resizes an image; with --init as the encoder does"
    )
    eval_crop_mode: Literal["center", "squash", "border"] = setting(
        "center", "side that the exported encoder resizes: the short one, both, the long one; with --init the encoder's"
    )
    in_chans: int = setting(3, "number of channels of an image; of other images than RGB, all are trained on", CHANNELS)
    reading: str = setting("", "page and channels of each file, such as channels=0,2,1; also --channels, --page, ...")
    mean: tuple[float, ...] = setting(
        IMAGENET_MEAN, "mean of each channel, subtracted; with --init the encoder's, and the data's if not RGB"
    )
    std: tuple[float, ...] = setting(
        IMAGENET_STD, "standard deviation of each channel; with --init the encoder's, and the data's if not RGB"
    )
    augmentation: str = setting("byol", ", ".join(AUGMENTATIONS))
    crop_scale: tuple[float, ...] = setting((), "area of large crops, LEAST,MOST; empty for the augmentation's default")
    local_crops: int = setting(0, "number of small views (multi-crop)")
    local_size: int = setting(96, "side of the small views, in pixels", SIDE)
    local_scale: tuple[float, ...] = setting((0.05, 0.14), "area of the small crops, LEAST,MOST")
    batches: str = setting("batches", "class that chooses the images of each step: batches, or one of a plug-in")
    residency: Literal["auto", "device", "host"] = setting("auto", "where a pack is kept")
    # ---- optimization
    epochs: float = setting(
        1000,
        "passes over the images; 2.5 is possible; fit: as many as the time limit allows, with its rate at 0 then",
        POSITIVE,
    )
    batch_size: int = setting(4096, "images per step over all GPUs; shrinks to fit a small set")
    chunk: int = setting(0, "images per pass of views and backbone, at the cost of one more forward pass; 0: all")
    optimizer: Literal["lars", "sgd", "adamw"] = setting("lars", "lars, sgd or adamw")
    base_lr: float = setting(0.3, "learning rate at a batch of 256; scaled linearly with the batch", POSITIVE)
    weight_decay: float = setting(1e-6, "not applied to biases, norms, positions and [CLS]")
    momentum: float = setting(0.9, "momentum of lars and sgd")
    nesterov: bool = setting(False, "Nesterov's momentum for lars and sgd")
    warmup_epochs: float = setting(10.0, "linear warm-up, then cosine to 0")
    clip: float = setting(0.0, "largest norm of the gradient; 0 for no limit")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto", "auto: bf16 on devices where it is fast, fp16 with scaled gradients on other GPUs"
    )
    compile: bool = setting(False, "compile the backbone")
    compile_views: bool = setting(True, "compile the augmentation of recorded steps, on a GPU")
    graph: bool = setting(True, "record the step once and replay it, on a GPU")
    seed: int = setting(0, "seed of weights, order and augmentation")
    # ---- logging and checkpoints
    log_every: int = setting(10, "steps between log lines", POSITIVE)
    eval_images: int = setting(
        25_000, "maximum number of images of train/ and of val/ to score at a checkpoint", POSITIVE
    )
    checkpoint_every: int = setting(10, "epochs between checkpoints, with 20-NN, encoder and report", POSITIVE)
    checkpoint_minutes: float = setting(30.0, "minutes between checkpoints in addition, without scores; 0: none")
    keep_every: int = setting(0, "epochs between checkpoints that RUN/kept/epoch-N keeps, with the encoder; 0: none")
    collective_minutes: float = setting(
        10.0, "several processes: minutes after which one that hangs ends the run", POSITIVE
    )
    callbacks: tuple[str, ...] = setting((), "called at log lines and checkpoints: tensorboard, or those of a plug-in")
    name: str = dataclasses.field(default="custom", repr=False)  # name of the preset
    fixed: tuple[str, ...] = dataclasses.field(default=(), repr=False)  # names given with --set

    def __post_init__(self) -> None:
        one_of("method", self.method, METHODS, OF_PLUGIN)
        for name, registry in (("objective", "OBJECTIVES"), ("learner", "LEARNERS"), ("support_set", "SUPPORT_SETS")):
            default = getattr(type(self), name)
            if getattr(self, name) != default:  # only then torch is imported
                one_of(name, getattr(self, name), dict.fromkeys([default, *getattr(method, registry)]), OF_PLUGIN)
        one_of("augmentation", self.augmentation, AUGMENTATIONS, OF_PLUGIN)
        one_of("projection", self.projection, ("method", "none", *PROJECTIONS))
        one_of("prediction", self.prediction, ("method", "none", *PREDICTIONS))
        for name, kind in typing.get_type_hints(type(self)).items():
            if typing.get_origin(kind) is Literal:
                one_of(name, getattr(self, name), typing.get_args(kind))
        self._check_numbers()
        self._check_together()
        if self.epochs != FIT and self.epochs == int(self.epochs):
            object.__setattr__(self, "epochs", int(self.epochs))  # which reads better in every text and file

    def _check_numbers(self) -> None:
        for one in dataclasses.fields(self):
            if isinstance(value := getattr(self, one.name), int | float):
                rule, holds = one.metadata["range"]
                require(holds(value), one.name, value, rule)
        for name, value in (("crop_scale", self.crop_scale or (1, 1)), ("local_scale", self.local_scale)):
            fits = len(value) == 2 and 0 < value[0] <= value[1] <= 1
            require(fits, name, value, "must be LEAST,MOST, two shares of the area above 0 and at most 1")
        for name, least in (("mean", -1e9), ("std", 0)):
            value = getattr(self, name)
            fits = len(value) == self.in_chans and min(value) > least
            require(fits, name, value, f"must be {self.in_chans} numbers, one for each channel, with std above 0")

    def _check_together(self) -> None:
        chosen, row = len(ImageReading.parse(self.reading).channels), METHODS[self.method]
        with_teacher = [name for name, one in METHODS.items() if one.target_encoder == "teacher"]
        guided = row.target in ("neighbor", "nearest_mean")
        of_neighbors = f"needs a method whose targets are neighbors; {self.method} has none"
        rules = {  # setting -> whether it fits, and what it must be
            "reading": (
                chosen in (0, self.in_chans) or (chosen == 1 and self.in_chans == 3),
                f"must choose {self.in_chans} channels, as many as in_chans",
            ),
            "channels": (len(self.channels) in (0, 4), "must be the widths of all four stages, or empty"),
            "batch_size": (self.batch_size >= 2, "must be at least 2 for batch norm and InfoNCE"),
            "pack_size": (
                self.pack_size >= self.image_size or self.cut_from == "originals",
                f"must be at least image_size ({self.image_size}), or every view would be enlarged",
            ),
            "weight_decay": (
                self.weight_decay > 0 or self.optimizer != "lars",
                "must be above 0 with lars, which adapts only tensors with weight decay (1e-9 is enough)",
            ),
            "k": (self.k == 1 or self.pick != "soft", "must be 1 with pick=soft, which averages all rows"),
            "early_share": (
                self.early_share == 0 or self.early_size >= 8,
                "needs early_size, the side of the views in the early part of the run",
            ),
            "encoder": (
                self.encoder == "online" or row.target_encoder == "momentum",
                f"must be online: the method {self.method} has no momentum encoder",
            ),
            "teacher": (
                (self.method in with_teacher) == bool(self.teacher),
                f"must be an encoder with the methods {', '.join(with_teacher)}, and is not used with others",
            ),
            "same": (guided or not self.same, of_neighbors),
            "not_same": (guided or not self.not_same, of_neighbors),
        }
        for name, (fits, rule) in rules.items():
            value = getattr(self, name)
            require(fits, name, "none" if value == "" else value, rule)

    # ---- derived values

    @property
    def model_args(self) -> dict[str, Any]:
        """Arguments of the timm architecture, without the image size."""
        widths = {"channels": list(self.channels)} if self.channels else {}
        return widths if self.in_chans == 3 else {**widths, "in_chans": self.in_chans}

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of the exported encoder."""
        reading = ImageReading.parse(self.reading)
        transform = (self.eval_interpolation, self.eval_crop_mode, reading)
        return Preprocessing(self.eval_size, self.eval_crop, self.mean, self.std, *transform)

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
        styles = [dataclasses.replace(one, mean=self.mean, std=self.std) for one in AUGMENTATIONS[self.augmentation]]
        size, scale = self.size_at(progress), self.crop_scale
        large = [dataclasses.replace(one, size=size, scale=scale or one.scale) for one in styles]
        small = [dataclasses.replace(one, size=self.local_size, scale=self.local_scale) for one in styles]
        return large + [small[i % 2] for i in range(self.local_crops)]

    @property
    def view_sizes(self) -> tuple[int, ...]:
        """Sides of all views of a run."""
        early = (self.early_size,) if self.early_share > 0 else ()
        return (self.image_size, *early, *([self.local_size] if self.local_crops else []))

    def batch_for(self, images: int) -> int:
        """Return batch_size, or the largest power of two with at least four steps in an epoch of that many images."""
        if self.batch_size <= images // 4:
            return self.batch_size
        return 1 << max(2, images // 4).bit_length() - 1

    # ---- --set

    def steps(self, per_epoch: int) -> int:
        """Return the number of steps of a run whose epochs have `per_epoch` steps."""
        return UNPLANNED if self.epochs == FIT else max(1, round(self.epochs * per_epoch))

    @classmethod
    def settings(cls) -> list[tuple[str, Any, str]]:
        """Return (name, default, help) for every setting."""
        return [(f.name, f.default, f.metadata["help"]) for f in dataclasses.fields(cls) if "help" in f.metadata]

    def values(self) -> dict[str, Any]:
        """Return the value of every setting."""
        return {name: getattr(self, name) for name, _, _ in self.settings()}

    def with_settings(self, settings: Sequence[str] | Mapping[str, Any]) -> Self:
        """Return a copy with settings changed.

        Args:
            settings: ["epochs=50"], or {"epochs": 50}.

        Raises:
            UnknownSetting: an unknown key, with the nearest one, or an invalid value.
        """
        hints = typing.get_type_hints(type(self))
        names = [name for name, _, _ in self.settings()]
        changes = parse_settings(assignments(settings), {name: hints[name] for name in names}, dataclasses.asdict(self))
        chosen = len(ImageReading.parse(changes.get("reading", "")).channels)
        if chosen > 1:
            changes.setdefault("in_chans", chosen)
        fixed = tuple(changes)
        if changes.get("in_chans", 3) != 3:  # until the data's are known
            changes = {**dict.fromkeys(("mean", "std"), (0.5,) * changes["in_chans"]), **changes}
        return dataclasses.replace(self, **changes, fixed=tuple(dict.fromkeys([*self.fixed, *fixed])))


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A recipe as `nnclr pretrain --recipes` lists it.

    recipe: its settings.
    summary: one line.
    hardware, time, expected: what it needs and reaches; estimates are marked.
    notes: what else a user should know.
    data: the arguments of the command.
    """

    recipe: Recipe
    summary: str
    hardware: str = "one GPU."
    time: str
    expected: str
    notes: str = ""
    data: str = "--data PHOTOS --out RUN"

    def describe(self, name: str) -> str:
        """Return the text of `nnclr pretrain NAME --settings`, above the settings."""
        lines = [
            self.summary,
            "",
            f"Command:   nnclr pretrain {name} {self.data}",
            f"Hardware:  {self.hardware}",
            f"Time:      {self.time}",
            f"Expected:  {self.expected}",
        ]
        return "\n".join(lines + (["", self.notes] if self.notes else []))
