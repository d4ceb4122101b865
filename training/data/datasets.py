"""Which files a run trains on, and which it scores the encoder with.

A data folder that has `train/` is read by its splits: pretraining sees `train/` and `unlabelled/`
alone, and the online 20-NN fits on `train/` and scores `val/` or else `test/`. Any other folder is
trained on whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from nnclr_hub.encoder.image_folder import label_of, list_images
from nnclr_hub.encoder.quiet import pillow_kept_quiet
from nnclr_hub.errors import NoImages

UNLABELLED = -1
LOOKED_AT = 50  # files whose size is asked for


@dataclass(frozen=True)
class ImageFiles:
    """Images on disk with their classes.

    paths: N files.
    labels: (N,) int64, index into `classes`, or -1.
    classes: names, sorted.
    origin: (N,) int64, which of the given folders each comes from.
    """

    paths: tuple[Path, ...]
    labels: np.ndarray
    classes: tuple[str, ...]
    origin: np.ndarray

    def keep(self, index: np.ndarray) -> ImageFiles:
        """Those at `index` (int64), in that order."""
        return ImageFiles(tuple(self.paths[i] for i in index), self.labels[index], self.classes, self.origin[index])


@dataclass(frozen=True)
class EvaluationSet:
    """A labeled set, with classes counted alike in both parts."""

    name: str
    train: ImageFiles
    test: ImageFiles


def training_files(folders: Sequence[Path]) -> ImageFiles:
    """All images to pretrain on; the labels serve to measure neighbor accuracy and nothing else.

    A single class tells nothing apart: its images count as unlabeled.

    Raises:
        NoImages: one of the folders holds none.
    """
    if not folders:
        raise NoImages("No folder of images was given: name one with --data DIR.")
    paths: list[Path] = []
    names: list[str | None] = []
    origin: list[int] = []
    for number, folder in enumerate(map(Path, folders)):
        parts = [folder]
        if (folder / "train").is_dir():
            parts = [folder / part for part in ("train", "unlabelled") if (folder / part).is_dir()]
        for part in parts:
            found = list_images(part)
            labels = [None if part.name == "unlabelled" else label_of(path, folder) for path in found]
            # two data folders may use one class name for different things
            names += [label and f"{folder.resolve()}/{label}" for label in labels]
            paths += found
            origin += [number] * len(found)
    classes = sorted({name for name in names if name})
    if len(classes) == 1:  # photos/holiday/*.jpg names no class: every neighbor would be "right"
        classes = []
    return _files(paths, names, classes, origin)


def typical_side(paths: Sequence[Path]) -> int:
    """The median short side, in pixels, of some of the files; 0 if none of them can be opened."""
    sides = []
    for path in paths[:: max(1, len(paths) // LOOKED_AT)]:
        if not path.is_file():  # a pipe of an image's name would never open
            continue
        try:
            with pillow_kept_quiet(), Image.open(path) as image:
                sides.append(min(image.size))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning):
            continue  # decoding will say why
    return int(np.median(sides)) if sides else 0


def evaluation_sets(folders: Sequence[Path]) -> list[EvaluationSet]:
    """The data folders that can score an encoder: those with `train/` and `val/` or `test/`, each with classes."""
    sets = []
    for folder in map(Path, folders):
        held_out = next((folder / split for split in ("val", "test") if (folder / split).is_dir()), None)
        if held_out is not None and (folder / "train").is_dir():
            sets.append(evaluation_set(folder, held_out.name))
    sets = [one for one in sets if len(one.train.classes) > 1]
    names = [one.name for one in sets]  # scores carry them: two alike would be one
    return [
        replace(one, name=f"{one.name}-{names[:number].count(one.name) + 1}") if one.name in names[:number] else one
        for number, one in enumerate(sets)
    ]


def evaluation_set(folder: Path, split: str) -> EvaluationSet:
    """Fits on `folder/train`, scores `folder/split`.

    Raises:
        NoImages: either part holds no image.
    """
    parts = {part: list_images(folder / part) for part in ("train", split)}
    names = {part: [label_of(path, folder) for path in paths] for part, paths in parts.items()}
    classes = sorted({name for name in names["train"] if name})
    return EvaluationSet(
        folder.resolve().name, *(_files(parts[part], names[part], classes, [0] * len(parts[part])) for part in parts)
    )


def _files(paths: list[Path], names: list[str | None], classes: list[str], origin: list[int]) -> ImageFiles:
    number = {name: i for i, name in enumerate(classes)}
    labels = np.array([number.get(name, UNLABELLED) if name else UNLABELLED for name in names], dtype=np.int64)
    return ImageFiles(tuple(paths), labels, tuple(classes), np.array(origin, np.int64))
