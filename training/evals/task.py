"""A labeled data set as the protocols see it: parts with files and class numbers, and the figure that is reported.

A part is `train/`, `val/` or `test/` of a data folder, or any other folder of it that is named. What cannot be
scored honestly is left out and named: images of a class that `train/` lacks, and those without a label.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nnclr_hub.encoder.labeled import LabeledImages, read_labeled, some
from nnclr_hub.errors import InvalidRequest

METRICS = ("top1", "mean_per_class", "map11")


@dataclass(frozen=True)
class Part:
    """Files with (N,) int64 classes, or (N, C) float32 of zeros and ones with NaN where neither counts."""

    paths: tuple[Path, ...]
    labels: np.ndarray


@dataclass(frozen=True)
class Task:
    """A data set to classify.

    name: of the folder.
    classes: C names, those of train.
    train, test: what is fitted on, and scored.
    val: what chooses; None: a part of train does.
    metric: one of METRICS.
    left_out: sentences about images that do not count.
    """

    name: str
    classes: tuple[str, ...]
    train: Part
    test: Part
    val: Part | None = None
    metric: str = "top1"
    left_out: tuple[str, ...] = field(default=())

    def digest(self) -> str:
        """A hash of files (by path, size and time), labels and metric: another is another question."""
        found = hashlib.sha256(f"{self.metric} {self.classes}".encode())
        for part in filter(None, (self.train, self.val, self.test)):
            found.update(part.labels.tobytes())
            add_files(found, part.paths)
        return found.hexdigest()[:32]

    def counts(self) -> dict[str, int]:
        """Images a part."""
        parts = {"train": self.train, "val": self.val, "test": self.test}
        return {name: len(part.paths) for name, part in parts.items() if part is not None}


def add_files(found: hashlib._Hash, paths: Iterable[Path]) -> None:
    """Feeds a hash with files as they are now: by path, size and time."""
    for path in paths:
        stat = path.stat() if path.exists() else None
        known = f"{stat.st_size} {stat.st_mtime_ns}" if stat else "-"
        found.update(f"{path.resolve()} {known}\n".encode("utf-8", "surrogateescape"))


def read_task(folder: Path, *, metric: str | None = None) -> Task:
    """The data set in a folder with train/ and test/ (or val/, which is then scored).

    Args:
        folder: with a folder a class in each part, or a labels.csv.
        metric: top1 or mean_per_class; several labels an image are scored by map11 in any case.

    Raises:
        NoImages: a part without images.
        InvalidRequest: no parts, fewer than two classes, or nothing left to score.
    """
    folder = Path(folder)
    scored = next((part for part in ("test", "val") if (folder / part).is_dir()), None)
    if not folder.is_dir():
        raise InvalidRequest(f"{folder} does not exist: give a folder of labeled images.")
    if scored is None or not (folder / "train").is_dir():
        raise InvalidRequest(
            f"{folder} needs the folders train/ and test/ (or val/), each with a folder a class or listed in a "
            "labels.csv: an encoder is scored on images that the classifier has not seen."
        )
    every = {part: read_labeled(folder / part) for part in ("train", "val", "test") if (folder / part).is_dir()}
    read = {part: images.labeled for part, images in every.items()}
    classes = read["train"].classes
    if len(classes) < 2:
        raise InvalidRequest(
            f"{folder / 'train'} has {'one class' if classes else 'no labels'}: give images of at least two classes, "
            "in a folder each or listed in a labels.csv."
        )
    several = read["train"].several
    if any(images.several != several for images in read.values()):
        raise InvalidRequest(f"{folder} has several labels an image in one part and one in another: give all alike.")
    kept, left_out = {}, []
    for part, images in read.items():
        without = len(every[part].paths) - len(images.paths)
        if without:
            left_out.append(f"{folder.name}/{part}: {without} images without a label are left out")
        kept[part], said = _known(images, classes, f"{folder.name}/{part}")
        left_out += said
    parts = {part: Part(images.paths, images.numbers(classes)) for part, images in kept.items()}
    if not len(parts[scored].paths):
        raise InvalidRequest(f"{folder / scored} holds no image of a class that train/ has: check the labels.")
    missing = [name for i, name in enumerate(classes) if not _occurs(parts[scored].labels, i)]
    if missing:
        left_out.append(f"{folder.name}/{scored} holds no image of {some(missing)}: not part of any mean over classes")
    return Task(
        folder.resolve().name,
        classes,
        parts["train"],
        parts[scored],
        parts.get("val") if scored != "val" and len(kept.get("val", read["train"]).paths) else None,
        "map11" if several else (metric if metric and metric != "map11" else "top1"),
        tuple(left_out),
    )


def read_pair(folder: Path, queries: str | None = None, gallery: str | None = None) -> Task:
    """Images that search others, as a task whose test part is the queries and whose train part the gallery.

    Args:
        folder: of the data set. With neither of the others, test/ (or val/) searches train/; a folder without parts is
            searched by each of its own images.
        queries, gallery: a part of the folder, or any folder or table.

    Raises:
        InvalidRequest: only one of them is named, or labels are missing.
    """
    folder = Path(folder)
    if (queries is None) != (gallery is None):
        raise InvalidRequest("Name both --queries and --gallery, or neither.")
    if queries is None or gallery is None:
        scored = next((part for part in ("test", "val") if (folder / part).is_dir()), None)
        if scored is None or not (folder / "train").is_dir():
            part = _labeled_part(folder)
            pictures = Part(part.paths, part.numbers(part.classes))
            return Task(folder.resolve().name, part.classes, pictures, pictures)
        queries, gallery, name = scored, "train", folder.resolve().name
    else:
        name = f"{folder.resolve().name}, {Path(queries).stem} in {Path(gallery).stem}"
    asked, searched = (
        _labeled_part(folder / one if (folder / one).exists() else Path(one)) for one in (queries, gallery)
    )
    kept, left_out = _known(asked, searched.classes, f"{folder.name}/{queries}", "the gallery")
    if not kept.paths:
        raise InvalidRequest(f"No label of {queries} occurs in {gallery}: name parts that share labels.")
    both = set(searched.paths) & set(kept.paths)
    if both and len(both) == len(searched.paths) == len(kept.paths):
        alone = Part(searched.paths, searched.numbers(searched.classes))
        return Task(name, searched.classes, alone, alone, left_out=tuple(left_out))
    if both:
        raise InvalidRequest(f"{len(both)} images are in both {queries} and {gallery}: a query would find itself.")
    train, test = (Part(images.paths, images.numbers(searched.classes)) for images in (searched, kept))
    return Task(name, searched.classes, train, test, left_out=tuple(left_out))


def _labeled_part(where: Path) -> LabeledImages:
    images = read_labeled(where).labeled
    if not images.classes:
        raise InvalidRequest(f"{where} has no labels: put its images into a folder a class, or list them in a CSV.")
    return images


def _known(
    images: LabeledImages, classes: tuple[str, ...], where: str, lacking: str = "train/"
) -> tuple[LabeledImages, list[str]]:
    """The images whose labels are among the classes, and a sentence about the others."""
    unknown = sorted(set(images.classes) - set(classes))
    if not unknown:
        return images, []
    kept = images.keep([i for i, labels in enumerate(images.labels) if not set(labels) & set(unknown)])
    number = len(images.paths) - len(kept.paths)
    return kept, [f"{where}: {number} images of classes that {lacking} lacks ({some(unknown)}) are left out"]


def _occurs(labels: np.ndarray, place: int) -> bool:
    return bool((labels == place).any() if labels.ndim == 1 else (labels[:, place] == 1).any())
