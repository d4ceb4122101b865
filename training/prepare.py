"""Prepare the images of a run, and the recipe with sizes that fit them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from nnclr_hub.cores import usable_cores
from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.hub.registry import MODELS, default_model
from nnclr_hub.progress import bar

from .assemble import check_network, choose_precision, fit_to_data, require_images, resolve_precision
from .cpu import keep_freed_memory, use_few_threads
from .cues import measure_cues
from .data.batches import Batches, PixelSource, channel_statistics
from .data.crop_boxes import enlarged_share
from .data.datasets import (
    EvaluationSet,
    ImageFiles,
    evaluation_sets,
    join_parts,
    sampled_sizes,
    training_files,
    typical_side,
)
from .data.detail import kept_contrast
from .data.folder_views import FolderViews
from .data.image_index import ImageIndex
from .data.image_pack import ImagePack, PackedPixels, build_pack, pack_bytes, stored_sizes
from .data.named_sets import find_data
from .data.order import WINDOW_BYTES, Order
from .data.originals import Originals, steps_ahead
from .distributed import Ranks
from .initial_encoder import InitialEncoder, adopt, find_initial_encoder
from .recipes import Recipe
from .recipes.auto import FREE_STARTER, SOME, TINY, Auto, Situation, Start
from .recipes.settings import FIT
from .recipes.small import SMALL_CPU
from .resume import choices_of, sizes_of

MOST_PACKED = 20_000_000_000  # bytes of a pack that cut_from=auto makes
ENLARGED = 0.3  # share of enlarged views that calls for a warning; in the paper's experiments it is about 0.28
TYPICAL_BYTES = 110_000  # of an image of ImageNet, where sizes are unknown


@dataclass(frozen=True)
class Prepared:
    """Result of `prepare`.

    recipe: complete, with sizes that fit the data and a precision that fits the device.
    folders: the data.
    sets: labeled sets that score the run.
    files: the images to learn from, without unreadable ones.
    batches: of these images.
    start: the encoder to start from, if any.
    """

    recipe: Recipe
    folders: list[Path | str]
    sets: list[EvaluationSet]
    files: ImageIndex
    batches: Batches
    start: InitialEncoder | None


def prepare(
    recipe: Recipe,
    data: Sequence[str | Path],
    start: InitialEncoder | None,
    saved: Mapping[str, Any] | None,
    ranks: Ranks,
    console: Console,
    minutes: float | None = None,
    table: EvaluationSet | None = None,
    *,
    choose_start: bool = False,
) -> Prepared:
    """Find the images, complete the recipe, and decode the images.

    Args:
        data: folders, or names of data sets.
        start: encoder to start from, if one is given.
        saved: checkpoint that the run resumes from, if any.
        ranks: this process and the run's other processes.
        minutes: time limit of the run; `auto` on a CPU chooses what fits into it.
        table: a labeled set that scores the run, too.
        choose_start: let `auto` choose the encoder to start from.

    Raises:
        NoImages, NoRoom, InvalidRequest, UnknownModel.
    """
    where = ranks.where
    _set_up_device(where)
    folders, folder_views, files = _find_images(data, recipe, ranks, console)
    sizes = sampled_sizes(files, recipe.preprocessing.reading)
    # a resumed run keeps its choices
    output, sets = console if saved is None else Console(quiet=True), evaluation_sets(folders, table)
    labeled = join_parts([one.train for one in sets]) if saved is None and sets else None
    # before decoding, which may take hours; once, since cores and readable images may differ between machines
    asked, given = recipe, start
    recipe, start = ranks.of_first(
        lambda: chosen_by_auto(asked, files, where, minutes, output, labeled, given, choose_start=choose_start)
    )
    if start:
        recipe = adopt(recipe, start, console)
    check_network(recipe)
    if saved is not None and recipe.name == "auto":
        recipe = choices_of(saved, recipe)
    recipe = _choose_pixels(recipe, files, sizes, saved, console)
    pack: ImagePack | None = None
    if recipe.cut_from == "pack":
        pack = _decode(files, recipe, console)
        files = files.keep(pack.kept)
    changed = saved is not None and saved["files"] != files.digest
    # sizes that are not used are not printed
    fitted = fit_to_data(recipe, len(files), files.labels, ranks.world, Console(quiet=True) if changed else console)
    recipe = sizes_of(saved, recipe, fitted, len(files)) if changed and saved is not None else fitted
    order = _order(files, recipe)
    if pack is not None:
        pixels: PixelSource = PackedPixels(pack, where, recipe.residency)
    else:
        pixels = _originals(files, recipe, order, ranks)
    if start is None:
        recipe = _normalize_channels(recipe, pixels, saved)
    recipe = resolve_precision(recipe, where, console)
    if recipe.epochs == FIT:
        planned = saved["settings"]["epochs"] if saved is not None else recipe.steps(1) / order.steps_per_epoch
        recipe = dataclasses.replace(recipe, epochs=planned)
    batches = Batches(
        pixels,
        files.labels,
        order,
        views=lambda step: recipe.views_at(step / batches.steps),
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        where=where,
        folder_numbers=folder_views.of_images(files.folders) if folder_views else None,
        rank=ranks.rank,
        world=ranks.world,
    )
    batches.steps = recipe.steps(order.steps_per_epoch)
    return Prepared(recipe, folders, sets, files, batches, start)


def _find_images(
    data: Sequence[str | Path], recipe: Recipe, ranks: Ranks, console: Console
) -> tuple[list[Path | str], FolderViews, ImageIndex]:
    """Return the folders, what the recipe sets for some of them, and their images.

    The first process of each machine downloads named sets and lists the images; the others read what it wrote.

    Raises:
        NoImages: there are too few. Unreadable ones are counted after decoding.
    """
    if ranks.first_here:
        find_data(data, console)
    ranks.wait()
    folders = find_data(data, console)
    folder_views = FolderViews(folders, recipe.keep_color_of, recipe.least_crop_of)  # a wrong name, before the listing
    if ranks.first_here:
        training_files(folders)
    ranks.wait()
    files = training_files(folders, listed=True)
    require_images(len(files), ranks.world)
    return folders, folder_views, files


def _originals(files: ImageIndex, recipe: Recipe, order: Order, ranks: Ranks) -> Originals:
    """Start the processes that decode the original images of this rank."""
    pixels_of_image = sum(view.size**2 for view in recipe.views_at(1.0)) * recipe.in_chans
    return Originals(
        files,
        workers=recipe.workers or max(1, usable_cores() // ranks.world_here),
        replacement=order.replacement,
        reading=recipe.preprocessing.reading,
        channels=recipe.in_chans,
        where=ranks.where,
        ahead=steps_ahead(recipe.batch_size // ranks.world * pixels_of_image),
    )


def _normalize_channels(recipe: Recipe, pixels: PixelSource, saved: Mapping[str, Any] | None) -> Recipe:
    """Measure the mean and std of the images, unless they are RGB or the recipe sets them.

    A resumed run keeps those of its checkpoint, because the images may have changed.
    """
    if recipe.in_chans == 3 or {"mean", "std"} & set(recipe.fixed):
        return recipe
    if saved is not None and len(saved["settings"]["mean"]) == recipe.in_chans:
        mean, std = (tuple(saved["settings"][name]) for name in ("mean", "std"))
    else:
        mean, std = channel_statistics(pixels)
    return dataclasses.replace(recipe, mean=mean, std=std)


def _choose_pixels(
    recipe: Recipe, files: ImageIndex, sizes: np.ndarray, saved: Mapping[str, Any] | None, console: Console
) -> Recipe:
    """Resolve cut_from, and print the share of enlarged views if a pack raises it."""
    if recipe.cut_from == "auto":
        before = saved["settings"]["cut_from"] if saved is not None else None
        small = pack_bytes(len(files), recipe.pack_size, recipe.in_chans) <= MOST_PACKED
        recipe = dataclasses.replace(recipe, cut_from=before or ("pack" if small else "originals"))
    if recipe.cut_from == "pack" and len(sizes):
        share, least = enlarged_shares(recipe, sizes)
        if share > max(ENLARGED, least + 0.05):
            console.print(
                f"warning: {share:.0%} of the large views are enlarged, since copies of {recipe.pack_size} "
                f"pixels are smaller than their crops; {least:.0%} would be with --set cut_from=originals. A larger "
                "pack_size helps, too.",
                highlight=False,
            )
    return recipe


def enlarged_shares(recipe: Recipe, sizes: np.ndarray) -> tuple[float, float]:
    """Return the shares of large views that are enlarged: cut from a pack, and from the originals.

    Args:
        sizes: (n, 2) height and width of some of the images.
    """
    scale = recipe.views_at(1.0)[0].scale
    stored = stored_sizes(sizes, recipe.pack_size)
    one, other = (enlarged_share(sizes, copies, recipe.image_size, scale) for copies in (stored, sizes))
    return one, other


def _order(files: ImageIndex, recipe: Recipe) -> Order:
    """Return the order of the images; those of archives are shuffled within windows of bounded size."""
    blocks, window = None, 0
    if recipe.cut_from == "originals":
        blocks = files.blocks
        window = WINDOW_BYTES // max(1, files.bytes // len(files) or TYPICAL_BYTES)
    return Order(files.folders, recipe.batch_size, recipe.seed, recipe.one_folder, blocks, window)


def _set_up_device(where: torch.device) -> None:
    if where.type == "cpu":
        keep_freed_memory()
    if where.type == "cuda":
        use_few_threads()
        torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32, mainly the lookup
        torch.backends.cudnn.benchmark = True


def chosen_by_auto(
    recipe: Recipe,
    files: ImageIndex,
    where: torch.device,
    minutes: float | None,
    console: Console,
    labeled: ImageFiles | None = None,
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
    by_size = on_gpu or start is not None or "image_size" in recipe.fixed
    now = Situation(
        len(files),
        side,
        on_gpu,
        minutes,
        usable_cores(),
        {} if by_size else kept_contrast(files, reading, recipe.in_chans),
        measure_cues(labeled, console, reading) if labeled and undecided else None,
        choose_precision(recipe.precision, where) == "bf16",
        None if start is None else Start(start.source, start.settings, relative_cost(start), start.seen),
    )
    chosen, why = recipe.choose(now)
    backbone = chosen.backbone if start is None else start.architecture
    network = f"{chosen.method}, {backbone} at {chosen.image_size} pixels"
    network += f", batch {chosen.batch_size}, {chosen.epochs:.4g} epochs"
    replaced = why[: int(chosen.method != recipe.method)]  # the sentence about the method comes first
    for sentence in (*replaced, network, f"{origin}.", *why[len(replaced) :]):
        console.print(f"auto: {sentence}", highlight=False)
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
    start_network = (start.architecture, {"channels": list(start.channels)} if start.channels else {})
    base = ("resnet18", {"channels": list(SMALL_CPU.channels)})
    sides = (start.preprocessing.input_size, SMALL_CPU.image_size)
    cost, base_cost = (_operations(*network, side) for network, side in zip((start_network, base), sides, strict=True))
    return cost / base_cost


def _operations(architecture: str, arguments: dict[str, Any], side: int) -> int:
    """Return the number of operations of a forward pass."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
        create_backbone(architecture, model_args=arguments, image_size=side).eval()(torch.zeros(1, 3, side, side))
    return counter.get_total_flops()


def _decode(files: ImageIndex, recipe: Recipe, console: Console) -> ImagePack:
    """Decode the images and list those that cannot be read."""
    with bar(console, "decoding") as advance:
        pack = build_pack(
            files,
            recipe.pack_size,
            reading=recipe.preprocessing.reading,
            channels=recipe.in_chans,
            name_of=files.name,
            progress=advance,
        )
    for path, reason in pack.broken:
        console.print(f"skipped {path}: {reason}", highlight=False)
    return pack
