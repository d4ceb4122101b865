"""The files that a run trains on, and those that score the encoder.

A data folder with `train/` is read by its splits. Pretraining reads only `train/` and `unlabeled/` (`unlabelled/` works
too). The online 20-NN fits on `train/` and scores `val/`, or else `test/`. In any other folder, pretraining reads all
images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from nnclr_hub.encoder.image_folder import label_of, list_images
from nnclr_hub.encoder.warning_filters import ignore_warnings
from nnclr_hub.errors import NoImages

UNLABELED_FOLDERS = ("unlabeled", "unlabelled")
NO_LABEL = -1
SAMPLED = 50  # files whose size is read


@dataclass(frozen=True)
class ImageFiles:
    """Images on disk with their classes.

    paths: N files.
    labels: (N,) int64, index into `classes`, or -1.
    classes: names, sorted.
    origin: (N,) int64, the given folder that each image comes from.
    """

    paths: tuple[Path, ...]
    labels: np.ndarray
    classes: tuple[str, ...]
    origin: np.ndarray

    def keep(self, index: np.ndarray) -> ImageFiles:
        """Return the images at `index` (int64), in that order."""
        return ImageFiles(tuple(self.paths[i] for i in index), self.labels[index], self.classes, self.origin[index])


@dataclass(frozen=True)
class EvaluationSet:
    """A labeled set; both parts number the classes alike."""

    name: str
    train: ImageFiles
    test: ImageFiles


def training_files(folders: Sequence[Path]) -> ImageFiles:
    """Return all images to pretrain on. Labels serve only to measure neighbor accuracy.

    A single class carries no information, so its images count as unlabeled.

    Raises:
        NoImages: one of the folders has no images.
    """
    if not folders:
        raise NoImages("No image folder was given; name one with --data DIR.")
    paths: list[Path] = []
    names: list[str | None] = []
    origin: list[int] = []
    for number, folder in enumerate(map(Path, folders)):
        parts = [folder]
        if (folder / "train").is_dir():
            parts = [folder / part for part in ("train", *UNLABELED_FOLDERS) if (folder / part).is_dir()]
        for part in parts:
            found = list_images(part)
            labels = [None if part.name in UNLABELED_FOLDERS else label_of(path, folder) for path in found]
            # two data folders may use the same class name for different things
            names += [label and f"{folder.resolve()}/{label}" for label in labels]
            paths += found
            origin += [number] * len(found)
    classes = sorted({name for name in names if name})
    if len(classes) == 1:  # photos/holiday/*.jpg has no classes: every neighbor would be "right"
        classes = []
    return _files(paths, names, classes, origin)


def typical_side(paths: Sequence[Path]) -> int:
    """Return the median short side, in pixels, of some of the files; 0 if none of them can be opened."""
    sides = []
    for path in paths[:: max(1, len(paths) // SAMPLED)]:
        if not path.is_file():  # opening a named pipe would block
            continue
        try:
            with ignore_warnings(), Image.open(path) as image:
                sides.append(min(image.size))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning):
            continue  # decoding will report the reason
    return int(np.median(sides)) if sides else 0


def evaluation_sets(folders: Sequence[Path]) -> list[EvaluationSet]:
    """Return the data folders that can score an encoder: `train/` and `val/` or `test/`, each with classes."""
    sets = []
    for folder in map(Path, folders):
        held_out = next((folder / split for split in ("val", "test") if (folder / split).is_dir()), None)
        if held_out is not None and (folder / "train").is_dir():
            sets.append(evaluation_set(folder, held_out.name))
    sets = [one for one in sets if len(one.train.classes) > 1]
    names = [one.name for one in sets]  # names of scores must be unique
    return [
        replace(one, name=f"{one.name}-{names[:number].count(one.name) + 1}") if one.name in names[:number] else one
        for number, one in enumerate(sets)
    ]


def evaluation_set(folder: Path, split: str) -> EvaluationSet:
    """Read the set that fits on `folder/train` and scores `folder/split`.

    Raises:
        NoImages: one of the parts has no images.
    """
    parts = {part: list_images(folder / part) for part in ("train", split)}
    names = {part: [label_of(path, folder) for path in paths] for part, paths in parts.items()}
    classes = sorted({name for name in names["train"] if name})
    return EvaluationSet(
        folder.resolve().name, *(_files(parts[part], names[part], classes, [0] * len(parts[part])) for part in parts)
    )


def _files(paths: list[Path], names: list[str | None], classes: list[str], origin: list[int]) -> ImageFiles:
    number = {name: i for i, name in enumerate(classes)}
    labels = np.array([number.get(name, NO_LABEL) if name else NO_LABEL for name in names], dtype=np.int64)
    return ImageFiles(tuple(paths), labels, tuple(classes), np.array(origin, np.int64))
