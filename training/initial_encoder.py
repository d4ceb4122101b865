"""`--init SOURCE`: start a run from an encoder instead of random weights."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

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
from nnclr_hub.method import Learner

from .recipes import Recipe


@dataclass(frozen=True)
class InitialEncoder:
    """An encoder to start from.

    source: as given.
    architecture: its name in timm.
    channels: widths of a ResNet's stages; empty for timm's widths.
    folder: its model folder; None for timm's pretrained weights.
    preprocessing: of its input; the run uses its mean and std, and its number of channels unless that is set.
    """

    source: str
    architecture: str
    channels: tuple[int, ...]
    folder: Path | None
    preprocessing: Preprocessing


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
        raise InvalidRequest(f"--init {source} has untrained weights; leave --init out to start from random weights.")
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
    preprocessing = Preprocessing.of_model(found.config)
    return InitialEncoder(source, found.architecture, channels, found.folder, preprocessing)


def adopt(recipe: Recipe, start: InitialEncoder, console: Console) -> Recipe:
    """Return the recipe with the encoder's network, channels, mean and std; --set must not name a different network.

    Raises:
        InvalidRequest: --set names a different network, or channels to which the weights cannot be adapted.
    """
    theirs_in = start.preprocessing.in_chans
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
    heads = [name for name in ("projection", "prediction") if _load_head(getattr(learner, name), name, start)]
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
    own = head.state_dict()
    if {key: value.shape for key, value in saved.items()} != {key: value.shape for key, value in own.items()}:
        return False
    head.load_state_dict(saved)
    return True


def warn_if_worse(scores: dict[str, float], at_start: dict[str, float], console: Console) -> None:
    """Warn if the encoder scores lower than the one it started from."""
    for name, value in scores.items():
        if name.startswith("knn") and value < at_start.get(name, 0.0):
            console.print(
                f"[yellow]warning[/] {name} is {value:.3f}, below the {at_start[name]:.3f} of the initial encoder. "
                "Lower base_lr or layer_decay, raise heads_first, or keep the initial encoder.",
                highlight=False,
            )
