"""Images with labels, from one folder per class, from archives or from a table.

A table is a CSV file with a header. `path` is relative to the table. `label` contains one label, or `labels` contains
several, separated by semicolons; empty means unlabeled. `uncertain` may contain labels that are neither present nor
absent ("difficult" in VOC). Several rows of an image count as one, with the labels of all. A `labels.csv` in a folder,
or next to the parts of a data set (train, val, test), takes precedence over the folder names. In an archive, the text
`cls` of a sample of WebDataset does. A table names images in archives by their path there, or by ARCHIVE/path if
several archives have it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from nnclr_hub.csv_table import read_csv
from nnclr_hub.encoder.image_folder import SPLITS, TABLE, find_splits, splits_in
from nnclr_hub.encoder.image_list import files_of, find_images, image_files, is_packed
from nnclr_hub.encoder.packed_image import ImageSource, PackedImage
from nnclr_hub.errors import InvalidRequest, NoImages

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LabeledImages:
    """N images with labels.

    paths: the files, or the images in an archive.
    labels: the labels of each image; () if unlabeled.
    uncertain: labels of each image that count neither as present nor as absent.
    several: whether an image may have more than one label.
    """

    paths: tuple[Path | PackedImage, ...]
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

    def names(self, table: Path) -> list[Path]:
        """Return the paths as a table spells them."""
        paths = [Path(str(path)) for path in self.paths]
        return [path.relative_to(table.parent) if path.is_relative_to(table.parent) else path for path in paths]

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


def read_labeled(source: str | Path, labels: Path | None = None, root: Path | None = None) -> LabeledImages:
    """Read the images of a folder, of archives or of a table, labeled or not.

    Args:
        source: a folder, one split of a data set, a CSV file, or what else `find_images` takes.
        labels: a table that is used instead of folder names; only its rows are read.
        root: folder to which the paths of `labels` are relative; None: that of the table, or else `source`.

    Raises:
        NoImages: there is no image.
        InvalidRequest: a table has other columns, or a row that cannot be read, or none file of `labels` exists.
    """
    if is_packed(source) or not str(source):
        return _listed(source) if labels is None else _packed_from_table(Path(labels), source, root)
    source = Path(source)
    if labels is not None:
        return _from_table(Path(labels), source, root)
    if source.suffix.lower() == ".csv":
        return _from_table(source, source.parent, root)
    # next to a split; next to any other folder, a file of that name may have another purpose
    for root in (source, source.parent) if source.name in SPLITS else (source,):
        if (root / TABLE).is_file() and source.is_dir():
            images = _below(read_table(root / TABLE), source)
            if not any(Path(str(path)).exists() for path in images.paths) and _holds_archives(source):
                return _packed_from_table(root / TABLE, source, None)
            return images
    return _listed(source)


def _listed(source: str | Path) -> LabeledImages:
    """Return images with the labels of their folders or samples."""
    folder = Path(source)
    if folder.is_file() and not is_packed(source):
        raise NoImages(f"{source} is a file; expected a folder or an archive of images, or a table .csv of labels.")
    sources, images = find_images([source])
    names = [PackedImage(sources[one.source], one).label for one in images]
    labels = tuple((name,) if name else () for name in names)
    return LabeledImages(tuple(files_of(sources, images)), labels, ((),) * len(images), False)


def read_splits(data: str | Path, *wanted: str) -> dict[str, LabeledImages]:
    """Return the images of the wanted splits that a data set has, in its folders or inside archives; see `find_splits`.

    Raises:
        NoImages, InvalidRequest: see `read_labeled`.
    """
    if not is_packed(data):
        return {name: read_labeled(folder) for name, folder in splits_in(data).items() if name in wanted}
    images = read_labeled(data)
    folders = [one.image.path.rpartition("/")[0] for one in images.paths if isinstance(one, PackedImage)]
    return {
        name: images.keep([i for i, folder in enumerate(folders) if f"{folder}/".startswith(f"{path}/")])
        for name, path in find_splits(folders).items()
        if name in wanted
    }


def _packed_from_table(table: Path, source: str | Path, root: Path | None) -> LabeledImages:
    """Return the rows of a table, whose paths are those in the archives."""
    refuse_root(root, table)
    images = read_table(table)
    names = [path.as_posix() for path in images.names(table)]
    packed = [one for one in image_files([source]) if isinstance(one, PackedImage)]
    rows = zip(rows_of(table, names, packed), packed, strict=True)
    found = {name: one for name, one in rows if name is not None}
    missing = [name for name in names if name not in found]
    if missing:
        raise InvalidRequest(
            f"{source} has no image for {len(missing)} of {len(names)} rows of {table}, such as {missing[0]}; write "
            "the paths as they are in the archive."
        )
    return LabeledImages(tuple(found[name] for name in names), images.labels, images.uncertain, images.several)


def rows_of(table: Path, rows: Iterable[str], images: Sequence[PackedImage]) -> list[str | None]:
    """Return the row that names each image of an archive: by its path there, or by that after the archive's path.

    Args:
        rows: the paths in the table; of the archive's path, any number of last parts is enough.

    Raises:
        InvalidRequest: a row names images in several archives.
    """
    wanted = set(rows)
    first = {row.partition("/")[0] for row in wanted}
    prefixes: dict[ImageSource, list[str]] = {}
    owners: dict[str, ImageSource] = {}
    found: list[str | None] = []
    for one in images:
        if one.source not in prefixes:
            parts = PurePosixPath(one.source.given).parts
            prefixes[one.source] = [f"{'/'.join(parts[i:])}/" for i, part in enumerate(parts) if part in first]
        names = [name for prefix in (*prefixes[one.source], "") if (name := prefix + one.image.path) in wanted]
        for name in names:
            if (other := owners.setdefault(name, one.source)) != one.source:
                raise InvalidRequest(
                    f"{table} lists {name}, which is in {other.given} and in {one.source.given}; write the path of the "
                    f"archive before it, such as {'/'.join(PurePosixPath(other.given).parts[-2:])}/{one.image.path}."
                )
        found.append(names[0] if names else None)
    return found


def _holds_archives(folder: Path) -> bool:
    """Return whether the images of a folder are in archives."""
    try:
        return folder.is_dir() and find_images([folder])[0][0].archive
    except NoImages:
        return False


def refuse_root(root: Path | None, table: Path) -> None:
    """Refuse a folder for the paths of a table whose images are in archives or at an address."""
    if root is not None:
        raise InvalidRequest(
            f"--root {root} does not apply to archives and addresses; write the paths of {table} as they are there."
        )


def _from_table(table: Path, folder: Path, root: Path | None) -> LabeledImages:
    images = read_table(table)
    bases = (Path(root),) if root is not None else (table.parent, folder)
    names = images.names(table)
    for base in dict.fromkeys(bases):
        paths = tuple(base / name for name in names)
        if any(path.exists() for path in paths):
            return LabeledImages(paths, images.labels, images.uncertain, images.several)
    if _holds_archives(folder):
        return _packed_from_table(table, folder, root)
    where = " or ".join(dict.fromkeys(map(str, bases)))
    raise InvalidRequest(
        f"None of the files in {table} exists in {where}, such as {names[0]}; set --root to the folder of their paths."
    )


def first_names(names: Sequence[str], most: int = 5) -> str:
    """Return the first few names, for a message."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def read_table(table: Path) -> LabeledImages:
    """Read the rows of a table, whose paths are not looked up.

    Raises:
        NoImages, InvalidRequest: see `read_labeled`.
    """
    if not table.exists():
        raise NoImages(f"{table} does not exist; expected a CSV file with the columns path and label.")
    columns, rows = read_csv(table, "path")
    if "path" not in columns or not {"label", "labels"} & set(columns):
        raise InvalidRequest(
            f"{table} must have the column path, and label or labels; "
            f"got {', '.join(map(repr, sorted(columns))) or 'no columns'}."
        )
    several = "labels" in columns
    found: dict[Path, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for number, row in enumerate(rows, 2):
        if not row["path"]:
            raise InvalidRequest(f"Line {number} of {table} has an empty path.")
        path, uncertain = table.parent / row["path"], _split(row.get("uncertain", ""))
        labels = _split(row["labels"]) if several else tuple(filter(None, [row["label"].strip()]))
        before, doubted = found.get(path, ((), ()))
        if not several and before and labels and before != labels:
            raise InvalidRequest(
                f"{table} gives {row['path']} the label {before[0]} and the label {labels[0]}; keep one of the rows."
            )
        found[path] = tuple(dict.fromkeys((*before, *labels))), tuple(dict.fromkeys((*doubted, *uncertain)))
    if not found:
        raise NoImages(f"{table} has a header but no rows; add images.")
    if len(found) < len(rows):
        log.warning("%s lists some images again in %d rows; each image counts once", table, len(rows) - len(found))
    every, unsure = zip(*found.values(), strict=True)
    return LabeledImages(tuple(found), every, unsure, several)


def _split(cell: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in cell.split(";") if name.strip()))


def _below(images: LabeledImages, folder: Path) -> LabeledImages:
    """Return the images whose file is in the folder."""
    root = folder.resolve()
    kept = images.keep([i for i, path in enumerate(images.paths) if root in Path(str(path)).resolve().parents])
    if not kept.paths:
        raise NoImages(f"The table next to {folder} lists no image of it; add rows, or remove the table.")
    return kept
