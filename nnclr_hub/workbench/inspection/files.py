"""The files that are inspected or compared, with their labels: those of a folder, an archive or an address."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from nnclr_hub.encoder.features import ImageFile
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.images.folder import left_out
from nnclr_hub.images.labels import find_table, table_labels
from nnclr_hub.images.listing import contents, find_images, in_tiles
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import ImageSource, PackedImage
from nnclr_hub.images.tiles import Tiling
from nnclr_hub.table_rows import LabelTable, TableRows, read_rows

LEAST_PER_CLASS = 5  # images per folder name, on average, for folder names to be labels


@dataclass(frozen=True)
class InspectedFiles:
    """N images.

    title: the last part of the given name.
    files: as they can be decoded.
    names: paths below the folder; of several archives, after the path of the archive.
    labels: one per image; None: unlabeled.
    left_out: number of other files, by suffix.
    """

    title: str
    files: list[ImageFile]
    names: list[str]
    labels: list[str | None]
    left_out: Mapping[str, int]


def inspected_files(
    given: str | Path,
    labels: LabelTable | Path | None = None,
    tiling: Tiling | None = None,
    reading: ImageReading = PLAIN,
) -> InspectedFiles:
    """List images.

    Args:
        given: see `find_images`.
        labels: a table of labels; None: see `find_table`, or else the names of the parent folders, if they have five
            images each on average.
        tiling: list tiles of the images instead of whole images, read in this way.

    Raises:
        NoImages: there is no image.
        InvalidRequest: the table lists none of them, or names one that several archives have.
    """
    sources, images = find_images([given])
    whole = [PackedImage(sources[one.source], one) for one in images]
    folder = Path(given).resolve()
    table = find_table(given, labels)
    found = _table_labels(table, whole, given) if table else _folder_labels(whole)
    if tiling is not None:
        named = {(one.source, one.path): label for one, label in zip(images, found, strict=True)}
        images = in_tiles(sources, images, tiling, reading)
        found = [named[one.source, one.path.rpartition("#")[0] if one.tile else one.path] for one in images]
    files = [Path(one) if isinstance(one, str) else one for one in contents(sources, images)]
    prefixes = _prefixes(given, sources)
    names = [prefixes[one.source] + one.path for one in images]
    others = Counter[str]()
    for one in sources:
        others.update(dict(one.left_out))
    if folder.is_dir() and not sources[0].archive:
        others.update(left_out(folder, [table.file] if table else []))
    return InspectedFiles(PurePath(folder).name, files, names, found, others)


def _prefixes(given: str | Path, sources: Sequence[ImageSource]) -> list[str]:
    """Return what precedes the names of each source's images: its path below what was given, if there are several."""
    if len(sources) == 1:
        return [""]
    root = str(given).rstrip("/")
    if not os.path.isdir(root) and not all(one.given.startswith(f"{root}/") for one in sources):  # it is a pattern
        root = os.path.commonpath([os.path.dirname(one.given) for one in sources])
    paths = [PurePath(os.path.relpath(one.given, root or ".")).as_posix() for one in sources]
    return ["" if path == "." else f"{path}/" for path in paths]


def _table_labels(table: LabelTable, images: Sequence[PackedImage], given: str | Path) -> list[str | None]:
    return [label[0] if label else None for label in table_labels(one_label_each(table), images, given)]


def one_label_each(table: LabelTable) -> TableRows:
    """Read a table with one label per image.

    Raises:
        InvalidRequest: it has several; or see `read_rows`.
    """
    rows = read_rows(table)
    if rows.labels_are_lists:
        raise InvalidRequest(f"{table} has the column labels; an inspection needs one label per image, in `label`.")
    return rows


def _folder_labels(images: Sequence[PackedImage]) -> list[str | None]:
    """Return the names of the parent folders, if they have five images each on average; else None for all."""
    names = [one.label for one in images]
    classes = {name for name in names if name}
    usable = len(classes) >= 2 and len(classes) * LEAST_PER_CLASS <= len(images)
    return names if usable else [None] * len(images)
