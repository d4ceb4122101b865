"""`--init SOURCE`: a run that goes on from an encoder instead of from random weights."""

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
from nnclr_hub.encoder.preprocess import Preprocessing
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.hub.layout import HEADS, read_weights
from nnclr_hub.hub.sources import resolve
from nnclr_hub.method import Learner

from .recipes import Recipe


@dataclass(frozen=True)
class StartingPoint:
    """An encoder to go on from.

    source: as it was given.
    architecture: timm's name.
    channels: widths of a ResNet's stages; empty for timm's own.
    folder: its model folder; None for timm's own weights.
    preprocessing: what it wants done to images; its mean and std are taken over.
    """

    source: str
    architecture: str
    channels: tuple[int, ...]
    folder: Path | None
    preprocessing: Preprocessing


def find_start(source: str) -> StartingPoint:
    """Resolves a source.

    Raises:
        InvalidRequest: untrained weights, or an architecture that a recipe cannot describe.
        ModelError: see `hub.sources.resolve`.
    """
    if (Path(source) / "run.json").is_file() and (Path(source) / "encoder").is_dir():
        raise InvalidRequest(f"--init {source} is a run: give its encoder, {Path(source) / 'encoder'}.")
    found = resolve(source)
    if found.seed is not None:
        raise InvalidRequest(
            f"--init {source} has untrained weights: leave --init out, a recipe starts from such anyway."
        )
    if found.folder is None:
        return StartingPoint(
            source, found.architecture, (), None, Preprocessing.from_pretrained_cfg(published_cfg(found.architecture))
        )
    arguments = dict(found.config.model_args)
    arguments.pop("img_size", None)
    channels = tuple(arguments.pop("channels", ()))
    if arguments:
        raise InvalidRequest(
            f"--init {source} was built with {arguments}, which no setting of a recipe describes: go on from an "
            "encoder of timm's own shape."
        )
    preprocessing = Preprocessing.from_pretrained_cfg(found.config.pretrained_cfg)
    return StartingPoint(source, found.architecture, channels, found.folder, preprocessing)


def adopt(recipe: Recipe, start: StartingPoint, say: Console) -> Recipe:
    """The recipe with the start's colors and its network, unless --set names another, which is refused.

    Raises:
        InvalidRequest: the recipe was told to use another network.
    """
    if not {"mean", "std"} & set(recipe.fixed):
        recipe = dataclasses.replace(recipe, mean=start.preprocessing.mean, std=start.preprocessing.std)
    ours = (timm_name(recipe.backbone).partition(".")[0], recipe.channels)
    theirs = (start.architecture.partition(".")[0], start.channels)
    if ours == theirs:
        return recipe
    if {"backbone", "channels"} & set(recipe.fixed):
        shown = [f"{name} {list(widths)}" if widths else name for name, widths in (theirs, ours)]
        raise InvalidRequest(
            f"--init {start.source} is a {shown[0]}, and --set asks for a {shown[1]}: leave backbone and channels out, "
            "or go on from an encoder of that architecture."
        )
    shown = [f"{name} {list(widths) or ''}".strip() for name, widths in (theirs, ours)]
    say.print(f"backbone: {shown[0]}, as --init has it, instead of {shown[1]}", highlight=False)
    return dataclasses.replace(recipe, backbone=theirs[0], channels=start.channels)


def load_start(learner: Learner, start: StartingPoint, say: Console) -> None:
    """Loads the backbone, and the heads where the folder has some of the recipe's shapes.

    Raises:
        WeightsMismatch: the weights do not fit.
        ModelFilesMissing: timm's weights cannot be fetched.
    """
    side = input_side(learner.backbone)
    if start.folder is None:
        trained = create_backbone(start.architecture, image_size=side, pretrained=True)
    else:
        arguments = {"img_size": side} if side and sized(start.architecture) else {}
        trained = backbone_from_folder(start.folder, arguments)
    load_state(learner.backbone, trained.state_dict(), start.source)
    heads = [name for name in ("projection", "prediction") if _load_head(getattr(learner, name), name, start)]
    if learner.momentum is not None:
        learner.momentum.begin_at(learner.online)
    taken = f" and its {' and '.join(heads)} head" + ("s" if len(heads) > 1 else "") if heads else ", with fresh heads"
    say.print(f"going on from {start.source}{taken}", highlight=False)


def _load_head(head: nn.Module, name: str, start: StartingPoint) -> bool:
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


def warn_if_worse(scores: dict[str, float], at_start: dict[str, float], say: Console) -> None:
    """Says so when the encoder has become worse than the one it started from."""
    for name, value in scores.items():
        if name.startswith("knn") and value < at_start.get(name, 0.0):
            say.print(
                f"[yellow]warning[/] {name} is {value:.3f}, below the {at_start[name]:.3f} of the encoder that the run "
                "began with: lower base_lr or layer_decay, raise heads_first, or keep the encoder as it was.",
                highlight=False,
            )
