"""Setup: the recipe of a run with sizes that fit the data and the device, and its images.

setup = Setup.of(recipe, ["photos"], ranks, console)
setup.recipe, setup.batches
"""

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
from nnclr_hub.encoder.features import FeatureSource, extract_features
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.encoder.preprocessing import unit_rows
from nnclr_hub.errors import InvalidRequest, NoImages
from nnclr_hub.method import METHODS
from nnclr_hub.plural import counted
from nnclr_hub.progress import bar
from nnclr_hub.table_rows import LabelTable

from .cpu import choose_precision, keep_freed_memory, use_few_threads
from .data.batches import BATCHES, Batches, Order, PixelSource, channel_statistics
from .data.cutting import enlarged_share
from .data.image_index import NO_LABEL, ImageIndex, metadata_numbers, sampled_sizes, training_files
from .data.image_pack import ImagePack, PackedPixels, build_pack, pack_bytes, stored_sizes
from .data.named_sets import find_data
from .data.originals import WINDOW_BYTES, Originals, steps_ahead
from .distributed import Ranks
from .evals.task import Task, evaluation_sets, join_parts
from .network import InitialEncoder, Tables, adopt, check_network
from .recipes import Recipe
from .recipes.recipe import FIT, OF_PLUGIN, one_of
from .situation import chosen_by_auto

# what is exported: the input and the network
EVALUATED = ("eval_size", "eval_crop", "eval_interpolation", "eval_crop_mode", "encoder")
# settings that may change between the parts of one run. The weights do not depend on them, except for rounding, and
# except for epochs, and chunk, which sets the images that one batch norm sees
FREE = (
    *EVALUATED,
    *("epochs", "eval_images", "log_every", "checkpoint_every", "checkpoint_minutes"),
    *("keep_every", "collective_minutes", "callbacks", "residency", "workers", "compile"),
    *("compile_views", "graph", "chunk", "fixed", "name"),
)
FITTED = ("batch_size", "queue_size", "k", "warmup_epochs")  # they depend on the number of images at the run's start
SHORTENED = 10  # a warm-up of all epochs is replaced by one of a tenth of them; it changes with the epochs
MOST_PACKED = 20_000_000_000  # bytes of a pack that cut_from=auto makes
ENLARGED = 0.3  # share of enlarged views that calls for a warning; in the paper's experiments it is about 0.28
TYPICAL_BYTES = 110_000  # bytes of an image of ImageNet, where sizes are unknown
LEAST_OF_GROUP = 16  # images of each group in a batch: they are the only negatives of each other
LEAST_IN_BF16 = 16  # pixels of a view; see `resolve_precision`


@dataclass(frozen=True)
class Setup:
    """What a run is made of.

    recipe: complete, with sizes that fit the data and a precision that fits the device.
    folders: the data.
    sets: labeled sets that score the run.
    files: the images to learn from, without unreadable ones.
    batches: batches of these images.
    start: the encoder to start from, if any.
    tables: what the learner knows of the images: vectors of a teacher, and metadata that guides neighbors.
    teacher: the frozen encoder that gives the targets, if any.
    """

    recipe: Recipe
    folders: list[Path | str]
    sets: list[Task]
    files: ImageIndex
    batches: Batches
    start: InitialEncoder | None
    tables: Tables
    teacher: FeatureSource | None

    @property
    def init(self) -> str | None:
        """Source of the encoder to start from, if any."""
        return self.start.source if self.start else None

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        data: Sequence[str | Path],
        ranks: Ranks,
        console: Console,
        *,
        start: InitialEncoder | None = None,
        saved: Mapping[str, Any] | None = None,
        minutes: float | None = None,
        table: Task | None = None,
        choose_start: bool = False,
        labels: LabelTable | None = None,
        teacher: FeatureSource | None = None,
    ) -> Setup:
        """Find the images, complete the recipe, and decode the images.

        Args:
            data: folders, or names of data sets.
            start: encoder to start from, if one is given.
            saved: checkpoint that the run resumes from, if any. It keeps its choices.
            minutes: time limit of the run; `auto` on a CPU chooses what fits into it.
            table: a labeled set that scores the run, too.
            choose_start: let `auto` choose the encoder to start from.
            labels: the table with the columns that guide neighbors.
            teacher: the encoder that the recipe names, if it is not a source.
        """
        where = ranks.where
        if where.type == "cpu":
            keep_freed_memory()
        if where.type == "cuda":
            use_few_threads()
            torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32, mainly the lookup
            torch.backends.cudnn.benchmark = True
        one_of("batches", recipe.batches, BATCHES, OF_PLUGIN)
        saved_settings: Mapping[str, Any] = {} if saved is None else saved["settings"]
        folders, files = _find_images(data, ranks, console)
        sizes = sampled_sizes(files, recipe.preprocessing.reading)
        output, sets = console if saved is None else Console(quiet=True), evaluation_sets(folders, table)
        labeled = join_parts(sets) if saved is None and sets else None
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
        if recipe.cut_from == "auto":
            small = pack_bytes(len(files), recipe.pack_size, recipe.in_chans) <= MOST_PACKED
            recipe = dataclasses.replace(
                recipe, cut_from=saved_settings.get("cut_from", "pack" if small else "originals")
            )
        pack: ImagePack | None = None
        if recipe.cut_from == "pack":
            _warn_of_enlarged(recipe, sizes, console)
            pack = _decode(files, recipe, console)
            files = files.keep(pack.kept)
        changed = saved is not None and saved["files"] != files.digest
        # sizes that are not used are not printed
        fitted = fit_to_data(recipe, len(files), files.labels, ranks.world, Console(quiet=True) if changed else console)
        recipe = sizes_of(saved, recipe, fitted, len(files)) if changed and saved is not None else fitted
        blocks, window = None, 0
        if pack is None:
            blocks, window = files.blocks, WINDOW_BYTES // max(1, files.bytes // len(files) or TYPICAL_BYTES)
        order = Order(files.folders, recipe.batch_size, recipe.seed, blocks, window)
        if pack is not None:
            pixels: PixelSource = PackedPixels(pack, where, recipe.residency)
        else:
            pixels = _originals(files, recipe, order, ranks)
        if start is None:
            recipe = _normalize_channels(recipe, pixels, saved_settings)
        recipe = resolve_precision(recipe, where, console)
        if recipe.epochs == FIT:
            recipe = dataclasses.replace(
                recipe, epochs=saved_settings.get("epochs", recipe.steps(1) / order.steps_per_epoch)
            )
        batches = BATCHES[recipe.batches](
            pixels,
            files.labels,
            order,
            views=lambda step: recipe.views_at(step / batches.steps),
            where=where,
            rank=ranks.rank,
            world=ranks.world,
        )
        batches.steps = recipe.steps(order.steps_per_epoch)
        columns = {name: values for name in ("same", "not_same") if (values := getattr(recipe, name))}
        guides = {name: _metadata(files, folders, labels, one, console) for name, one in columns.items()}
        groups = _forgotten(guides["not_same"], recipe, console) if recipe.forget and recipe.not_same else None
        if recipe.teacher:
            teacher = teacher or load_encoder(recipe.teacher, device=str(where))
            guides["teacher"] = teacher_vectors(teacher, files, ranks, console)
        return cls(recipe, folders, sets, files, batches, start, Tables(**guides, groups=groups), teacher)


# ------------------------------------------------------------------------------ sizes and precision


def fit_to_data(recipe: Recipe, images: int, labels: np.ndarray, world: int, console: Console) -> Recipe:
    """Shrink the batch so that an epoch has at least four steps, and the queue to the number of images."""
    require_images(images, world, "readable images")
    if recipe.pick == "oracle":
        require_labels(labels)
    changes: dict[str, Any] = {"batch_size": recipe.batch_for(images), "queue_size": min(recipe.queue_size, images)}
    if recipe.support_set == "current_encoder":
        changes["queue_size"] = changes["queue_size"] // world * world
    changes["k"] = min(recipe.k, changes["queue_size"])
    if 0 < recipe.epochs <= recipe.warmup_epochs:  # the rate would only rise and never fall
        changes["warmup_epochs"] = recipe.epochs / SHORTENED
    unused = () if METHODS[recipe.method].uses_support_set else ("queue_size", "k")
    for setting, value in changes.items():
        if value != getattr(recipe, setting) and setting not in unused:
            what = f"epochs={recipe.epochs:g}" if setting == "warmup_epochs" else f"{images} images"
            console.print(f"{setting}: {getattr(recipe, setting)} is too large for {what}; using {value}")
    recipe = dataclasses.replace(recipe, **changes)
    if recipe.batch_size % world:
        raise InvalidRequest(
            f"batch_size={recipe.batch_size} cannot be divided among {world} processes; use a multiple of {world}."
        )
    return recipe


def choices_of(saved: Mapping[str, Any], recipe: Recipe) -> Recipe:
    """Return the recipe `auto` with what it chose when the run began: it might choose otherwise for other images."""
    names = {name for name in recipe.values() if name not in (*FREE, *recipe.fixed)}
    names |= {"epochs"} - set(recipe.fixed)
    return dataclasses.replace(recipe, **{name: saved["settings"][name] for name in names})


def sizes_of(saved: Mapping[str, Any], asked: Recipe, fitted: Recipe, images: int) -> Recipe:
    """Return the recipe with the sizes of the run's start, if the present settings allow them.

    Args:
        asked: before its sizes were fitted to the images.
        fitted: after that.
        images: their number; a batch of the start must not be larger.
    """
    before = saved["settings"]
    most = {"batch_size": images}
    names = [name for name in FITTED if before[name] <= min(getattr(asked, name), most.get(name, before[name]))]
    return dataclasses.replace(fitted, **{name: before[name] for name in names})


def require_images(images: int, world: int, kind: str = "images") -> None:
    """Raise NoImages, whose message calls them `kind`, if there are too few images for the processes of a run."""
    if images < 8 * world:
        raise NoImages(f"A run needs at least {8 * world} {kind}, better a few thousand; got {images}.")


def require_labels(labels: np.ndarray) -> None:
    """Raise InvalidRequest unless some of the (N,) int64 labels are known, as pick=oracle requires."""
    if not (labels >= 0).any():
        raise InvalidRequest(
            "pick=oracle needs labels, and the images have none. Put the images into one folder per class, or use "
            "another pick."
        )


def resolve_precision(recipe: Recipe, where: torch.device, console: Console) -> Recipe:
    """Replace precision "auto", and use fp32 where bf16 would compute wrong gradients.

    oneDNN in torch 2.15 computes wrong gradients in bf16 on a CPU for a 3 x 3 convolution of stride 2 over a single
    pixel. The last stage of a ResNet has one for views of 16 pixels.
    """
    precision = choose_precision(recipe.precision, where)
    if precision == "bf16" and where.type == "cpu" and min(recipe.view_sizes) <= LEAST_IN_BF16:
        console.print(
            f"precision: using fp32, because bf16 on a CPU fails for views of {min(recipe.view_sizes)} pixels"
        )
        precision = "fp32"
    return dataclasses.replace(recipe, precision=precision)


# ------------------------------------------------------------------------------ tables by image


def _metadata(
    files: ImageIndex,
    folders: Sequence[Path | str],
    labels: LabelTable | None,
    columns: Sequence[str],
    console: Console,
) -> torch.Tensor:
    """Return the columns that guide neighbors, (N, C) int64, and print how many images have a value."""
    numbers = metadata_numbers(files, folders, labels, columns)
    for name, column in zip(columns, numbers.T, strict=True):
        known = int((column >= 0).sum())
        values = counted(int(column.max()) + 1, "value")
        console.print(f"{name}: {values}, known for {known} of {len(files)} images")
    return torch.from_numpy(numbers)


def _forgotten(values: torch.Tensor, recipe: Recipe, console: Console) -> torch.Tensor | None:
    """Return the group that the vectors of each image forget, (N,) int64, -1 if one of its (N, C) values is unknown.

    None if a batch has too few images of each group.
    """
    known = (values >= 0).all(dim=1)
    groups = torch.full((len(values),), NO_LABEL)
    groups[known] = values[known].unique(dim=0, return_inverse=True)[1]
    count, most = int(groups.max()) + 1, recipe.batch_size // LEAST_OF_GROUP
    columns, name = ", ".join(recipe.not_same), "combination" if len(recipe.not_same) > 1 else "value"
    if not 0 < count <= most:
        console.print(
            f"{columns}: only neighbors follow {counted(count, name)}. To forget them as well, vectors need "
            f"{LEAST_OF_GROUP} images of each in a batch of {recipe.batch_size}, so at most {counted(most, name)}."
        )
        return None
    console.print(f"{columns}: vectors forget {counted(count, name)}")
    return groups


def teacher_vectors(source: FeatureSource, files: ImageIndex, ranks: Ranks, console: Console) -> torch.Tensor:
    """Return the vectors of a teacher for all images, centered and with rows of length 1: (N, D) float32.

    The first process of each machine embeds the images, in one pass, and the cache of features keeps them. An image
    that the teacher cannot read gets zeros, which no prediction is near to.
    """
    if not ranks.first_here:
        ranks.wait()
    with bar(console, f"vectors of {source.name}") as advance:
        raw = np.array(extract_features(source, [files[row] for row in range(len(files))], progress=advance).raw)
    if ranks.first_here:
        ranks.wait()
    centered = raw - np.nanmean(raw, axis=0, dtype=np.float64).astype(np.float32)  # else all cosines are near 1
    return torch.from_numpy(np.nan_to_num(unit_rows(centered)))


# ------------------------------------------------------------------------------ images


def _find_images(data: Sequence[str | Path], ranks: Ranks, console: Console) -> tuple[list[Path | str], ImageIndex]:
    """Return the folders and their images.

    The first process of each machine downloads named sets and lists the images; the others read what it wrote.
    Unreadable images are counted after decoding.
    """
    if ranks.first_here:
        training_files(find_data(data, console))
    ranks.wait()
    folders = find_data(data, console)
    files = training_files(folders, listed=True)
    require_images(len(files), ranks.world)
    return folders, files


def _warn_of_enlarged(recipe: Recipe, sizes: np.ndarray, console: Console) -> None:
    """Print the share of enlarged views if a pack raises it; sizes: (n, 2) height and width of some of the images."""
    if not len(sizes):
        return
    scale, copies = recipe.views_at(1.0)[0].scale, stored_sizes(sizes, recipe.pack_size)
    share, least = (enlarged_share(sizes, stored, recipe.image_size, scale) for stored in (copies, sizes))
    if share > max(ENLARGED, least + 0.05):
        console.print(
            f"warning: {share:.0%} of the large views are enlarged, since copies of {recipe.pack_size} "
            f"pixels are smaller than their crops; {least:.0%} would be with --set cut_from=originals. A larger "
            "pack_size helps, too."
        )


def _decode(files: ImageIndex, recipe: Recipe, console: Console) -> ImagePack:
    with bar(console, "decoding") as advance:
        reading, channels = recipe.preprocessing.reading, recipe.in_chans
        pack = build_pack(files, recipe.pack_size, reading=reading, channels=channels, progress=advance)
    for path, reason in pack.broken:
        console.print(f"skipped {path}: {reason}")
    return pack


def _originals(files: ImageIndex, recipe: Recipe, order: Order, ranks: Ranks) -> Originals:
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


def _normalize_channels(recipe: Recipe, pixels: PixelSource, saved_settings: Mapping[str, Any]) -> Recipe:
    """Measure the mean and std of the images, unless they are RGB or the recipe sets them.

    A resumed run keeps those of its checkpoint, because the images may have changed.
    """
    if recipe.in_chans == 3 or {"mean", "std"} & set(recipe.fixed):
        return recipe
    own = len(saved_settings.get("mean", ())) == recipe.in_chans
    mean, std = (tuple(saved_settings[name]) for name in ("mean", "std")) if own else channel_statistics(pixels)
    return dataclasses.replace(recipe, mean=mean, std=std)
