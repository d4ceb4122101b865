"""A labeled data set as the protocols see it: splits with files and class numbers, and the metric to report.

A part is `train/`, `val/` or `test/` of a data folder or archive, or any other folder that is named. Images that cannot
be scored honestly are left out and listed: those of a class that `train/` lacks, and those without a label.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.images.labels import LabeledImages, find_table, first_names, read_from_table, read_labeled, read_splits
from nnclr_hub.images.listing import is_packed, splits_in
from nnclr_hub.images.source import Source, file_key
from nnclr_hub.probe.cross_validation import stratified_folds
from nnclr_hub.probe.metrics import mean_average_precision_11, top_k_accuracy
from nnclr_hub.table_rows import LabelTable

from .score import accuracy

METRICS = ("top1", "mean_per_class", "map11")
LEAST_LABELED = 20  # rows of a table of which a fifth is scored


@dataclass(frozen=True)
class Part:
    """Files with (N,) int64 classes, or (N, C) float32 of zeros and ones with NaN where neither counts."""

    paths: tuple[Path | Source, ...]
    labels: np.ndarray


@dataclass(frozen=True)
class Task:
    """A data set to classify.

    name: of the folder.
    classes: C names, those of train.
    train, test: the parts to fit on and to score.
    val: the part that selects hyperparameters; None: a share of train does.
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
        """Hash the files (by path, size and time), labels and metric; results of another hash are not reused."""
        found = hashlib.sha256(f"{self.metric} {self.classes}".encode())
        for part in filter(None, (self.train, self.val, self.test)):
            found.update(part.labels.tobytes())
            add_files(found, part.paths)
        return found.hexdigest()[:32]

    def counts(self) -> dict[str, int]:
        """Return the number of images in each part."""
        parts = {"train": self.train, "val": self.val, "test": self.test}
        return {name: len(part.paths) for name, part in parts.items() if part is not None}


def add_files(found: hashlib._Hash, paths: Iterable[Path | Source]) -> None:
    """Add files to a hash: by path, size and time."""
    for path in paths:
        if isinstance(path, Source):
            found.update(file_key(path))
            continue
        stat = path.stat() if path.exists() else None
        known = f"{stat.st_size} {stat.st_mtime_ns}" if stat else "-"
        found.update(f"{path.resolve()} {known}\n".encode("utf-8", "surrogateescape"))


def read_task(folder: str | Path, *, metric: str | None = None, labels: LabelTable | Path | None = None) -> Task:
    """Read the data set in a folder with train/ and test/ (or val/, which is then scored).

    Args:
        folder: with one folder per class in each part, or a labels.csv; each part may consist of archives. Or an
            archive, a pattern or an address, with such folders inside. Or a folder without parts, with a labels.csv.
        labels: a table of labels; see `read_labeled`. Of a table, a fifth of each class is scored.
        metric: top1 or mean_per_class; sets with several labels per image always use map11.

    Raises:
        NoImages: a part without images.
        InvalidRequest: missing parts, fewer than two classes, or nothing left to score.
    """
    if labels is not None:
        return table_task(LabelTable.of(labels), [folder], metric)
    if not is_packed(folder) and not Path(folder).is_dir():
        raise InvalidRequest(f"{folder} does not exist; name a folder of labeled images.")
    every = read_splits(folder, "train", "val", "test")
    folder = Path(folder)
    scored = next((part for part in ("test", "val") if part in every), None)
    if not every and (table := find_table(folder)):
        return table_task(table, [folder], metric)
    if scored is None or "train" not in every:
        raise InvalidRequest(
            f"{folder} needs the folders train/ and test/ (or val/), each with one folder per class or a labels.csv. "
            "An encoder is scored on images that the classifier has not seen."
        )
    read = {part: images.labeled for part, images in every.items()}
    classes = read["train"].classes
    if len(classes) < 2:
        raise InvalidRequest(
            f"{folder / 'train'} has {'one class' if classes else 'no labels'}; provide images of at least two "
            "classes, in one folder each or listed in a labels.csv."
        )
    several = read["train"].several
    if any(images.several != several for images in read.values()):
        raise InvalidRequest(
            f"{folder} has several labels per image in one part and one label in another; use one form in all."
        )
    kept, left_out = {}, []
    for part, images in read.items():
        without = len(every[part].paths) - len(images.paths)
        if without:
            left_out.append(f"{folder.name}/{part}: {without} images without a label are left out")
        kept[part], notes = _known(images, classes, f"{folder.name}/{part}")
        left_out += notes
    parts = {part: Part(images.paths, images.numbers(classes)) for part, images in kept.items()}
    if not len(parts[scored].paths):
        raise InvalidRequest(f"{folder / scored} has no image of a class in train/; check the labels.")
    missing = [name for i, name in enumerate(classes) if not _occurs(parts[scored].labels, i)]
    if missing:
        left_out.append(
            f"{folder.name}/{scored} has no image of {first_names(missing)}; no mean over classes includes them"
        )
    return Task(
        folder.resolve().name,
        classes,
        parts["train"],
        parts[scored],
        parts.get("val") if scored != "val" and len(kept.get("val", read["train"]).paths) else None,
        "map11" if several else (metric if metric and metric != "map11" else "top1"),
        tuple(left_out),
    )


def table_task(labels: LabelTable, sources: Sequence[str | Path], metric: str | None = None) -> Task:
    """Return a task on the images of a table, of which a fifth of each class is scored.

    Raises:
        NoImages, InvalidRequest: see `read_task`.
    """
    images = read_from_table(labels, sources).labeled
    if images.several or len(images.classes) < 2:
        raise InvalidRequest(f"{labels} needs one label per image in the column label, of at least two classes.")
    numbers = images.numbers(images.classes)
    if len(numbers) < LEAST_LABELED:
        raise InvalidRequest(
            f"{labels} has {len(numbers)} labels of images; a fifth is scored, so give {LEAST_LABELED}."
        )
    held = stratified_folds(numbers) == 0
    train, test = (Part(images.keep(np.flatnonzero(rows)).paths, numbers[rows]) for rows in (~held, held))
    left_out = [f"{labels.file.name}: a fifth of the images is scored, {len(test.paths)} images"]
    metric = metric if metric and metric != "map11" else "top1"
    return Task(Path(sources[0]).resolve().name, images.classes, train, test, metric=metric, left_out=tuple(left_out))


def read_pair(folder: Path, queries: str | None = None, gallery: str | None = None) -> Task:
    """Read queries and a gallery, as a task whose test part is the queries and whose train part is the gallery.

    Args:
        folder: the data set. By default test/ (or val/) searches train/; in a folder without parts each image searches
            all others.
        queries, gallery: a part of the folder, or any folder or table.

    Raises:
        InvalidRequest: only one of them is named, labels are missing, or an image is in both.
    """
    folder = Path(folder)
    if (queries is None) != (gallery is None):
        raise InvalidRequest("Use both --queries and --gallery, or neither.")
    if queries is None or gallery is None:
        splits = splits_in(folder)
        scored = next((part for part in ("test", "val") if part in splits), None)
        if scored is None or "train" not in splits:
            part = _labeled_part(folder)
            images = Part(part.paths, part.numbers(part.classes))
            return Task(folder.resolve().name, part.classes, images, images)
        queries, gallery = (str(splits[part].relative_to(folder)) for part in (scored, "train"))
        name = folder.resolve().name
    else:
        name = f"{folder.resolve().name}, {Path(queries).stem} in {Path(gallery).stem}"
    query_images, searched = (
        _labeled_part(folder / one if (folder / one).exists() else Path(one)) for one in (queries, gallery)
    )
    kept, left_out = _known(query_images, searched.classes, f"{folder.name}/{queries}", "the gallery")
    if not kept.paths:
        raise InvalidRequest(f"No label of {queries} occurs in {gallery}; name parts that share labels.")
    both = set(searched.paths) & set(kept.paths)
    if both and len(both) == len(searched.paths) == len(kept.paths):
        alone = Part(searched.paths, searched.numbers(searched.classes))
        return Task(name, searched.classes, alone, alone, left_out=tuple(left_out))
    if both:
        raise InvalidRequest(f"{len(both)} images are in both {queries} and {gallery}; a query would find itself.")
    train, test = (Part(images.paths, images.numbers(searched.classes)) for images in (searched, kept))
    return Task(name, searched.classes, train, test, left_out=tuple(left_out))


def _labeled_part(where: Path) -> LabeledImages:
    images = read_labeled(where).labeled
    if not images.classes:
        raise InvalidRequest(f"{where} has no labels; put its images into one folder per class, or list them in a CSV.")
    return images


def _known(
    images: LabeledImages, classes: tuple[str, ...], where: str, lacking: str = "train/"
) -> tuple[LabeledImages, list[str]]:
    """Return the images whose labels are among the classes, and a note about the others."""
    unknown = sorted(set(images.classes) - set(classes))
    if not unknown:
        return images, []
    kept = images.keep([i for i, labels in enumerate(images.labels) if not set(labels) & set(unknown)])
    number = len(images.paths) - len(kept.paths)
    return kept, [f"{where}: {number} images of classes missing from {lacking} ({first_names(unknown)}) are left out"]


def _occurs(labels: np.ndarray, place: int) -> bool:
    return bool((labels == place).any() if labels.ndim == 1 else (labels[:, place] == 1).any())


# ------------------------------------------------------------------------------ metrics


class Scored(Protocol):
    """A task, or its features."""

    @property
    def name(self) -> str: ...
    @property
    def metric(self) -> str: ...


def metric_values(protocol: str, task: Scored, scores: np.ndarray, labels: np.ndarray) -> Iterator[tuple[str, float]]:
    """Yield ("PROTOCOL/NAME", the task's metric) and, with more than five classes, ("PROTOCOL/NAME/top5", ...).

    Args:
        protocol: its name.
        task: determines the metric: top1, mean_per_class or map11.
        scores: (N, C) float.
        labels: (N,) int64; or (N, C) float32 of zeros and ones, NaN where neither counts.
    """
    if task.metric == "map11":
        value = mean_average_precision_11(scores, labels == 1, ~np.isnan(labels), absent="left out")
        yield f"{protocol}/{task.name}", value
        return
    yield f"{protocol}/{task.name}", accuracy(scores.argmax(axis=1) == labels, labels, task.metric)
    if scores.shape[1] > 5:
        yield f"{protocol}/{task.name}/top5", top_k_accuracy(scores, labels, 5)


# The paper's transfer sets with the metric that it reports ("Transfer learning evaluations"). Eleven of them have
# names in `data/named_sets.py`; Birdsnap, and Cars if its download is unavailable, are folders of that name with
# train/ and test/. The splits are torchvision's, which are the authors'. SUN397 and Caltech-101 have no splits there;
# they are split as BYOL describes (50 and 30 training images per class), at random with a fixed seed.
TRANSFER_METRICS = {
    "food101": "top1",
    "cifar10": "top1",
    "cifar100": "top1",
    "birdsnap": "top1",
    "sun397": "top1",
    "cars": "top1",
    "aircraft": "mean_per_class",
    "voc2007": "map11",
    "dtd": "top1",
    "pets": "mean_per_class",
    "caltech101": "mean_per_class",
    "flowers": "mean_per_class",
}
