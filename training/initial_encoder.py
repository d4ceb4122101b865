"""`--init SOURCE`: start a run from an encoder instead of random weights."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from nnclr_hub.encoder.backbones import (
    backbone_from_folder,
    create_backbone,
    input_side,
    load_state,
    published_cfg,
    sized,
    timm_name,
)
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.hub.layout import HEADS, read_weights
from nnclr_hub.hub.sources import resolve
from nnclr_hub.method import PROJECTIONS, Learner
from nnclr_hub.publish.provenance import license_of

from .recipes import Recipe

BOTH = ("projection", "prediction")  # heads


@dataclass(frozen=True)
class InitialEncoder:
    """An encoder to start from.

    source: as given.
    architecture: its name in timm.
    channels: widths of a ResNet's stages; empty for timm's widths.
    folder: its model folder; None for timm's pretrained weights.
    preprocessing: of its input; the run uses its mean and std, and its number of channels unless that is set.
    seen: number of images that it has seen in training, as far as that is recorded; 0 if it is not.
    license: of the weights, if it is stated.
    """

    source: str
    architecture: str
    channels: tuple[int, ...]
    folder: Path | None
    preprocessing: Preprocessing
    seen: int = 0
    license: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a recipe that keep the size of its input and its heads."""
        size = self.preprocessing.input_size
        sizes = {"image_size": size, "eval_size": size, "eval_crop": self.preprocessing.crop_pct, "pack_size": 2 * size}
        return {**sizes, **self._heads()}

    def _heads(self) -> dict[str, Any]:
        """Return the settings of its heads; {} if it has none, or if no setting describes them."""
        if self.folder is None or not (self.folder / HEADS).is_file():
            return {}
        shapes = {name: tuple(value.shape) for name, value in read_weights(self.folder, HEADS).items()}
        linear = {
            head: [one for name, one in shapes.items() if name.startswith(head) and len(one) == 2] for head in BOTH
        }
        projection, prediction = (linear[head] for head in BOTH)
        norms = sum(name.startswith(BOTH[0]) and name.endswith("running_mean") for name in shapes)
        scales = sum(name.startswith(BOTH[0]) and name.endswith("weight") for name in shapes) - len(projection)
        last = "none" if norms < len(projection) else "affine" if scales == norms else "plain"
        known = (name for name, one in PROJECTIONS.items() if (one.layers, one.last_norm) == (len(projection), last))
        if (name := next(known, None)) is None:
            return {}
        found = {"projection": name, "projection_hidden": projection[0][0], "projection_dim": projection[-1][0]}
        if not prediction:
            return {**found, "prediction": "none"}
        return {**found, "prediction": "paper", "prediction_hidden": prediction[0][0]}


def find_initial_encoder(source: str) -> InitialEncoder:
    """Resolve a source.

    Raises:
        InvalidRequest: untrained weights, or an architecture that no recipe can describe.
        ModelError: see `hub.sources.resolve`.
    """
    if (Path(source) / "run.json").is_file() and (Path(source) / "encoder").is_dir():
        raise InvalidRequest(f"--init {source} is a run folder; use its encoder, {Path(source) / 'encoder'}.")
    found = resolve(source)
    if found.seed is not None:
        raise InvalidRequest(f"--init {source} has untrained weights; use --init none to start from random weights.")
    if found.folder is None:
        return InitialEncoder(
            source, found.architecture, (), None, Preprocessing.from_pretrained_cfg(published_cfg(found.architecture))
        )
    arguments = dict(found.config.model_args)
    arguments.pop("img_size", None)
    arguments.pop("in_chans", None)
    channels = tuple(arguments.pop("channels", ()))
    if arguments:
        raise InvalidRequest(
            f"--init {source} was built with {arguments}, which no setting of a recipe describes; use an encoder with "
            "timm's standard shape."
        )
    about, preprocessing = found.config.nnclr, Preprocessing.of_model(found.config)
    seen = about.get("images_seen") or float(about.get("epochs") or 0) * float(about.get("data_images") or 0)
    license = license_of(found.config)
    return InitialEncoder(source, found.architecture, channels, found.folder, preprocessing, round(seen), license)


def adopt(recipe: Recipe, start: InitialEncoder, console: Console) -> Recipe:
    """Return the recipe with the encoder's network, channels and transform; --set must not name a different network.

    Raises:
        InvalidRequest: --set names a different network, or channels to which the weights cannot be adapted.
    """
    theirs_in = start.preprocessing.in_chans
    transform = {
        "eval_interpolation": start.preprocessing.interpolation,
        "eval_crop_mode": start.preprocessing.crop_mode,
    }
    recipe = dataclasses.replace(recipe, **{name: one for name, one in transform.items() if name not in recipe.fixed})
    if not {"in_chans", "reading"} & set(recipe.fixed):
        recipe = dataclasses.replace(
            recipe,
            in_chans=theirs_in,
            reading=str(start.preprocessing.reading),
            mean=start.preprocessing.mean,
            std=start.preprocessing.std,
        )
    elif theirs_in not in (3, recipe.in_chans):
        raise InvalidRequest(
            f"--init {start.source} takes {theirs_in} channels, and the run has {recipe.in_chans}; weights are adapted "
            "from 3 channels only."
        )
    elif not {"mean", "std"} & set(recipe.fixed):
        adapted = start.preprocessing.with_channels(recipe.in_chans)
        recipe = dataclasses.replace(recipe, mean=adapted.mean, std=adapted.std)
    if start.preprocessing.input_size != recipe.eval_size:
        console.print(
            f"note The encoder in --init takes {start.preprocessing.input_size} pixels, and the exported one will take "
            f"{recipe.eval_size}; --set eval_size changes that.",
            highlight=False,
        )
    ours = (timm_name(recipe.backbone).partition(".")[0], recipe.channels)
    theirs = (start.architecture.partition(".")[0], start.channels)
    if ours == theirs:
        return recipe
    if {"backbone", "channels"} & set(recipe.fixed):
        shown = [f"{name} {list(widths)}" if widths else name for name, widths in (theirs, ours)]
        raise InvalidRequest(
            f"--init {start.source} is a {shown[0]}, but --set asks for a {shown[1]}. Leave backbone and channels out, "
            "or use an encoder of that architecture."
        )
    shown = [f"{name} {list(widths) or ''}".strip() for name, widths in (theirs, ours)]
    console.print(f"backbone: using {shown[0]} from --init instead of {shown[1]}", highlight=False)
    return dataclasses.replace(recipe, backbone=theirs[0], channels=start.channels)


def load_initial_encoder(learner: Learner, start: InitialEncoder, console: Console, in_chans: int = 3) -> None:
    """Load the backbone, and the heads if the folder has heads of the recipe's shapes.

    Args:
        in_chans: number of channels of the run.

    Raises:
        WeightsMismatch: the weights do not fit.
        ModelFilesMissing: timm's weights are not available.
    """
    side = input_side(learner.backbone)
    if start.folder is None:
        adapted = {"in_chans": in_chans} if in_chans != 3 else {}
        trained = create_backbone(start.architecture, model_args=adapted, image_size=side, pretrained=True)
    else:
        arguments = {"img_size": side} if side and sized(start.architecture) else {}
        if in_chans != start.preprocessing.in_chans:
            arguments["in_chans"] = in_chans  # timm repeats and scales the weights of the first convolution
        trained = backbone_from_folder(start.folder, arguments)
    load_state(learner.backbone, trained.state_dict(), start.source)
    heads = [name for name in BOTH if _load_head(getattr(learner, name), name, start)]
    if learner.momentum is not None:
        learner.momentum.reset(learner.online)
    loaded = f"and its {' and '.join(heads)} head" + ("s" if len(heads) > 1 else "") if heads else "with new heads"
    console.print(f"starting from {start.source} {loaded}", highlight=False)


def _load_head(head: nn.Module, name: str, start: InitialEncoder) -> bool:
    if start.folder is None or not (start.folder / HEADS).is_file() or not head.state_dict():
        return False
    saved = {
        key.removeprefix(f"{name}."): value
        for key, value in read_weights(start.folder, HEADS).items()
        if key.startswith(f"{name}.")
    }
    expected = head.state_dict()
    if {key: value.shape for key, value in saved.items()} != {key: value.shape for key, value in expected.items()}:
        return False
    head.load_state_dict(saved)
    return True
