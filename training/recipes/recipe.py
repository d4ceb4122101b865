"""Recipe: every setting of a pretraining run, checked when it is made.

A recipe is a frozen dataclass whose defaults are the paper's; a family's file changes what it must.
`Recipe.with_settings(["epochs=5"])` is what `--set` does.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, Self

from nnclr_hub.errors import UnknownSetting
from nnclr_hub.method import METHODS

from ..data.augment import AUGMENTATIONS


def setting(default: Any, help: str) -> Any:
    """A field with the sentence that the command line shows for it."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The paper's settings ("Implementation details" and section 4.1)."""

    # ---- method
    method: str = setting("nnclr", "row of METHODS: " + ", ".join(METHODS))
    temperature: float = setting(0.1, "tau of the InfoNCE loss")
    transposed_term: bool = setting(False, "add the loss term whose denominator runs over the targets")
    queue_size: int = setting(98_304, "rows of the support set; shrinks to the number of pictures")
    mask_own: bool = setting(True, "a picture never gets its own older embedding as neighbour")
    warm_start: float = setting(0.0, "share of the steps in which the view itself is the positive")
    ramp: float = setting(0.0, "share of the steps over which neighbours are then phased in")
    gate: float = setting(1.0, "share of a batch, the most similar, that uses its neighbours in the end")
    # ---- network
    backbone: str = setting("resnet50", "any timm architecture")
    channels: tuple[int, ...] = setting((), "widths of a ResNet's four stages; empty for timm's own")
    projection_hidden: int = setting(2048, "width of the projection head")
    projection_dim: int = setting(256, "d, length of z and p")
    prediction: str = setting("method", "prediction head: 'method' (as the method has it), 'none' or 'paper'")
    prediction_hidden: int = setting(4096, "width of the prediction head")
    # ---- data
    image_size: int = setting(224, "side of the views, in pixels")
    pack_size: int = setting(256, "side at which decoded pictures are kept, in pixels")
    eval_size: int = setting(224, "input side of the exported encoder, in pixels")
    eval_crop: float = setting(0.875, "share of the resized short side that the exported encoder's centre crop keeps")
    augmentation: str = setting("byol", ", ".join(AUGMENTATIONS))
    # ---- optimisation
    epochs: int = setting(1000, "passes over the pictures")
    batch_size: int = setting(4096, "pictures a step; shrinks to fit a small set")
    optimizer: Literal["lars", "sgd", "adamw"] = setting("lars", "lars, sgd or adamw")
    base_lr: float = setting(0.3, "learning rate at a batch of 256; scaled linearly with the batch")
    weight_decay: float = setting(1e-6, "not applied to biases and norms")
    momentum: float = setting(0.9, "of lars and sgd")
    warmup_epochs: float = setting(10.0, "linear warm-up, then cosine to 0")
    precision: Literal["auto", "fp32", "bf16"] = setting("auto", "auto: bf16 where the device is fast at it")
    seed: int = setting(0, "of weights, order and augmentation")
    # ---- once in a while
    log_every: int = setting(10, "steps between log lines")
    checkpoint_every: int = setting(10, "epochs between checkpoints, with 20-NN, encoder and report")

    def __post_init__(self) -> None:
        _one_of("method", self.method, METHODS)
        _one_of("augmentation", self.augmentation, AUGMENTATIONS)
        _one_of("prediction", self.prediction, ("method", "none", "paper"))
        for name in ("optimizer", "precision"):
            _one_of(name, getattr(self, name), typing.get_args(typing.get_type_hints(type(self))[name]))
        sizes = ("queue_size", "projection_hidden", "projection_dim", "prediction_hidden", "log_every")
        for name in (*sizes, "epochs", "checkpoint_every", "temperature", "base_lr"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "must be above 0")
        for name in ("image_size", "pack_size", "eval_size"):
            _require(getattr(self, name) >= 8, name, getattr(self, name), "must be at least 8 pixels")
        for name in ("warm_start", "ramp", "gate"):
            _require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "must lie between 0 and 1")
        _require(0 < self.eval_crop <= 1, "eval_crop", self.eval_crop, "must be above 0 and at most 1")
        for name in ("weight_decay", "momentum", "warmup_epochs", "seed"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "must not be negative")
        _require(self.batch_size >= 2, "batch_size", self.batch_size, "must be at least 2: batch norm and InfoNCE")
        _require(
            not (self.optimizer == "lars" and self.weight_decay == 0),
            "weight_decay",
            0,
            "must be above 0 with lars, which adapts only the tensors that decay; 1e-9 is as good as none",
        )

    @property
    def model_args(self) -> dict[str, Any]:
        """Arguments of the timm architecture, beside the image size."""
        return {"channels": list(self.channels)} if self.channels else {}

    def neighbour_share(self, progress: float) -> float:
        """Share of a batch that uses its neighbours when `progress` (0 to 1) of the steps are done."""
        if progress < self.warm_start:
            return 0.0
        if progress >= self.warm_start + self.ramp:
            return self.gate
        return self.gate * (progress - self.warm_start) / self.ramp

    @classmethod
    def settings(cls) -> list[tuple[str, Any, str]]:
        """(name, default, help) of every setting."""
        return [(f.name, f.default, f.metadata["help"]) for f in dataclasses.fields(cls)]

    def with_settings(self, assignments: Sequence[str]) -> Self:
        """A copy with `key=value` assignments made.

        Raises:
            UnknownSetting: a key that is none, with the nearest one; or a value it cannot take.
        """
        hints = typing.get_type_hints(type(self))
        changes: dict[str, Any] = {}
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if key not in hints:
                close = get_close_matches(key, hints, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(hints)}."
                raise UnknownSetting(f"No setting is called {key!r}: {hint}")
            if not equals:
                raise UnknownSetting(
                    f"--set takes KEY=VALUE, for example {key}={getattr(self, key)}; got {assignment!r}."
                )
            changes[key] = _parse(key, text, hints[key])
        return dataclasses.replace(self, **changes)


def _require(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise UnknownSetting(f"{name}={value} {rule}.")


def _one_of(name: str, value: str, choices: Any) -> None:
    _require(value in choices, name, value, f"is none of {', '.join(choices)}")


def _parse(key: str, text: str, kind: Any) -> Any:
    if typing.get_origin(kind) is Literal or kind is str:
        return text
    try:
        if kind is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        if typing.get_origin(kind) is tuple:
            return tuple(int(part) for part in text.split(",") if part)
        return kind(text)
    except (ValueError, KeyError):
        name = "comma-separated whole numbers" if isinstance(kind, types.GenericAlias) else _KIND[kind]
        raise UnknownSetting(f"{key} takes {name}; got {text!r}.") from None


_KIND = {int: "a whole number", float: "a number", bool: "true or false"}
