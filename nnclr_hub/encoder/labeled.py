"""Images with labels, from one folder per class, from archives or from a table.

A table is a CSV file with a header. `path`, or else `id`, is relative to the table. `label` contains one label, or
`labels` contains several, separated by semicolons; empty means unlabeled. `uncertain` may contain labels that are
neither present nor absent ("difficult" in VOC). Several rows of an image count as one, with the labels of all. A
`labels.csv` in a folder, or next to the parts of a data set (train, val, test), takes precedence over the folder names.
In an archive, the text `cls` of a sample of WebDataset does. A table names images in archives by their path there, or
by ARCHIVE/path if several archives have it. Paths match in all spellings, see `name_key`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import numpy as np

from nnclr_hub.csv_table import find_column, listed, name_key, read_csv
from nnclr_hub.encoder.image_folder import SPLITS, TABLE, find_splits, splits_in
from nnclr_hub.encoder.image_list import files_of, find_images, image_files, is_packed
from nnclr_hub.encoder.packed_image import ImageSource, PackedImage
from nnclr_hub.errors import InvalidRequest, NoImages

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LabelTable:
    """A table of labels, see above, and how to read it.

    file: the CSV file.
    root: folder to which its paths are relative; None: that of the table, or else that of the images.
    path_column, label_column: names of its columns; None: the usual ones.
    """

    file: Path
    root: Path | None = None
    path_column: str | None = None
    label_column: str | None = None

    def __str__(self) -> str:
        return str(self.file)

    @classmethod
    def of(cls, table: LabelTable | str | Path, root: Path | None = None) -> LabelTable:
        """Return a table, given as such or as its file."""
        return table if isinstance(table, LabelTable) else cls(Path(table), root)


@dataclass(frozen=True)
class TableRows:
    """The rows of a table, one for each image.

    paths: the path of each row, or its id if it has no path.
    ids: the id of each row; "" without one.
    labels, uncertain, several: see `LabeledImages`.
    """

    paths: tuple[str, ...]
    ids: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    uncertain: tuple[tuple[str, ...], ...]
    several: bool

    def at(self, paths: Sequence[Path | PackedImage]) -> LabeledImages:
        """Return the rows as images."""
        return LabeledImages(tuple(paths), self.labels, self.uncertain, self.several)


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


def read_labeled(
    source: str | Path, labels: LabelTable | str | Path | None = None, root: Path | None = None
) -> LabeledImages:
    """Read the images of a folder, of archives or of a table, labeled or not.

    Args:
        source: a folder, one split of a data set, a CSV file, or what else `find_images` takes.
        labels: a table that is used instead of folder names; only its rows are read.
        root: folder to which the paths of `labels` are relative; None: that of the table, or else `source`.

    Raises:
        NoImages: there is no image.
        InvalidRequest: a table has other columns, or a row that cannot be read, or none file of `labels` exists.
    """
    table = None if labels is None else LabelTable.of(labels, root)
    if is_packed(source) or not str(source):
        return _listed(source) if table is None else _packed_from_table(table, source)
    source = Path(source)
    if table is not None:
        return _from_table(table, source)
    if source.suffix.lower() == ".csv":
        return _from_table(LabelTable(source, root), source.parent)
    # next to a split; next to any other folder, a file of that name may have another purpose
    for folder in (source, source.parent) if source.name in SPLITS else (source,):
        if (folder / TABLE).is_file() and source.is_dir():
            table = LabelTable(folder / TABLE, folder)
            rows = read_table(table)
            images = _below(rows.at(_files(folder, rows.paths)), source)
            if not any(Path(str(path)).exists() for path in images.paths) and _holds_archives(source):
                return _packed_from_table(LabelTable(folder / TABLE), source)
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


def _packed_from_table(table: LabelTable, source: str | Path) -> LabeledImages:
    """Return the rows of a table, whose paths are those in the archives."""
    rows = read_table(table)
    packed = [one for one in image_files([source]) if isinstance(one, PackedImage)]
    named = rows_of(table, rows.paths, packed)
    found = {name: one for name, one in zip(named, packed, strict=True) if name is not None}
    missing = [name for name in rows.paths if name not in found]
    if missing:
        raise InvalidRequest(
            f"{source} has no image for {len(missing)} of {len(rows.paths)} rows of {table}, such as {missing[0]}; "
            "write the paths as they are in the archive."
        )
    return rows.at([found[name] for name in rows.paths])


def rows_of(table: LabelTable, rows: Iterable[str], images: Sequence[PackedImage]) -> list[str | None]:
    """Return the row that names each image of an archive: by its path there, or by that after the archive's path.

    Args:
        rows: the paths in the table; of the archive's path, any number of last parts is enough.

    Raises:
        InvalidRequest: a row names images in several archives, or the table has a root.
    """
    if table.root is not None and images:
        raise InvalidRequest(
            f"--root {table.root} does not apply to archives and addresses; write the paths of {table} as they are "
            "there."
        )
    wanted = {name_key(row): row for row in rows}
    first = {row.partition("/")[0] for row in wanted}
    prefixes: dict[ImageSource, list[str]] = {}
    owners: dict[str, ImageSource] = {}
    found: list[str | None] = []
    for one in images:
        if one.source not in prefixes:
            parts = PurePosixPath(name_key(one.source.given)).parts
            prefixes[one.source] = [f"{'/'.join(parts[i:])}/" for i, part in enumerate(parts) if part in first]
        path = name_key(one.image.path)
        names = [name for prefix in (*prefixes[one.source], "") if (name := prefix + path) in wanted]
        for name in names:
            if (other := owners.setdefault(name, one.source)) != one.source:
                raise InvalidRequest(
                    f"{table} lists {name}, which is in {other.given} and in {one.source.given}; write the path of the "
                    f"archive before it, such as {'/'.join(PurePosixPath(other.given).parts[-2:])}/{one.image.path}."
                )
        found.append(wanted[names[0]] if names else None)
    return found


def _holds_archives(folder: Path) -> bool:
    """Return whether the images of a folder are in archives."""
    try:
        return folder.is_dir() and find_images([folder])[0][0].archive
    except NoImages:
        return False


def _from_table(table: LabelTable, folder: Path) -> LabeledImages:
    rows = read_table(table)
    bases = dict.fromkeys((table.root,) if table.root is not None else (table.file.parent, folder))
    for base in bases:
        paths = _files(base, rows.paths)
        if any(path.exists() for path in paths):
            return rows.at(paths)
    if _holds_archives(folder):
        return _packed_from_table(table, folder)
    raise InvalidRequest(
        f"None of the files in {table} exists in {' or '.join(map(str, bases))}, such as {rows.paths[0]}; set --root "
        "to the folder of their paths."
    )


def _files(base: Path, names: Sequence[str]) -> list[Path]:
    """Return the files that a table names; of a file that does not exist, the path as it is written there."""

    @cache
    def names_in(folder: Path) -> dict[str, str]:
        return {name_key(name): name for name in os.listdir(folder)} if folder.is_dir() else {}

    def file_of(name: str) -> Path:
        path = Path(base, name)
        if os.path.lexists(path):
            return path
        found = base
        for part in PurePosixPath(name_key(name)).parts:
            found /= names_in(found).get(part, part)
        return found if os.path.lexists(found) else path

    return [file_of(name) for name in names]


def table_labels(
    table: LabelTable, rows: TableRows, images: Sequence[PackedImage], given: str | Path
) -> list[tuple[str, ...]]:
    """Return the labels of each image by a table; see `rows_of` for how it names images in archives.

    Args:
        rows: what `read_table` returned.
        images: what `find_images` returned for `given`.

    Raises:
        InvalidRequest: the table names an image that several archives have, or lists none of them; names where it
            looked.
    """
    labels = dict(zip(rows.paths, rows.labels, strict=True))
    packed = [one for one in images if one.source.archive or not one.source.is_local]
    names = dict(zip(packed, rows_of(table, labels, packed), strict=True))
    for base in (table.root,) if table.root is not None else (table.file.parent, Path(given)):
        of_file = {_place(base, name_key(name)): name for name in labels} if len(packed) < len(images) else {}
        found = [
            names[one] if one in names else of_file.get(_place(one.source.absolute, one.image.path)) for one in images
        ]
        if any(found):
            if lost := [name for name in labels if name not in set(found)]:
                log.warning("%d rows of %s name no image of %s, such as %s", len(lost), table, given, lost[0])
            return [labels[one] if one else () for one in found]
    where = table.root if table.root is not None else f"{table.file.parent} and {given}"
    raise InvalidRequest(
        f"{table} lists no image of {given}. Its first path is {next(iter(labels), 'missing')}, "
        + (
            "but the paths in the archives or at the address are others; write those."
            if packed
            else f"relative to {where}; set --root."
        )
    )


def _place(base: str | Path, path: str) -> str:
    return name_key(str(Path(base, path).resolve()))


def first_names(names: Sequence[str], most: int = 5) -> str:
    """Return the first few names, for a message."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def read_table(table: LabelTable) -> TableRows:
    """Read the rows of a table, whose paths are not looked up.

    Raises:
        NoImages, InvalidRequest: see `read_labeled`.
    """
    file = table.file
    if not file.exists():
        raise NoImages(f"{file} does not exist; expected a CSV file with the columns path and label.")
    columns, rows = read_csv(file, *filter(None, (table.path_column, table.label_column)), "path", "label", "labels")
    path_column = find_column(file, columns, table.path_column, "path", "id")
    label_column = find_column(file, columns, table.label_column, "labels", "label")
    if path_column is None or label_column is None:
        raise InvalidRequest(
            f"{file} must have the column path (or id), and label (or labels); it has {listed(columns)}. Name others "
            "with --path-column and --label-column."
        )
    several = label_column == "labels"
    found: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {}
    for number, row in enumerate(rows, 2):
        id = "" if table.path_column else row.get("id", "")
        path = row[path_column] or id
        if not path:
            raise InvalidRequest(f"Line {number} of {file} has an empty {path_column}.")
        key, uncertain = name_key(path), _split(row.get("uncertain", ""))
        labels = _split(row[label_column]) if several else tuple(filter(None, [row[label_column].strip()]))
        _, _, before, doubted = found.get(key, ("", "", (), ()))
        if not several and before and labels and before != labels:
            raise InvalidRequest(
                f"{file} gives {path} the label {before[0]} and the label {labels[0]}; keep one of the rows."
            )
        found[key] = path, id, tuple(dict.fromkeys((*before, *labels))), tuple(dict.fromkeys((*doubted, *uncertain)))
    if not found:
        raise NoImages(f"{file} has a header but no rows; add images.")
    if len(found) < len(rows):
        log.warning("%s lists some images again in %d rows; each image counts once", file, len(rows) - len(found))
    paths, ids, every, unsure = zip(*found.values(), strict=True)
    return TableRows(paths, ids, every, unsure, several)


def _split(cell: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in cell.split(";") if name.strip()))


def _below(images: LabeledImages, folder: Path) -> LabeledImages:
    """Return the images whose file is in the folder."""
    root = folder.resolve()
    kept = images.keep([i for i, path in enumerate(images.paths) if root in Path(str(path)).resolve().parents])
    if not kept.paths:
        raise NoImages(f"The table next to {folder} lists no image of it; add rows, or remove the table.")
    return kept
