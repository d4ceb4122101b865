"""The protocols by name, with their settings: the keyword arguments of their functions."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nnclr_hub.errors import InvalidRequest, UnknownSetting

from ..recipes.settings import as_text, one_of, parse_settings
from .classifier import ClassifierTrainer
from .features import Features
from .frozen import few_shot, knn, linear, retrieval
from .through_images import finetune, linear_images, semi_supervised

Scores = Iterator[tuple[str, float]]
ON_FEATURES: dict[str, Callable[..., Scores]] = {
    "knn": knn,
    "linear": linear,
    "few_shot": few_shot,
    "retrieval": retrieval,
    "transfer": linear,
}
THROUGH_IMAGES: dict[str, Callable[..., Scores]] = {
    "linear_images": linear_images,
    "semi_supervised": semi_supervised,
    "finetune": finetune,
}
ZERO_ALLOWED = {"seed", "workers", "lr", "weight_decay", "image_size", "drop_path", "label_smoothing"}
MIN = 1e-12
PROTOCOLS = {**ON_FEATURES, **THROUGH_IMAGES}


@dataclass(frozen=True)
class Protocol:
    """A protocol with its settings.

    name: a key of PROTOCOLS.
    settings: every keyword argument with its value.
    """

    name: str
    settings: dict[str, Any]

    @property
    def on_features(self) -> bool:
        """Whether it works on frozen features, not on images."""
        return self.name in ON_FEATURES

    def run(self, subject: Features | ClassifierTrainer) -> Scores:
        """Yield the protocol's scores."""
        return PROTOCOLS[self.name](subject, **self.settings)


def find_protocols(names: Sequence[str], assignments: Sequence[str]) -> list[Protocol]:
    """Return the named protocols, with `--set` applied.

    Args:
        assignments: KEY=VALUE; a key applies to every protocol that has it.

    Raises:
        InvalidRequest: an unknown protocol.
        UnknownSetting: a key that none of them has, or an invalid value.
    """
    if not names:
        raise InvalidRequest(f"No protocol is named; choose from {', '.join(PROTOCOLS)}.")
    for name in names:
        one_of("protocol", name, PROTOCOLS)
    everything = {key: value for name in names for key, value in settings_of(name).items()}
    for assignment in assignments:
        key = assignment.partition("=")[0]
        if key not in everything:
            parse_settings([assignment], dict.fromkeys(everything, str), everything)  # raises and suggests the nearest
    return [_configured(name, assignments) for name in dict.fromkeys(names)]


def _configured(name: str, assignments: Sequence[str]) -> Protocol:
    """Apply the assignments that concern this protocol; a key may have a different type in another protocol."""
    settings, hints = settings_of(name), typing.get_type_hints(PROTOCOLS[name])
    relevant = [one for one in assignments if one.partition("=")[0] in settings]
    changed = parse_settings(relevant, {key: hints[key] for key in settings}, settings)
    for key, value in changed.items():
        if typing.get_origin(hints[key]) is typing.Literal:
            one_of(key, value, typing.get_args(hints[key]))
        for one in value if isinstance(value, tuple) else (value,):
            _check_range(key, one)
    return Protocol(name, {**settings, **changed})


def _check_range(key: str, value: object) -> None:
    if not isinstance(value, int | float):
        return
    least = 0 if key in ZERO_ALLOWED else MIN
    if not least <= value < float("inf"):
        raise UnknownSetting(f"{key} must be {'0 or more' if least == 0 else 'above 0'}; got {as_text(value)}.")
    if key == "image_size" and value and not 8 <= value <= 2048:
        raise UnknownSetting(f"image_size must be 0 (the encoder's size) or 8 to 2048 pixels; got {value}.")
    if key == "seed" and value >= 2**31:
        raise UnknownSetting(f"seed must be below {2**31}; got {value}.")


def settings_of(name: str) -> dict[str, Any]:
    """Return the protocol's settings with their defaults."""
    parameters = inspect.signature(PROTOCOLS[name]).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}
