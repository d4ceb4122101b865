"""Images with labels, from one folder per class, from archives or from a table.

A table is a CSV file with a header, see `table_rows`. `label` contains one label, or `labels` contains several,
separated by semicolons; empty means unlabeled. `uncertain` may contain labels that are neither present nor absent
("difficult" in VOC). Several rows of an image count as one, with the labels of all. A `labels.csv` in a folder, or next
to the parts of a data set (train, val, test), takes precedence over the folder names, see `find_table`. In an archive,
the text `cls` of a sample of WebDataset does.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnclr_hub.csv_table import name_key
from nnclr_hub.errors import InvalidRequest, NoImages
from nnclr_hub.images.listing import LABELS_FILE, SPLITS, find_images, find_splits, is_packed, splits_in
from nnclr_hub.images.source import Source
from nnclr_hub.table_rows import LABEL, UNCERTAIN, LabelTable, Named, TableRows, read_rows


@dataclass(frozen=True)
class LabeledImages:
    """N images with labels.

    paths: the files, or the images in an archive.
    labels: the labels of each image; () if unlabeled.
    uncertain: labels of each image that count neither as present nor as absent.
    several: whether an image may have more than one label.
    """

    paths: tuple[Path | Source, ...]
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


def read_labeled(source: str | Path, labels: LabelTable | str | Path | None = None) -> LabeledImages:
    """Read the images of a folder, of archives or of a table, labeled or not.

    Args:
        source: a folder, one split of a data set, a CSV file, or what else `find_images` takes.
        labels: a table that is used instead of folder names; only its rows are read.

    Raises:
        NoImages: there is no image.
        InvalidRequest: a table has other columns, or a row that cannot be read, or names no image.
    """
    table = find_table(source, labels)
    if table is None and not is_packed(source) and Path(source).suffix.lower() == ".csv":
        table = LabelTable(Path(source))
    return _listed(source) if table is None else read_from_table(table, [source], elsewhere=labels is not None)


def find_table(source: str | Path, labels: LabelTable | str | Path | None = None) -> LabelTable | None:
    """Return the table with the labels of images; None: the names of their folders and samples are their labels.

    It is the given table, or else labels.csv in the folder. For a split, it may also be next to the folder; next to any
    other folder, a file of that name may have another purpose.
    """
    if labels is not None:
        return LabelTable.of(labels)
    folder = Path(source)
    if not str(source) or is_packed(source) or not folder.is_dir():
        return None
    places = (folder, folder.absolute().parent) if folder.name in SPLITS else (folder,)
    return next((LabelTable(place / LABELS_FILE) for place in places if (place / LABELS_FILE).is_file()), None)


def table_labels(rows: TableRows, images: Sequence[Source], source: str | Path) -> list[tuple[str, ...]]:
    """Return the labels by a table of each image that `find_images` returned for `source`."""
    found = rows.check(rows.match(_named(images)), source, part=_lists_other_parts(rows.table, source))
    return [found.labels(i) for i in range(len(images))]


def _named(images: Iterable[Source]) -> Iterator[Named[int]]:
    return (Named(i, one.place.absolute, one.path) for i, one in enumerate(images))


def _lists_other_parts(table: LabelTable, source: str | Path) -> bool:
    """Return whether a table is next to the parts of a data set, so that it lists the images of all parts."""
    folder = Path(source).absolute()
    return folder.name in SPLITS and table.file.absolute() == folder.parent / LABELS_FILE


def _listed(source: str | Path) -> LabeledImages:
    folder = Path(source)
    if folder.is_file() and not is_packed(source):
        raise NoImages(f"{source} is a file; expected a folder or an archive of images, or a table .csv of labels.")
    images = find_images([source])
    labels = tuple((name,) if (name := one.label) else () for one in images)
    return LabeledImages(tuple(one.plain for one in images), labels, ((),) * len(images), False)


def read_splits(data: str | Path, *wanted: str) -> dict[str, LabeledImages]:
    """Return the images of the wanted splits that a data set has, in its folders or in archives; see `find_splits`."""
    if not is_packed(data):
        return {name: read_labeled(folder) for name, folder in splits_in(data).items() if name in wanted}
    images = read_labeled(data)
    folders = [one.path.rpartition("/")[0] for one in images.paths if isinstance(one, Source)]
    return {
        name: images.keep([i for i, folder in enumerate(folders) if f"{folder}/".startswith(f"{path}/")])
        for name, path in find_splits(folders).items()
        if name in wanted
    }


def read_from_table(table: LabelTable, sources: Sequence[str | Path], *, elsewhere: bool = True) -> LabeledImages:
    """Return the images that a table names, in its order.

    Args:
        sources: where they are, see `find_images`; or the table itself, which may name any file of this machine.
        elsewhere: if it names no image of the sources, take the files that it names elsewhere.

    Raises:
        NoImages, InvalidRequest: see `read_labeled`.
    """
    rows = read_rows(table)
    files, found = [], rows.match(_named([]))
    for files, named in _candidates(table, rows, sources, elsewhere):  # noqa: B007
        found = rows.match(named)
        if found.cells:
            break
    rows.check(found, ", ".join(map(str, sources)), part=all(_lists_other_parts(table, one) for one in sources))
    cells = found.cells.values()
    return LabeledImages(
        tuple(files[i] for i in found.cells),
        tuple(own[LABEL] for own in cells),
        tuple(own.get(UNCERTAIN, ()) for own in cells),
        rows.labels_are_lists,
    )


def _candidates(
    table: LabelTable, rows: TableRows, sources: Sequence[str | Path], elsewhere: bool
) -> Iterator[tuple[Sequence[Path | Source], Iterable[Named[int]]]]:
    """Yield the images that a table may name: those of the source, other files, and archives next to the table."""

    def listed(places: Sequence[str | Path]) -> tuple[Sequence[Path | Source], Iterable[Named[int]]]:
        images = find_images(places)
        return [one.plain for one in images], _named(images)

    is_source = [Path(one) for one in sources] == [table.file]
    if not is_source:
        yield listed(sources)
    if is_source or elsewhere:
        files = list(_files(table.root or table.file.parent, (row.path for row in rows.rows)))
        yield files, (Named(i, os.path.realpath(path.parent), path.name) for i, path in enumerate(files))
    with suppress(NoImages):
        if is_source:
            yield listed([table.file.parent])


def _files(base: Path, names: Iterable[str]) -> Iterator[Path]:
    """Yield the files that exist of those with these names, as written, composed or decomposed."""
    for name in names:
        spellings = (name, *(unicodedata.normalize(form, name_key(name)) for form in ("NFC", "NFD")))
        yield from [path for one in dict.fromkeys(spellings) if os.path.lexists(path := Path(base, one))][:1]


def first_names(names: Sequence[str], most: int = 5) -> str:
    """Return the first few names, for a message."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
