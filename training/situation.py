"""What `auto` looks at: number and size of the images, colors and shapes of labels, the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from nnclr_hub.cores import usable_cores
from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.features import extract_features
from nnclr_hub.encoder.hand_crafted import FLOORS
from nnclr_hub.encoder.preprocessing import unit_rows
from nnclr_hub.hub.registry import MODELS, default_model
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.probe.cross_validation import FOLDS, out_of_fold
from nnclr_hub.probe.uncertainty import paired_difference
from nnclr_hub.progress import bar

from .cpu import choose_precision
from .data.image_index import ImageIndex, sampled_sizes, typical_side
from .evals.task import Part
from .network import InitialEncoder, find_initial_encoder
from .recipes import Recipe
from .recipes.auto import FREE_STARTER, SOME, TINY, Auto, Cues, Situation, Start
from .recipes.small import SMALL_CPU

LABELED = 1000  # most labeled images that are classified by color and by shape, in a few seconds


def chosen_by_auto(
    recipe: Recipe,
    files: ImageIndex,
    where: torch.device,
    minutes: float | None,
    console: Console,
    labeled: Part | None = None,
    start: InitialEncoder | None = None,
    *,
    choose_start: bool = False,
) -> tuple[Recipe, InitialEncoder | None]:
    """Return what `auto` chooses for these images, and print why; other recipes stay as they are.

    Args:
        labeled: images with labels, without those that score the run.
        start: the encoder to start from, if one is given.
        choose_start: start from the free starter where that makes sense.
    """
    if not isinstance(recipe, Auto):
        return recipe, start
    reading = recipe.preprocessing.reading
    on_gpu = where.type == "cuda"
    undecided = "augmentation" not in recipe.fixed and recipe.in_chans == 3
    side = typical_side(sampled_sizes(files, reading))
    origin = "starts from random weights"
    if choose_start:
        start, origin = _starter_for(recipe, len(files), side, on_gpu)
    elif start is not None:
        license = start.license or "license not stated"
        origin = f"starts from {start.source} ({license}, which limits the license of the result)"
    now = Situation(
        len(files),
        side,
        on_gpu,
        minutes,
        usable_cores(),
        measure_cues(labeled, console, reading) if labeled and undecided else None,
        choose_precision(recipe.precision, where) == "bf16",
        None if start is None else Start(start.source, start.settings, relative_cost(start)),
    )
    chosen, why = recipe.choose(now)
    backbone = chosen.backbone if start is None else start.architecture
    network = f"{chosen.method}, {backbone} at {chosen.image_size} pixels"
    network += f", batch {chosen.batch_size}, epochs {chosen.epochs:.4g}"
    replaced = why[: int(chosen.method != recipe.method)]  # the sentence about the method comes first
    for sentence in (*replaced, network, f"{origin}.", *why[len(replaced) :]):
        console.print(f"auto: {sentence}")
    return chosen, start


def _starter_for(recipe: Recipe, images: int, side: int, on_gpu: bool) -> tuple[InitialEncoder | None, str]:
    """Return the encoder that `auto` starts from by default, and words that say why."""
    free, best = MODELS[FREE_STARTER], MODELS[default_model()]
    instead = "starts from random weights, because"
    if recipe.in_chans != 3:
        return None, f"{instead} starters take 3 channels, and the run has {recipe.in_chans}"
    if {"backbone", "channels"} & set(recipe.fixed):
        return None, f"{instead} --set names the network"
    if on_gpu and (side <= TINY or images >= SOME):
        return None, f"{instead} {images:,} images of {side} pixels are enough for a larger network on a GPU"
    if not free.available:
        return None, f"{instead} {free.name} is not installed"
    return find_initial_encoder(free.name), (
        f"starts from {free.name} ({free.license}, which limits the license of the result). --init none starts from "
        f"random weights; --init {best.name} is stronger, and its terms hold for the result: {best.license}"
    )


def relative_cost(start: InitialEncoder) -> float:
    """Return the cost of a training image of an encoder, relative to that of `small_cpu` at 48 pixels."""
    arguments = {"channels": list(start.channels)} if start.channels else {}
    cost = operations(start.architecture, arguments, start.preprocessing.input_size)
    return cost / operations("resnet18", {"channels": list(SMALL_CPU.channels)}, SMALL_CPU.image_size)


def operations(architecture: str, arguments: dict[str, Any], side: int) -> int:
    """Return the number of operations of a forward pass."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
        create_backbone(architecture, model_args=arguments, image_size=side).eval()(torch.zeros(1, 3, side, side))
    return counter.get_total_flops()


def measure_cues(labeled: Part, console: Console, reading: ImageReading = PLAIN) -> Cues | None:
    """Classify some images by the nearest of the others, by `shape` alone and by `color` alone.

    Args:
        labeled: not the images that score the run.

    Returns:
        None with fewer than two classes, or fewer images than folds of the cross-validation.
    """
    known = np.flatnonzero(labeled.labels >= 0)
    sample = labeled.keep(np.sort(np.random.default_rng(0).permutation(known)[:LABELED]))
    if len(np.unique(sample.labels)) < 2:
        return None
    found = []
    for name in ("color", "shape"):
        with bar(console, f"labels by {name}") as advance:
            source = replace(FLOORS[name], reading=reading)
            found.append(extract_features(source, sample.paths, progress=advance))
    readable = np.array([i for i in range(len(sample.paths)) if not any(i in one.broken for one in found)], np.int64)
    labels = sample.labels[readable]
    if len(labels) < FOLDS or len(np.unique(labels)) < 2:
        return None
    color, shape = (
        out_of_fold(unit_rows(np.asarray(one.raw)[readable]), labels, classifier="knn").right for one in found
    )
    return Cues(float(color.mean()), float(shape.mean()), paired_difference(color, shape).low > 0)
