"""What a run works on, made ready: the device, the images, and the recipe with sizes that fit them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from nnclr_hub.progress import bar

from .assemble import check_network, fit_to_data, settle_precision
from .data.batches import Batches
from .data.datasets import ImageFiles, training_files, typical_side
from .data.image_pack import ImagePack, build_pack
from .data.named import find_data
from .distributed import Ranks
from .recipes import Recipe
from .recipes.auto import Auto
from .starting_point import StartingPoint, adopt


@dataclass(frozen=True)
class Prepared:
    """What `prepare` made ready.

    recipe: decided, with sizes that fit the data and a precision that fits the device.
    folders: the data.
    files: the images to learn from, without the broken ones.
    batches: of them.
    """

    recipe: Recipe
    folders: list[Path]
    files: ImageFiles
    batches: Batches


def prepare(
    recipe: Recipe, data: Sequence[str | Path], start: StartingPoint | None, ranks: Ranks, say: Console
) -> Prepared:
    """Finds the images, settles the recipe and decodes.

    Args:
        recipe: as it was asked for.
        data: folders, or names of data sets.
        start: the encoder to go on from, if any.
        ranks: this process among those of the run.
        say: where the program talks.

    Raises:
        NoImages, NoRoom, InvalidRequest, UnknownModel.
    """
    where = ranks.where
    _set_up(where)
    if ranks.first_here:
        find_data(data, say)  # fetches what has a name, once on each machine
    ranks.wait()
    folders = find_data(data, say)
    files = training_files(folders)
    recipe = _decide(recipe, files, start, where, say)  # before the images are decoded, which may take hours
    pack = _decode(files, recipe, say)
    files = files.keep(pack.kept)
    recipe = fit_to_data(recipe, len(pack), files.labels, ranks.world, say)
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
    return Prepared(settle_precision(recipe, where, say), folders, files, batches)


def _set_up(where: torch.device) -> None:
    if where.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32, the look-up above all
        torch.backends.cudnn.benchmark = True


def _decide(
    recipe: Recipe, files: ImageFiles, start: StartingPoint | None, where: torch.device, say: Console
) -> Recipe:
    """The recipe for these images, this start and this device; what `auto` has chosen is told.

    Raises:
        InvalidRequest, UnknownModel: no such network can be built.
    """
    by_itself = isinstance(recipe, Auto)
    recipe = recipe.for_data(len(files.paths), typical_side(files.paths), where.type == "cuda")
    if start:
        recipe = adopt(recipe, start, say)
    if by_itself:
        say.print(
            f"auto: {recipe.method}, {recipe.backbone} at {recipe.image_size} pixels, batch {recipe.batch_size}, "
            f"{recipe.epochs} epochs",
            highlight=False,
        )
    check_network(recipe)
    return recipe


def _decode(files: ImageFiles, recipe: Recipe, say: Console) -> ImagePack:
    """The images that can be read; the others are named."""
    with bar(say, "decoding") as advance:
        pack = build_pack(files.paths, recipe.pack_size, progress=advance)
    for path, reason in pack.broken:
        say.print(f"[yellow]skipped[/] {path}: {reason}", highlight=False)
    return pack
