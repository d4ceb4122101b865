"""Images with labels, from one folder per class or from a table.

A table is a CSV file with a header. `path` is relative to the table. `label` contains one label, or `labels` contains
several, separated by semicolons; empty means unlabeled. `uncertain` may contain labels that are neither present nor
absent ("difficult" in VOC). A `labels.csv` in a folder, or next to the parts of a data set (train, val, test), takes
precedence over the folder names.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnclr_hub.encoder.image_folder import SPLITS, label_of, list_images
from nnclr_hub.errors import InvalidRequest, NoImages

TABLE = "labels.csv"


@dataclass(frozen=True)
class LabeledImages:
    """N images with labels.

    paths: the files.
    labels: the labels of each image; () if unlabeled.
    uncertain: labels of each image that count neither as present nor as absent.
    several: whether an image may have more than one label.
    """

    paths: tuple[Path, ...]
    labels: tuple[tuple[str, ...], ...]
    uncertain: tuple[tuple[str, ...], ...]
    several: bool

    def keep(self, index: Sequence[int] | np.ndarray) -> LabeledImages:
        """Return the images at `index`, in that order."""
        return LabeledImages(
            tuple(self.paths[i] for i in index),
            tuple(self.labels[i] for i in index),
            tuple(self.uncertain[i] for i in index),
            self.several,
        )

    @property
    def labeled(self) -> LabeledImages:
        """The images with a label. With several labels per image these are all images, as no label is valid too."""
        return self if self.several else self.keep([i for i, labels in enumerate(self.labels) if labels])

    @property
    def classes(self) -> tuple[str, ...]:
        """Every label that occurs, sorted."""
        return tuple(sorted({label for labels in self.labels for label in labels}))

    def numbers(self, classes: Sequence[str]) -> np.ndarray:
        """Return labels as numbers.

        Returns:
            (N,) int64 indices into `classes`; or, with several labels per image, (N, C) float32 of zeros and ones, NaN
            where uncertain.

        Raises:
            InvalidRequest: a label is not in `classes`, or an image is unlabeled.
        """
        place = {name: i for i, name in enumerate(classes)}
        unknown = [name for name in self.classes if name not in place]
        if unknown:
            raise InvalidRequest(f"Some labels are not among the {len(classes)} classes: {first_names(unknown)}.")
        if not self.several:
            if bare := [path.name for path, labels in zip(self.paths, self.labels, strict=True) if not labels]:
                raise InvalidRequest(f"Some images are unlabeled: {first_names(bare)}; label them, or leave them out.")
            return np.array([place[labels[0]] for labels in self.labels], np.int64)
        matrix = np.zeros((len(self.paths), len(classes)), np.float32)
        for row, labels, uncertain in zip(matrix, self.labels, self.uncertain, strict=True):
            row[[place[name] for name in uncertain if name in place]] = np.nan
            row[[place[name] for name in labels]] = 1
        return matrix


def read_labeled(source: Path, labels: Path | None = None, root: Path | None = None) -> LabeledImages:
    """Read the images of a folder or of a table, labeled or not.

    Args:
        source: a folder, one split of a data set, or a CSV file.
        labels: a table that is used instead of folder names; only its rows are read.
        root: folder to which the paths of `labels` are relative; None: that of the table, or else `source`.

    Raises:
        NoImages: there is no image.
        InvalidRequest: a table has other columns, or a row that cannot be read, or none file of `labels` exists.
    """
    source = Path(source)
    if labels is not None:
        return _from_table(Path(labels), source, root)
    if source.suffix.lower() == ".csv":
        return _read_table(source)
    # next to a split; next to any other folder, a file of that name may have another purpose
    for root in (source, source.parent) if source.name in SPLITS else (source,):
        if (root / TABLE).is_file() and source.is_dir():
            return _below(_read_table(root / TABLE), source)
    paths = list_images(source)
    names = [label_of(path, source) for path in paths]
    return LabeledImages(tuple(paths), tuple((name,) if name else () for name in names), ((),) * len(paths), False)


def _from_table(table: Path, folder: Path, root: Path | None) -> LabeledImages:
    images = _read_table(table)
    bases = (Path(root),) if root is not None else (table.parent, folder)
    names = [path.relative_to(table.parent) if path.is_relative_to(table.parent) else path for path in images.paths]
    for base in bases:
        paths = tuple(base / name for name in names)
        if any(path.exists() for path in paths):
            return LabeledImages(paths, images.labels, images.uncertain, images.several)
    where = " and ".join(map(str, bases))
    raise InvalidRequest(f"None of the files in {table} exists relative to {where}, such as {names[0]}; set --root.")


def first_names(names: Sequence[str], most: int = 5) -> str:
    """Return the first few names, for a message."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _read_table(table: Path) -> LabeledImages:
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = set(reader.fieldnames or ())
            rows = list(reader)
    except FileNotFoundError as error:
        raise NoImages(f"{table} does not exist; expected a CSV file with the columns path and label.") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidRequest(f"{table} is not a CSV file in UTF-8 ({error}); save it in this format.") from error
    if "path" not in columns or not columns & {"label", "labels"}:
        raise InvalidRequest(
            f"{table} must have the column path, and label or labels, got {', '.join(sorted(columns)) or 'no columns'}."
        )
    several = "labels" in columns
    paths, labels, uncertain = [], [], []
    for number, row in enumerate(rows, 2):
        if not row["path"]:
            raise InvalidRequest(f"Line {number} of {table} has an empty path.")
        paths.append(table.parent / row["path"])
        labels.append(_split(row["labels"]) if several else tuple(filter(None, [(row["label"] or "").strip()])))
        uncertain.append(_split(row.get("uncertain") or ""))
    if not paths:
        raise NoImages(f"{table} has a header but no rows; add images.")
    return LabeledImages(tuple(paths), tuple(labels), tuple(uncertain), several)


def _split(cell: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in (cell or "").split(";") if name.strip()))


def _below(images: LabeledImages, folder: Path) -> LabeledImages:
    """Return the images whose file is in the folder."""
    root = folder.resolve()
    kept = images.keep([i for i, path in enumerate(images.paths) if root in path.resolve().parents])
    if not kept.paths:
        raise NoImages(f"The table next to {folder} lists no image of it; add rows, or remove the table.")
    return kept
