"""Prepare the images of a run, and the recipe with sizes that fit them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from nnclr_hub.progress import bar

from .assemble import check_network, fit_to_data, resolve_precision
from .data.batches import Batches
from .data.datasets import ImageFiles, training_files, typical_side
from .data.image_pack import ImagePack, build_pack
from .data.named_sets import find_data
from .distributed import Ranks
from .initial_encoder import InitialEncoder, adopt
from .recipes import Recipe
from .recipes.auto import Auto


@dataclass(frozen=True)
class Prepared:
    """Result of `prepare`.

    recipe: complete, with sizes that fit the data and a precision that fits the device.
    folders: the data.
    files: the images to learn from, without unreadable ones.
    batches: of these images.
    """

    recipe: Recipe
    folders: list[Path]
    files: ImageFiles
    batches: Batches


def prepare(
    recipe: Recipe, data: Sequence[str | Path], start: InitialEncoder | None, ranks: Ranks, console: Console
) -> Prepared:
    """Find the images, complete the recipe, and decode the images.

    Args:
        data: folders, or names of data sets.
        start: encoder to start from, if any.
        ranks: this process and the run's other processes.

    Raises:
        NoImages, NoRoom, InvalidRequest, UnknownModel.
    """
    where = ranks.where
    _set_up_device(where)
    if ranks.first_here:
        find_data(data, console)  # downloads named sets, once on each machine
    ranks.wait()
    folders = find_data(data, console)
    files = training_files(folders)
    recipe = _complete(recipe, files, start, where, console)  # before decoding, which may take hours
    pack = _decode(files, recipe, console)
    files = files.keep(pack.kept)
    recipe = fit_to_data(recipe, len(pack), files.labels, ranks.world, console)
    batches = Batches(
        pack,
        files.labels,
        files.origin,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        where=where,
        one_folder=recipe.one_folder,
        residency=recipe.residency,
        rank=ranks.rank,
        world=ranks.world,
    )
    return Prepared(resolve_precision(recipe, where, console), folders, files, batches)


def _set_up_device(where: torch.device) -> None:
    if where.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32, mainly the lookup
        torch.backends.cudnn.benchmark = True


def _complete(
    recipe: Recipe, files: ImageFiles, start: InitialEncoder | None, where: torch.device, console: Console
) -> Recipe:
    """Return the recipe for these images, this initial encoder and this device, and print what `auto` chose."""
    is_auto = isinstance(recipe, Auto)
    recipe = recipe.for_data(len(files.paths), typical_side(files.paths), where.type == "cuda")
    if start:
        recipe = adopt(recipe, start, console)
    if is_auto:
        console.print(
            f"auto: {recipe.method}, {recipe.backbone} at {recipe.image_size} pixels, batch {recipe.batch_size}, "
            f"{recipe.epochs} epochs",
            highlight=False,
        )
    check_network(recipe)
    return recipe


def _decode(files: ImageFiles, recipe: Recipe, console: Console) -> ImagePack:
    """Decode the images and list those that cannot be read."""
    with bar(console, "decoding") as advance:
        pack = build_pack(files.paths, recipe.pack_size, progress=advance)
    for path, reason in pack.broken:
        console.print(f"[yellow]skipped[/] {path}: {reason}", highlight=False)
    return pack
