"""Labeled images to score an encoder: splits with files and class numbers, and the metric to report.

A part is `train/`, `val/` or `test/` of a data folder or archive, or any other folder that is named. `read_task` serves
`nnclr eval`. It leaves out and lists images that cannot be scored honestly: those of a class that `train/` lacks, and
those without a label. `evaluation_sets` serves the scores of a run, at each of its checkpoints.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from nnclr_hub.errors import InvalidRequest, NoImages
from nnclr_hub.hub.layout import HELD_OUT, VALIDATION
from nnclr_hub.images.labels import LabeledImages, find_table, first_names, read_from_table, read_labeled, read_splits
from nnclr_hub.images.listing import is_packed, splits_in
from nnclr_hub.images.source import Source, file_key
from nnclr_hub.plural import counted
from nnclr_hub.probe.cross_validation import stratified_folds
from nnclr_hub.table_rows import LabelTable

from ..data.image_index import NO_LABEL, archives_without_images, digest_of

LEAST_LABELED = 20  # images of which a fifth is held out
log = logging.getLogger(__name__)

# The paper's transfer sets with the metric that it reports ("Transfer learning evaluations"). Eleven of them have
# names in `data/named_sets.py`; Birdsnap, and Cars if its download is unavailable, are folders of that name with
# train/ and test/. The splits are torchvision's, which are the authors'. SUN397 and Caltech-101 have no splits there;
# they are split as BYOL describes (50 and 30 training images per class), at random with a fixed seed.
TRANSFER_METRICS = {
    **dict.fromkeys(("food101", "cifar10", "cifar100", "birdsnap", "sun397", "cars"), "top1"),
    "aircraft": "mean_per_class",
    "voc2007": "map11",
    "dtd": "top1",
    **dict.fromkeys(("pets", "caltech101", "flowers"), "mean_per_class"),
}


@dataclass(frozen=True)
class Part:
    """Images with (N,) int64 classes, -1 where unknown; or (N, C) float32 of zeros and ones, NaN where neither counts.

    paths: files, or images in archives.
    """

    paths: tuple[Path | Source, ...]
    labels: np.ndarray

    def keep(self, rows: np.ndarray) -> Part:
        """Return the images at `rows` (int64), in that order."""
        return Part(tuple(self.paths[i] for i in rows), self.labels[rows])

    @cached_property
    def digest(self) -> str:
        """A hash of the images in their order, by folder, name and size: what an encoder was measured on."""
        return digest_of(
            path.identity if isinstance(path, Source) else f"{path.parent.name}/{path.name} {path.stat().st_size}"
            for path in self.paths
        )


@dataclass(frozen=True)
class Task:
    """A data set to classify.

    name: name of the folder.
    classes: C names, those of train.
    train, test: the parts to fit on and to score.
    val: the part that selects hyperparameters; None: a share of train does.
    metric: top1, mean_per_class or map11.
    left_out: sentences about images that do not count.
    split: name of the part that scores, for the record: TEST, VALIDATION or HELD_OUT of `hub.layout`, or a folder.
    """

    name: str
    classes: tuple[str, ...]
    train: Part
    test: Part
    val: Part | None = None
    metric: str = "top1"
    left_out: tuple[str, ...] = ()
    split: str = ""

    def digest(self) -> str:
        """Hash the files (by path, size and time), labels and metric; results of another hash are not reused."""
        found = hashlib.sha256(f"{self.metric} {self.classes}".encode())
        for part in filter(None, (self.train, self.val, self.test)):
            found.update(part.labels.tobytes())
            for path in part.paths:
                if isinstance(path, Source):
                    found.update(file_key(path))
                    continue
                stat = path.stat() if path.exists() else None
                known = f"{stat.st_size} {stat.st_mtime_ns}" if stat else "-"
                found.update(f"{path.resolve()} {known}\n".encode("utf-8", "surrogateescape"))
        return found.hexdigest()[:32]

    def counts(self) -> dict[str, int]:
        """Return the number of images in each part."""
        parts = {"train": self.train, "val": self.val, "test": self.test}
        return {name: len(part.paths) for name, part in parts.items() if part is not None}


# ------------------------------------------------------------------------------ nnclr eval


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
    metric = metric if metric and metric != "map11" else "top1"
    if labels is not None:
        return _table_task(LabelTable.of(labels), [folder], metric)
    if not is_packed(folder) and not Path(folder).is_dir():
        raise InvalidRequest(f"{folder} does not exist; name a folder of labeled images.")
    every = read_splits(folder, "train", "val", "test")
    folder = Path(folder)
    scored = next((part for part in ("test", "val") if part in every), None)
    if not every and (table := find_table(folder)):
        return _table_task(table, [folder], metric)
    if scored is None or "train" not in every:
        raise InvalidRequest(
            f"{folder} needs the folders train/ and test/ (or val/), each with one folder per class or a labels.csv. "
            "An encoder is scored on images that the classifier has not seen."
        )
    classes, several = every["train"].labeled.classes, every["train"].several
    if len(classes) < 2:
        raise InvalidRequest(
            f"{folder / 'train'} has {'one class' if classes else 'no labels'}; provide images of at least two "
            "classes, in one folder each or listed in a labels.csv."
        )
    if any(images.several != several for images in every.values()):
        raise InvalidRequest(
            f"{folder} has several labels per image in one part and one label in another; use one form in all."
        )
    parts, left_out = {}, []
    for part, images in every.items():
        if without := len(images.paths) - len(images.labeled.paths):
            left_out.append(f"{folder.name}/{part} leaves out {counted(without, 'image')} without a label")
        parts[part], notes = _known(images.labeled, classes, f"{folder.name}/{part}")
        left_out += notes
    numbers = parts[scored].labels
    if not len(numbers):
        raise InvalidRequest(f"{folder / scored} has no image of a class in train/; check the labels.")
    occurs = numbers[:, None] == np.arange(len(classes)) if numbers.ndim == 1 else numbers == 1
    missing = [name for name, some in zip(classes, occurs.any(axis=0), strict=True) if not some]
    if missing:
        left_out.append(
            f"{folder.name}/{scored} has no image of {first_names(missing)}; no mean over classes includes them"
        )
    val = parts.get("val") if scored != "val" else None
    val = val if val is not None and val.paths else None
    metric = "map11" if several else metric
    return Task(folder.resolve().name, classes, parts["train"], parts[scored], val, metric, tuple(left_out))


def _known(
    images: LabeledImages, classes: tuple[str, ...], where: str, lacking: str = "train/"
) -> tuple[Part, list[str]]:
    unknown = set(images.classes) - set(classes)
    kept = images.keep([i for i, labels in enumerate(images.labels) if not set(labels) & unknown])
    number, names = len(images.paths) - len(kept.paths), first_names(sorted(unknown))
    note = f"{where} leaves out {counted(number, 'image')} of classes missing from {lacking} ({names})"
    return Part(kept.paths, kept.numbers(classes)), [note] * bool(unknown)


def _fifth_held_out(part: Part) -> tuple[Part, Part]:
    held = stratified_folds(part.labels) == 0
    return part.keep(np.flatnonzero(~held)), part.keep(np.flatnonzero(held))


def _table_task(labels: LabelTable, sources: Sequence[str | Path], metric: str = "top1") -> Task:
    images = read_from_table(labels, sources).labeled
    if images.several or len(images.classes) < 2:
        raise InvalidRequest(f"{labels} needs one label per image in the column label, of at least two classes.")
    whole = Part(images.paths, images.numbers(images.classes))
    if len(whole.labels) < LEAST_LABELED:
        raise InvalidRequest(
            f"{labels} has {len(whole.labels)} labels of images; a fifth is scored, so give {LEAST_LABELED}."
        )
    train, test = _fifth_held_out(whole)
    left_out = (f"{labels.file.name}: a fifth of the images is scored, {len(test.paths)} images",)
    return Task(Path(sources[0]).resolve().name, images.classes, train, test, None, metric, left_out, HELD_OUT)


def read_pair(folder: Path, queries: str | None = None, gallery: str | None = None) -> Task:
    """Read queries and a gallery, as a task whose test part is the queries and whose train part is the gallery.

    Args:
        folder: the data set. By default test/ (or val/) searches train/; in a folder without parts each image searches
            all others.
        queries, gallery: a part of the folder, or any folder or table.
    """
    folder = Path(folder)
    name = folder.resolve().name
    if (queries is None) != (gallery is None):
        raise InvalidRequest("Use both --queries and --gallery, or neither.")
    if queries is None or gallery is None:
        splits = splits_in(folder)
        scored = next((part for part in ("test", "val") if part in splits), None)
        if scored is None or "train" not in splits:
            part = _labeled_part(folder)
            images = Part(part.paths, part.numbers(part.classes))
            return Task(name, part.classes, images, images)
        queries, gallery = (str(splits[part].relative_to(folder)) for part in (scored, "train"))
    else:
        name = f"{name}, {Path(queries).stem} in {Path(gallery).stem}"
    query_images, searched = (
        _labeled_part(folder / one if (folder / one).exists() else Path(one)) for one in (queries, gallery)
    )
    test, left_out = _known(query_images, searched.classes, f"{folder.name}/{queries}", "the gallery")
    train = Part(searched.paths, searched.numbers(searched.classes))
    if not test.paths:
        raise InvalidRequest(f"No label of {queries} occurs in {gallery}; name parts that share labels.")
    both = set(train.paths) & set(test.paths)
    if both and len(both) == len(train.paths) == len(test.paths):
        test = train  # each image searches the others
    elif both:
        raise InvalidRequest(f"{len(both)} images are in both {queries} and {gallery}; a query would find itself.")
    return Task(name, searched.classes, train, test, left_out=tuple(left_out))


def _labeled_part(where: Path) -> LabeledImages:
    images = read_labeled(where).labeled
    if not images.classes:
        raise InvalidRequest(f"{where} has no labels; put its images into one folder per class, or list them in a CSV.")
    return images


# ------------------------------------------------------------------------------ scores of a run


def evaluation_sets(folders: Sequence[Path | str], table: Task | None = None) -> list[Task]:
    """Return the labeled sets that can score an encoder: the table, and the data folders that have classes.

    A folder fits on `train/` and scores `val/` or `test/`. Of a folder without these two, a fifth of each class is
    held out. A table takes the place of such folders, because it says what their labels are.
    """
    tasks = []
    for folder in (one for one in map(Path, folders) if one.is_dir()):
        splits, name = splits_in(folder), folder.resolve().name
        scored = next((split for split in ("val", "test") if split in splits), None)
        if scored is not None and "train" in splits:
            train, classes = _images_of(splits["train"])
            test, _ = _images_of(splits[scored], classes)
            tasks.append(Task(name, classes, train, test, split=VALIDATION if scored == "val" else scored))
        elif table is None:
            try:
                every, classes = _images_of(folder / "train" if (folder / "train").is_dir() else folder)
            except NoImages:
                continue
            labeled = every.keep(np.flatnonzero(every.labels >= 0))
            if len(labeled.paths) >= LEAST_LABELED and len(classes) > 1:
                tasks.append(Task(name, classes, *_fifth_held_out(labeled), split=HELD_OUT))
    tasks = [one for one in tasks if len(one.classes) > 1] + ([table] if table else [])
    names = [one.name for one in tasks]  # names of scores must be unique
    return [
        replace(one, name=f"{one.name}-{names[:number].count(one.name) + 1}") if one.name in names[:number] else one
        for number, one in enumerate(tasks)
    ]


def _images_of(folder: Path, classes: tuple[str, ...] | None = None) -> tuple[Part, tuple[str, ...]]:
    # archives, and a folder with several labels per image, have none
    images = LabeledImages((), (), (), False) if archives_without_images(folder) else read_labeled(folder)
    if images.several:
        log.warning("%s has several labels per image, by which a run is not scored; use nnclr eval", folder)
        images = images.keep([])
    classes = images.classes if classes is None else classes
    number = {name: i for i, name in enumerate(classes)}
    labels = [number.get(own[0], NO_LABEL) if own else NO_LABEL for own in images.labels]
    return Part(tuple(images.paths), np.array(labels, np.int64)), classes


def table_set(labels: LabelTable | Path, data: Sequence[str | Path]) -> Task:
    """Return the images of a table of labels as a set that scores a run, named after the table.

    Args:
        labels: a table, see `read_labeled`. A fifth of each class is held out.
        data: folders, or names of data sets.
    """
    places = [one for one in data if is_packed(one) or Path(one).is_dir()]
    table = LabelTable.of(labels)
    task = _table_task(table, places or [table.file])
    if table.file.stem in {Path(one).resolve().name for one in places}:
        raise InvalidRequest(f"{table} has the name of a data folder, whose scores have that name; rename the table.")
    return replace(task, name=table.file.stem)


def join_parts(tasks: Sequence[Task]) -> Part:
    """Return the training images of several sets; classes of different sets are different."""
    first = np.cumsum([0, *(len(one.classes) for one in tasks)])
    labels = [
        np.where(one.train.labels >= 0, one.train.labels + at, NO_LABEL) for one, at in zip(tasks, first, strict=False)
    ]
    return Part(tuple(path for one in tasks for path in one.train.paths), np.concatenate(labels))
