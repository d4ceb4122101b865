"""What a run works on, made ready: the device, the pictures, and the recipe with sizes that fit them."""

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
from .data.image_pack import build_pack
from .data.named import find_data
from .distributed import Ranks
from .recipes import Recipe
from .starting_point import StartingPoint, adopt


@dataclass(frozen=True)
class Prepared:
    """What `prepare` made ready.

    recipe: decided, with sizes that fit the data and a precision that fits the device.
    folders: the data.
    files: the pictures to learn from, without the broken ones.
    batches: of them.
    """

    recipe: Recipe
    folders: list[Path]
    files: ImageFiles
    batches: Batches


def prepare(
    recipe: Recipe, data: Sequence[str | Path], start: StartingPoint | None, ranks: Ranks, say: Console
) -> Prepared:
    """Finds the pictures, settles the recipe and decodes.

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
    if where.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32, the look-up above all
        torch.backends.cudnn.benchmark = True
    if ranks.first_here:
        find_data(data, say)  # fetches what has a name, once on each machine
    ranks.wait()
    folders = find_data(data, say)
    files = training_files(folders)
    given = recipe
    recipe = decided = recipe.for_data(len(files.paths), typical_side(files.paths), where.type == "cuda")
    recipe = adopt(recipe, start, say) if start else recipe
    check_network(recipe)  # before the pictures are decoded, which may take hours
    with bar(say, "decoding") as advance:
        pack = build_pack(files.paths, recipe.pack_size, progress=advance)
    files = files.keep(pack.kept)
    for path, reason in pack.broken:
        say.print(f"[yellow]skipped[/] {path}: {reason}", highlight=False)
    recipe = fit_to_data(recipe, len(pack), files.labels, ranks.world, say)
    if decided is not given:
        _tell(recipe, say)
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


def _tell(recipe: Recipe, say: Console) -> None:
    """What `auto` has made of the pictures and the device, once it is what will be used."""
    say.print(
        f"auto: {recipe.method}, {recipe.backbone} at {recipe.image_size} pixels, batch {recipe.batch_size}, "
        f"{recipe.epochs} epochs",
        highlight=False,
    )
