"""The images that a run trains on, and those that score the encoder.

A data folder with `train/` is read by its splits. Pretraining reads only `train/` and `unlabeled/` (`unlabelled/` works
too). The online 20-NN fits on `train/` and scores `val/`, or else `test/`. In any other folder, pretraining reads all
images.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

import numpy as np

from nnclr_hub.errors import ImageError, InvalidRequest, NoImages
from nnclr_hub.hub.layout import HELD_OUT, VALIDATION
from nnclr_hub.images.decode import image_size
from nnclr_hub.images.labels import LabeledImages, find_table, read_labeled, table_labels
from nnclr_hub.images.listing import (
    UNLABELED,
    archives_in,
    find_places,
    find_splits,
    is_image,
    list_images,
    sources_at,
    splits_in,
    walk,
)
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import Place, Source
from nnclr_hub.probe.cross_validation import stratified_folds
from nnclr_hub.remote_files import is_address, open_file_system, reading
from nnclr_hub.table_rows import LabelTable, read_rows

from .image_index import NO_LABEL, ImageIndex, Listed, current_index, digest_of, write_index

SAMPLED = 50  # images whose size is read
LEAST_LABELED = 20  # images in class folders of which a fifth is held out
SHOWN = 5  # folders in a warning
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageFiles:
    """Labeled images that score an encoder.

    paths: N files, or images in archives.
    labels: (N,) int64, index into `classes`, or -1.
    classes: names, sorted.
    """

    paths: tuple[Path | Source, ...]
    labels: np.ndarray
    classes: tuple[str, ...]

    def keep(self, rows: np.ndarray) -> ImageFiles:
        """Return the images at `rows` (int64), in that order."""
        return ImageFiles(tuple(self.paths[i] for i in rows), self.labels[rows], self.classes)

    @cached_property
    def digest(self) -> str:
        """A hash of the images in their order, by folder, name and size."""
        return digest_of(
            path.identity if isinstance(path, Source) else f"{path.parent.name}/{path.name} {path.stat().st_size}"
            for path in self.paths
        )


@dataclass(frozen=True)
class EvaluationSet:
    """A labeled set; both parts number the classes alike.

    split: the part that scores: TEST, VALIDATION or HELD_OUT of `hub.layout`, or the name of a folder.
    left_out: notes about images that do not count.
    """

    name: str
    train: ImageFiles
    test: ImageFiles
    split: str
    left_out: tuple[str, ...] = ()


def training_files(data: Sequence[Path | str], *, listed: bool = False) -> ImageIndex:
    """Return all images to pretrain on. Labels serve only to measure neighbor accuracy.

    A single class carries no information, so its images count as unlabeled.

    Args:
        data: folders, tar archives, Parquet files, their addresses, and patterns of these.
        listed: whether another process of this machine has listed them a moment ago.

    Raises:
        NoImages: one of them has no images.
        InvalidRequest: an archive is invalid.
        NoRoom: the cache folder cannot be written.
    """
    if not data:
        raise NoImages("No images were given; name a folder or archives with --data.")
    key = json.dumps([one if is_address(one) else os.path.abspath(one) for one in map(str, data)])
    places = [(number, place) for number, one in enumerate(data) for place in _places(one)]
    state = hashlib.sha256()
    for _, place in places:
        state.update(f"{place} {_version(place)}\n".encode("utf-8", "surrogateescape"))
    # the images of a folder may change without its time
    reusable = listed or not any(os.path.isdir(place) for _, place in places)
    index = current_index(key, None if listed else state.hexdigest()) if reusable else None
    if index is not None:
        return index
    return write_index(key, state.hexdigest(), (one for number, place in places for one in _listed(place, number)))


def _places(given: Path | str) -> list[str]:
    """Return the folders and archives that an argument names."""
    if not os.path.isdir(given):
        return find_places([given])
    splits = splits_in(given)
    if "train" in splits:
        relative = {name: path.relative_to(given).as_posix() for name, path in splits.items()}
        _warn_of_others(str(given), _outside(Path(given), set(splits.values())), relative)
    return [place for part in _parts(Path(given)) for place in _archives(part)] or [str(given)]


def _archives(folder: Path) -> list[str]:
    """Return the archives below a folder without images; [] if it has images."""
    archives = archives_in(folder)
    try:
        return [] if archives and list_images(folder) else [str(one) for one in archives]
    except NoImages:
        return [str(one) for one in archives]


def _parts(folder: Path) -> list[Path]:
    """Return the folders of the splits to learn from, or the folder itself if it has none."""
    splits = splits_in(folder)
    if "train" not in splits:
        return [folder]
    return [splits[part] for part in ("train", *UNLABELED) if part in splits]


def _outside(folder: Path, splits: Collection[Path]) -> Iterator[str]:
    """Yield the images of a folder that are in no split, by their paths in it."""
    without = [one.relative_to(folder).as_posix() for one in splits]
    return (path for path, _ in walk(folder, without=without) if is_image(path))


def _warn_of_others(place: str, paths: Iterable[str], splits: Mapping[str, str]) -> None:
    """Log how many images next to the split `train` are in no split: classes that only seem to be read."""
    inside, above = tuple(f"{path}/" for path in splits.values()), len(PurePosixPath(splits["train"]).parts) - 1
    parts = (PurePosixPath(path).parts[above:] for path in paths if not path.startswith(inside))
    others = Counter(names[0] if len(names) > 1 else "." for names in parts)
    if others:
        counts = ", ".join(f"{count} in {name}" for name, count in others.most_common(SHOWN))
        _warn_once(place, others.total(), counts + ", ..." * (len(others) > SHOWN))


@cache
def _warn_once(place: str, count: int, counts: str) -> None:
    log.warning(
        "%s is read by its split train, so %d images next to it are left out: %s; move them into train, or pass their "
        "folders with --data",
        place,
        count,
        counts,
    )


def _to_learn_from(place: str, images: list[Source]) -> list[Source]:
    """Return the images in the splits to learn from, or all images if an archive has no split `train`."""
    splits = find_splits(one.path.rpartition("/")[0] for one in images)
    if "train" not in splits:
        return images
    _warn_of_others(place, (one.path for one in images), splits)
    read = tuple(f"{splits[part]}/" for part in ("train", *UNLABELED) if part in splits)
    return [one for one in images if one.path.startswith(read)]


def _version(place: str) -> str:
    """Return what changes with an archive: its size and time."""
    if is_address(place):
        files, path = open_file_system(place)
        with reading(place):
            about = files.info(path)
        return str([about.get(name) for name in ("size", "mtime", "LastModified", "updated", "ETag")])
    stat = os.stat(place)
    return f"{stat.st_size} {stat.st_mtime_ns}"


def _listed(place: str, number: int) -> Iterator[Listed]:
    """List a folder by its splits, or the folders and archives at another place."""
    folder = Path(place)
    if is_address(place) or not folder.is_dir():
        for source, found in sources_at(place):
            images = _to_learn_from(place, found)
            names = (name and f"{number}/{name}" for name in _labels(source, images))
            yield Listed(source, images, list(names), number)
        return
    for part in _parts(folder):
        source, images = next(sources_at(str(part)))
        table = None if part.name in UNLABELED else find_table(part)
        if table is not None:
            found = table_labels(read_rows(table), images, part)
            labels = [own[0] if len(own) == 1 else None for own in found]
        else:
            labels = [None if part.name in UNLABELED else image.folder or None for image in images]
        # two data folders may use the same class name for different things
        yield Listed(source, images, [name and f"{folder.resolve()}/{name}" for name in labels], number)


def _labels(source: Place, images: Sequence[Source]) -> Iterator[str | None]:
    """Yield the label of each image of an archive: its `cls`, the label column of a table, or its folder."""
    for image in images:  # at an address, each text of a sample would be a request
        with_texts = source.is_local or image.row_label
        yield image.label if with_texts else image.folder or None


def sampled_sizes(paths: Sequence[Path | Source], reading: ImageReading = PLAIN) -> np.ndarray:
    """Return height and width of some of the images, evenly spread: (n, 2) int64; n is 0 if none can be opened."""
    sizes = []
    for number in range(0, len(paths), max(1, len(paths) // SAMPLED)):
        image = paths[number]
        if isinstance(image, Path) and not image.is_file():  # opening a named pipe would block
            continue
        try:
            sizes.append(image_size(image if isinstance(image, Path) else image.read(), reading)[::-1])
        except (ImageError, OSError):
            continue  # decoding will report the reason
    return np.array(sizes, np.int64).reshape(-1, 2)


def typical_side(sizes: np.ndarray) -> int:
    """Return the median short side of images (n, 2); 0 without images."""
    return int(np.median(sizes.min(axis=1))) if len(sizes) else 0


def has_labels(table: LabelTable) -> bool:
    """Return whether a table has a column of labels, and not only of other metadata."""
    return table.label_column is not None or bool({"label", "labels"} & set(read_rows(table, []).others))


def metadata_numbers(
    files: ImageIndex, folders: Sequence[Path | str], labels: LabelTable | None, columns: Sequence[str]
) -> np.ndarray:
    """Return the values of some columns of a table by image, as numbers: (N, C) int64, -1 where unknown.

    Args:
        labels: the table; None: labels.csv in the data folders, or next to their splits.

    Raises:
        InvalidRequest: there is no table, or it lacks a column.
    """
    parts = [part for one in folders if Path(one).is_dir() for part in _parts(Path(one))]
    tables = [labels] if labels else list(filter(None, map(find_table, parts)))
    if not tables:
        raise InvalidRequest(f"{', '.join(columns)}: give a table with these columns, --labels, or a labels.csv.")
    numbers = np.full((len(files), len(columns)), NO_LABEL, np.int64)
    known: list[dict[str, int]] = [{} for _ in columns]
    for table in dict.fromkeys(tables):
        rows = read_rows(table, list(columns))
        for row, cells in rows.check(rows.match(files.named()), "the data", part=True).cells.items():
            for place, column in enumerate(columns):
                if value := cells[column][:1]:
                    numbers[row, place] = known[place].setdefault(value[0], len(known[place]))
    return numbers


def evaluation_sets(folders: Sequence[Path | str], table: EvaluationSet | None = None) -> list[EvaluationSet]:
    """Return the labeled sets that can score an encoder: the table, and the data folders that have classes.

    A folder fits on `train/` and scores `val/` or `test/`. Of a folder without these two, a fifth of each class is
    held out. A table takes the place of such folders, because it says what their labels are.
    """
    sets = []
    for folder in (one for one in map(Path, folders) if one.is_dir()):
        splits = splits_in(folder)
        held_out = next((split for split in ("val", "test") if split in splits), None)
        if held_out is not None and "train" in splits:
            sets.append(evaluation_set(folder, held_out))
        elif table is None and (found := _held_out_fifth(folder)) is not None:
            sets.append(found)
    sets = [one for one in sets if len(one.train.classes) > 1] + ([table] if table else [])
    names = [one.name for one in sets]  # names of scores must be unique
    return [
        replace(one, name=f"{one.name}-{names[:number].count(one.name) + 1}") if one.name in names[:number] else one
        for number, one in enumerate(sets)
    ]


def join_parts(parts: Sequence[ImageFiles]) -> ImageFiles:
    """Return the images of several sets; classes of different sets are different."""
    first = np.cumsum([0, *(len(one.classes) for one in parts)])
    labels = [np.where(one.labels >= 0, one.labels + at, NO_LABEL) for one, at in zip(parts, first, strict=False)]
    paths = tuple(path for one in parts for path in one.paths)
    return ImageFiles(paths, np.concatenate(labels), tuple(name for one in parts for name in one.classes))


def _held_out_fifth(folder: Path) -> EvaluationSet | None:
    """Hold out a fifth of each class of a folder; None if it has no classes, or too few images."""
    try:
        files = _files(folder / "train" if (folder / "train").is_dir() else folder)
    except NoImages:
        return None
    labeled = files.keep(np.flatnonzero(files.labels >= 0))
    if len(labeled.paths) < LEAST_LABELED or len(files.classes) < 2:
        return None
    held = stratified_folds(labeled.labels) == 0
    parts = [labeled.keep(np.flatnonzero(rows)) for rows in (~held, held)]
    return EvaluationSet(folder.resolve().name, *parts, split=HELD_OUT)


def evaluation_set(folder: Path, split: str) -> EvaluationSet:
    """Read the set that fits on `folder/train` and scores `folder/split`.

    Raises:
        NoImages: one of the parts has no images.
    """
    splits = splits_in(folder)
    train = _files(splits["train"])
    test = _files(splits[split], train.classes)
    return EvaluationSet(folder.resolve().name, train, test, VALIDATION if split == "val" else split)


def _files(folder: Path, classes: tuple[str, ...] | None = None) -> ImageFiles:
    """Return the images of a folder with one label each; none of archives, or where an image has several labels.

    Args:
        classes: None: the labels that occur.
    """
    images = LabeledImages((), (), (), False) if _archives(folder) else read_labeled(folder)
    if images.several:
        log.warning("%s has several labels per image, by which a run is not scored; use nnclr eval", folder)
        images = images.keep([])
    classes = images.classes if classes is None else classes
    number = {name: i for i, name in enumerate(classes)}
    labels = [number.get(own[0], NO_LABEL) if own else NO_LABEL for own in images.labels]
    return ImageFiles(tuple(images.paths), np.array(labels, np.int64), classes)
