"""Images with their labels: from a folder a class, or from a table.

A table is a CSV file with a header. `path` is relative to the table; `label` holds one label, or `labels`
several, separated by semicolons; empty is unlabeled. `uncertain` may hold labels that are neither there nor
absent (what VOC calls difficult). A folder with a `labels.csv` in it is read by that, and so are the parts of a
data set (train, val, test) with one beside them.
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
    """N images.

    paths: their files.
    labels: of each, its labels; () for one without.
    uncertain: of each, labels that do not count either way.
    several: whether an image may have more than one label.
    """

    paths: tuple[Path, ...]
    labels: tuple[tuple[str, ...], ...]
    uncertain: tuple[tuple[str, ...], ...]
    several: bool

    def keep(self, index: Sequence[int] | np.ndarray) -> LabeledImages:
        """Those at `index`, in that order."""
        return LabeledImages(
            tuple(self.paths[i] for i in index),
            tuple(self.labels[i] for i in index),
            tuple(self.uncertain[i] for i in index),
            self.several,
        )

    @property
    def labeled(self) -> LabeledImages:
        """Those with a label; with several labels an image, all: none of them is an answer too."""
        return self if self.several else self.keep([i for i, labels in enumerate(self.labels) if labels])

    @property
    def classes(self) -> tuple[str, ...]:
        """Every label that occurs, sorted."""
        return tuple(sorted({label for labels in self.labels for label in labels}))

    def numbers(self, classes: Sequence[str]) -> np.ndarray:
        """Labels as numbers: (N,) int64 places in `classes`; or, with several an image, (N, C) float32 of zeros
        and ones, NaN where uncertain.

        Raises:
            InvalidRequest: a label that `classes` lacks, or an image without one.
        """
        place = {name: i for i, name in enumerate(classes)}
        unknown = [name for name in self.classes if name not in place]
        if unknown:
            raise InvalidRequest(f"These labels are none of the {len(classes)} classes: {some(unknown)}.")
        if not self.several:
            if bare := [path.name for path, labels in zip(self.paths, self.labels, strict=True) if not labels]:
                raise InvalidRequest(f"These images have no label: {some(bare)}; label them, or leave them out.")
            return np.array([place[labels[0]] for labels in self.labels], np.int64)
        matrix = np.zeros((len(self.paths), len(classes)), np.float32)
        for row, labels, uncertain in zip(matrix, self.labels, self.uncertain, strict=True):
            row[[place[name] for name in uncertain if name in place]] = np.nan
            row[[place[name] for name in labels]] = 1
        return matrix


def read_labeled(source: Path) -> LabeledImages:
    """The images of a folder or of a table, labeled or not.

    Args:
        source: a folder, one split of a data folder, or a CSV file.

    Raises:
        NoImages: there is nothing to read.
        InvalidRequest: a table without the columns, or with rows that cannot be read.
    """
    source = Path(source)
    if source.suffix.lower() == ".csv":
        return _read_table(source)
    # beside a part of a data set; beside any other folder a file of that name may be anything
    for root in (source, source.parent) if source.name in SPLITS else (source,):
        if (root / TABLE).is_file() and source.is_dir():
            return _below(_read_table(root / TABLE), source)
    paths = list_images(source)
    names = [label_of(path, source) for path in paths]
    return LabeledImages(tuple(paths), tuple((name,) if name else () for name in names), ((),) * len(paths), False)


def some(names: Sequence[str], most: int = 5) -> str:
    """The first few, for a message."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _read_table(table: Path) -> LabeledImages:
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = set(reader.fieldnames or ())
            rows = list(reader)
    except FileNotFoundError as error:
        raise NoImages(f"{table} does not exist: give a CSV file with the columns path and label.") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidRequest(f"{table} cannot be read as CSV in UTF-8 ({error}): save it as that.") from error
    if "path" not in columns or not columns & {"label", "labels"}:
        raise InvalidRequest(
            f"{table} has the columns {', '.join(sorted(columns)) or '(none)'}: it needs path, and label or labels."
        )
    several = "labels" in columns
    paths, labels, uncertain = [], [], []
    for number, row in enumerate(rows, 2):
        if not row["path"]:
            raise InvalidRequest(f"{table}, line {number}, names no path.")
        paths.append(table.parent / row["path"])
        labels.append(_split(row["labels"]) if several else tuple(filter(None, [(row["label"] or "").strip()])))
        uncertain.append(_split(row.get("uncertain") or ""))
    if not paths:
        raise NoImages(f"{table} has a header and no rows: list images in it.")
    return LabeledImages(tuple(paths), tuple(labels), tuple(uncertain), several)


def _split(cell: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in (cell or "").split(";") if name.strip()))


def _below(images: LabeledImages, folder: Path) -> LabeledImages:
    """Those whose file lies in the folder."""
    root = folder.resolve()
    kept = images.keep([i for i, path in enumerate(images.paths) if root in path.resolve().parents])
    if not kept.paths:
        raise NoImages(f"The table beside {folder} lists no image in it: add rows, or remove the table.")
    return kept
