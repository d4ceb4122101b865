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

from nnclr_hub.cores import usable_cores
from nnclr_hub.progress import bar

from .assemble import check_network, choose_precision, fit_to_data, require_images, resolve_precision
from .cpu import keep_freed_memory, use_few_threads
from .cues import measure_cues
from .data.batches import Batches, PixelSource, channel_statistics
from .data.crop_boxes import enlarged_share
from .data.datasets import ImageFiles, sampled_sizes, training_files, typical_side
from .data.detail import kept_contrast
from .data.folder_views import FolderViews
from .data.image_index import ImageIndex
from .data.image_pack import ImagePack, PackedPixels, build_pack, pack_bytes, stored_sizes
from .data.named_sets import find_data
from .data.order import WINDOW_BYTES, Order
from .data.originals import Originals, steps_ahead
from .distributed import Ranks
from .initial_encoder import InitialEncoder, adopt
from .recipes import Recipe
from .recipes.auto import Auto, Situation
from .recipes.settings import FIT
from .resume import choices_of, sizes_of

MOST_PACKED = 20_000_000_000  # bytes of a pack that cut_from=auto makes
ENLARGED = 0.3  # share of enlarged views that calls for a warning; in the paper's experiments it is about 0.28
TYPICAL_BYTES = 110_000  # of an image of ImageNet, where sizes are unknown


@dataclass(frozen=True)
class Prepared:
    """Result of `prepare`.

    recipe: complete, with sizes that fit the data and a precision that fits the device.
    folders: the data.
    files: the images to learn from, without unreadable ones.
    batches: of these images.
    """

    recipe: Recipe
    folders: list[Path | str]
    files: ImageIndex
    batches: Batches


def prepare(
    recipe: Recipe,
    data: Sequence[str | Path],
    start: InitialEncoder | None,
    saved: Mapping[str, Any] | None,
    ranks: Ranks,
    console: Console,
    minutes: float | None = None,
    labeled: ImageFiles | None = None,
) -> Prepared:
    """Find the images, complete the recipe, and decode the images.

    Args:
        data: folders, or names of data sets.
        start: encoder to start from, if any.
        saved: checkpoint that the run resumes from, if any.
        ranks: this process and the run's other processes.
        minutes: time limit of the run; `auto` on a CPU chooses what fits into it.
        labeled: images with labels that the user gave, without those that score the run; for `auto`.

    Raises:
        NoImages, NoRoom, InvalidRequest, UnknownModel.
    """
    where = ranks.where
    _set_up_device(where)
    folders, folder_views, files = _find_images(data, recipe, ranks, console)
    sizes = sampled_sizes(files, recipe.preprocessing.reading)
    # a resumed run keeps its choices
    output, labeled = (console, labeled) if saved is None else (Console(quiet=True), None)
    # before decoding, which may take hours; once, since cores and readable images may differ between machines
    asked = recipe
    recipe = ranks.of_first(lambda: chosen_by_auto(asked, files, where, minutes, output, labeled))
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
    return Prepared(recipe, folders, files, batches)


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
                f"[yellow]warning[/] {share:.0%} of the large views are enlarged, since copies of {recipe.pack_size} "
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
) -> Recipe:
    """Return what `auto` chooses for these images, and print why; other recipes stay as they are.

    Args:
        labeled: images with labels that the user gave, without those that score the run.
    """
    if not isinstance(recipe, Auto):
        return recipe
    reading = recipe.preprocessing.reading
    on_gpu = where.type == "cuda"
    undecided = "augmentation" not in recipe.fixed and recipe.in_chans == 3
    now = Situation(
        len(files),
        typical_side(sampled_sizes(files, reading)),
        on_gpu,
        minutes,
        usable_cores(),
        {} if on_gpu or "image_size" in recipe.fixed else kept_contrast(files, reading, recipe.in_chans),
        measure_cues(labeled, console, reading) if labeled and undecided else None,
        choose_precision(recipe.precision, where) == "bf16",
    )
    chosen, why = recipe.choose(now)
    network = f"{chosen.method}, {chosen.backbone} at {chosen.image_size} pixels"
    console.print(f"auto: {network}, batch {chosen.batch_size}, {chosen.epochs:g} epochs", highlight=False)
    for sentence in why:
        console.print(f"auto: {sentence}", highlight=False)
    return chosen


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
        console.print(f"[yellow]skipped[/] {path}: {reason}", highlight=False)
    return pack
