"""The images that a run learns from: which ones they are, and an index of them on disk.

A data folder with `train/` is read by its splits. Pretraining reads only `train/` and `unlabeled/` (`unlabelled/` works
too). In any other folder, pretraining reads all images.

ImageIndex has the images as columns on disk, which are memory-mapped. A list of paths would take some 300 bytes per
image in each process. The columns are written while folders and archives are listed, one at a time, so neither listing
nor training needs memory in proportion to the set. All processes of a machine map the same files.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, overload

import numpy as np

from nnclr_hub.cache import cache_folder, lock_folder, not_writable
from nnclr_hub.errors import ImageError, InvalidRequest, NoImages, NoRoom
from nnclr_hub.images import parquet as image_parquet
from nnclr_hub.images.decode import image_size
from nnclr_hub.images.labels import find_table, table_labels
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
    warn_once,
)
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import TABLE, Place, Source
from nnclr_hub.remote_files import is_address, open_file_system, reading
from nnclr_hub.table_rows import LabelTable, Named, read_rows

FORMAT = 1
COLUMNS = {"source": np.int32, "offset": np.int64, "size": np.int64, "label": np.int32, "name_end": np.int64}
LOOSE = -1  # offset of a separate file
NO_LABEL = -1
BLOCK = 4096  # most images of a block
LARGE = 5_000_000  # images, above which the images of a run must not change
SAMPLED = 50  # images whose size is read
SHOWN = 5  # folders in a warning


@dataclass(frozen=True)
class Listed:
    """A folder or archive with its images.

    source: the folder or archive.
    images: its images, in order.
    labels: the label of each image; None where it is unknown.
    folder: number of the --data that names it.
    """

    source: Place
    images: Sequence[Source]
    labels: Sequence[str | None]
    folder: int


class ImageIndex(Sequence[Path | Source]):
    """The images in a folder of columns; `write_index` makes it.

    Args:
        folder: where the columns are.
    """

    def __init__(self, folder: Path) -> None:
        self._rows: np.ndarray | None = None  # (N,) int64, the images to use, in order; None: all
        self._about = json.loads((folder / "index.json").read_text())
        self._sources = [Place(**one) for one in self._about["sources"]]
        self._columns = {name: _mapped(folder / name, kind) for name, kind in COLUMNS.items()}
        self._names = _mapped(folder / "names", np.uint8)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels, sorted."""
        return tuple(self._about["classes"])

    @cached_property
    def labels(self) -> np.ndarray:
        """(N,) int32, index into `classes`, or -1."""
        return self._columns["label"] if self._rows is None else self._columns["label"][self._rows]

    @cached_property
    def folders(self) -> np.ndarray:
        """(F,) int64, number of images of each --data, which follow one another."""
        counts = np.array(self._about["folders"], np.int64)
        if self._rows is None:
            return counts
        return np.bincount(np.searchsorted(np.cumsum(counts), self._rows, side="right"), minlength=len(counts))

    @property
    def blocks(self) -> np.ndarray | None:
        """Numbers of images that are read together, as those of an archive; None if all are separate files."""
        if all(not one.archive for one in self._sources):
            return None
        ends = np.array(self._about["blocks"], np.int64)
        if self._rows is not None:
            ends = np.unique(np.searchsorted(self._rows, ends))
        return np.diff(ends[ends > 0], prepend=0)

    @property
    def bytes(self) -> int:
        """Total size of all images, as far as it is known."""
        return int(self._about["bytes"])

    def keep(self, rows: np.ndarray) -> ImageIndex:
        """Return the images at `rows` (int64, rising) of this index."""
        if len(rows) == len(self):
            return self
        kept = copy.copy(self)  # with its open files, since another program may have replaced those in the folder
        for name, derived in vars(ImageIndex).items():
            if isinstance(derived, cached_property):
                vars(kept).pop(name, None)
        kept._rows = rows if self._rows is None else self._rows[rows]
        return kept

    def __len__(self) -> int:
        return int(self._about["images"]) if self._rows is None else len(self._rows)

    @overload
    def __getitem__(self, row: int) -> Path | Source: ...
    @overload
    def __getitem__(self, row: slice) -> list[Path | Source]: ...
    def __getitem__(self, row: int | slice) -> Any:
        if isinstance(row, slice):
            return [self[one] for one in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        return self._listed(row % len(self)).plain

    @property
    def is_local(self) -> bool:
        """Whether all images are on this machine."""
        return all(one.is_local for one in self._sources)

    def named(self) -> Iterator[Named[int]]:
        """Yield each image as rows of a table name it."""
        for row in range(len(self)):
            image = self._listed(row)
            yield Named(row, image.place.absolute, image.path)

    @cached_property
    def digest(self) -> str:
        """A hash of the images in their order, by folder, name and size: queue rows store positions in that list."""
        if len(self) <= LARGE:
            return digest_of(self._lines())
        digest = hashlib.sha256(self._names.data)
        for name in ("size", "name_end"):
            digest.update(self._columns[name].data)
        return digest.hexdigest()

    @cached_property
    def fingerprints(self) -> np.ndarray:
        """A number for each image by its folder, name and size: (N,) int64; empty for a very large set."""
        if len(self) > LARGE:
            return np.zeros(0, np.int64)
        digests = (hashlib.blake2b(_encoded(line), digest_size=8).digest() for line in self._lines())
        return np.frombuffer(b"".join(digests), "<i8").copy()

    def _lines(self) -> Iterator[str]:
        for row in range(len(self)):
            image = self._listed(row)
            *parents, name = image.path.rsplit("/", 2)
            yield f"{parents[-1] if parents else PurePath(image.place.given).name}/{name} {image.size}"

    def _listed(self, row: int) -> Source:
        place = row if self._rows is None else int(self._rows[row])
        source, offset, size, end = (
            int(self._columns[name][place]) for name in ("source", "offset", "size", "name_end")
        )
        start = int(self._columns["name_end"][place - 1]) if place else 0
        path = self._names[start:end].tobytes().decode("utf-8", "surrogateescape")
        return Source(self._sources[source], path, size, 0.0, None if offset == LOOSE else offset)


def digest_of(lines: Iterable[str]) -> str:
    """Hash lines, as checkpoints of all versions do."""
    digest, first = hashlib.sha256(), True
    for line in lines:
        digest.update(_encoded(line if first else f"\n{line}"))
        first = False
    return digest.hexdigest()


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _mapped(path: Path, kind: type) -> np.ndarray:
    return np.memmap(path, kind, "r") if path.stat().st_size else np.zeros(0, kind)  # an empty file cannot be mapped


def write_index(key: str, state: str, listings: Iterable[Listed]) -> ImageIndex:
    """Write the columns of some folders and archives into the cache folder, and open them.

    Another program that lists the same folders replaces them, and the index that is open keeps its files.

    Args:
        key: identifies the set; an earlier index under it is replaced.
        state: identifies what it contains now; see `current_index`.
        listings: the folders and archives; those of a --data follow one another.
    """
    folder = _folder_of(key)
    half = folder.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    try:
        half.mkdir(parents=True)
    except OSError as error:
        raise not_writable(error) from error
    try:
        about = _write_columns(half, listings)
        (half / "index.json").write_text(json.dumps({"state": state, **about}))
        with lock_folder(folder):
            shutil.rmtree(folder, ignore_errors=True)
            half.rename(folder)
            return ImageIndex(folder)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def current_index(key: str, state: str | None = None) -> ImageIndex | None:
    """Open the index that was written under a key, if there is one, with this state unless it is None."""
    folder = _folder_of(key)
    with ExitStack() as stack:
        with suppress(NoRoom):  # an index in a cache that cannot be written is not replaced
            stack.enter_context(lock_folder(folder))
        try:
            about = json.loads((folder / "index.json").read_text())
            return ImageIndex(folder) if state is None or about["state"] == state else None
        except (OSError, ValueError):
            return None


def _folder_of(key: str) -> Path:
    return cache_folder() / "indexes" / hashlib.sha256(f"{FORMAT} {key}".encode()).hexdigest()[:24]


def _write_columns(half: Path, listings: Iterable[Listed]) -> dict[str, Any]:
    sources, blocks, folders = list[Place](), list[int](), list[int]()
    numbers: dict[str, int] = {}  # number of each label, in the order of the listings
    images = names_end = total = 0
    with ExitStack() as stack:
        columns = {name: stack.enter_context((half / name).open("wb")) for name in COLUMNS}
        names = stack.enter_context((half / "names").open("wb"))
        for one in listings:
            texts = [_encoded(image.path) for image in one.images]
            values = {
                "source": np.full(len(texts), len(sources)),
                "offset": [LOOSE if image.offset is None else image.offset for image in one.images],
                "size": [image.size for image in one.images],
                "label": [numbers.setdefault(label, len(numbers)) if label else NO_LABEL for label in one.labels],
                "name_end": names_end + np.cumsum([len(text) for text in texts]),
            }
            for name, kind in COLUMNS.items():
                columns[name].write(np.asarray(values[name], kind).tobytes())
            names.write(b"".join(texts))
            names_end += sum(map(len, texts))
            blocks += [images + end for end in _block_ends(one)]
            images += len(texts)
            total += sum(values["size"])
            folders += [0] * (one.folder + 1 - len(folders))
            folders[one.folder] += len(texts)
            sources.append(one.source)
    classes = sorted(numbers) if len(numbers) > 1 else []  # with a single class every neighbor would be "right"
    if images:
        place = {name: number for number, name in enumerate(classes)}
        renumbered = np.array([*(place.get(name, NO_LABEL) for name in numbers), NO_LABEL], np.int32)
        labels = np.memmap(half / "label", np.int32, "r+")
        for start in range(0, images, 1 << 20):
            labels[start : start + (1 << 20)] = renumbered[labels[start : start + (1 << 20)]]
        labels.flush()
    return {
        "images": images,
        "bytes": total,
        "classes": classes,
        "folders": folders,
        "blocks": blocks,
        "sources": [asdict(source) for source in sources],
    }


def _block_ends(listed: Listed) -> list[int]:
    count = len(listed.images)
    if listed.source.archive == TABLE:
        return [*image_parquet.group_ends(listed.source.absolute, listed.source.changed)]
    # separate files are in no order that helps: smaller parts mix them better with the archives of a set
    size = BLOCK if listed.source.archive else BLOCK // 64
    return [*range(size, count, size), count]


# ------------------------------------------------------------------------------ which images


def training_files(data: Sequence[Path | str], *, listed: bool = False) -> ImageIndex:
    """Return all images to pretrain on. Labels serve only to measure neighbor accuracy.

    A single class carries no information, so its images count as unlabeled.

    Args:
        data: folders, tar archives, Parquet files, their addresses, and patterns of these.
        listed: whether another process of this machine has listed them a moment ago.
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
    if not os.path.isdir(given):
        return find_places([given])
    splits = splits_in(given)
    if "train" in splits:
        relative = {name: path.relative_to(given).as_posix() for name, path in splits.items()}
        outside = (path for path, _ in walk(Path(given), without=[*relative.values()]) if is_image(path))
        _warn_of_others(str(given), outside, relative)
    return [place for part in _parts(Path(given)) for place in archives_without_images(part)] or [str(given)]


def archives_without_images(folder: Path) -> list[str]:
    """Return the archives below a folder; [] if it has images, too."""
    archives = archives_in(folder)
    try:
        return [] if archives and list_images(folder) else [str(one) for one in archives]
    except NoImages:
        return [str(one) for one in archives]


def _parts(folder: Path) -> list[Path]:
    splits = splits_in(folder)
    if "train" not in splits:
        return [folder]
    return [splits[part] for part in ("train", *UNLABELED) if part in splits]


def _warn_of_others(place: str, paths: Iterable[str], splits: Mapping[str, str]) -> None:
    inside, above = tuple(f"{path}/" for path in splits.values()), len(PurePosixPath(splits["train"]).parts) - 1
    parts = (PurePosixPath(path).parts[above:] for path in paths if not path.startswith(inside))
    others = Counter(names[0] if len(names) > 1 else "." for names in parts)
    if others:
        counts = ", ".join(f"{count} in {name}" for name, count in others.most_common(SHOWN))
        warn_once(
            f"{place} is read by its split train, so {others.total()} images next to it are left out: "
            f"{counts + ', ...' * (len(others) > SHOWN)}; move them into train, or pass their folders with --data"
        )


def _to_learn_from(place: str, images: list[Source]) -> list[Source]:
    splits = find_splits(one.path.rpartition("/")[0] for one in images)
    if "train" not in splits:
        return images
    _warn_of_others(place, (one.path for one in images), splits)
    read = tuple(f"{splits[part]}/" for part in ("train", *UNLABELED) if part in splits)
    return [one for one in images if one.path.startswith(read)]


def _version(place: str) -> str:
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
            # at an address, each text of a sample would be a request
            labels = [one.label if source.is_local or one.row_label else one.folder or None for one in images]
            yield Listed(source, images, [name and f"{number}/{name}" for name in labels], number)
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
