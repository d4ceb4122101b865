"""ImageIndex: the images of a run as columns on disk, which are memory-mapped.

A list of paths would take some 300 bytes per image in each process. The columns are written while folders and archives
are listed, one at a time, so neither listing nor training needs memory in proportion to the set. All processes of a
machine map the same files.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, overload

import numpy as np

from nnclr_hub.cache import cache_folder, lock_folder, not_writable
from nnclr_hub.errors import NoRoom
from nnclr_hub.images import parquet as image_parquet
from nnclr_hub.images.source import TABLE, Place, Source
from nnclr_hub.table_rows import Named

FORMAT = 1
COLUMNS = {"source": np.int32, "offset": np.int64, "size": np.int64, "label": np.int32, "name_end": np.int64}
LOOSE = -1  # offset of a separate file
NO_LABEL = -1
BLOCK = 4096  # most images of a block
LARGE = 5_000_000  # images, above which the images of a run must not change


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
        folder: of the columns.
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

    def name(self, row: int) -> str:
        """Return the name of an image for messages."""
        return str(self[row])

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
        """Yield "FOLDER/NAME SIZE" for each image, which identifies it in checkpoints."""
        for row in range(len(self)):
            image = self._listed(row)
            *parents, name = image.path.rsplit("/", 2)
            yield f"{parents[-1] if parents else PurePath(image.place.given).name}/{name} {image.size}"

    def _place(self, row: int) -> int:
        return row if self._rows is None else int(self._rows[row])

    def _listed(self, row: int) -> Source:
        place = self._place(row)
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

    Raises:
        NoRoom: the cache folder cannot be written.
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
    numbers: dict[str, int] = {}  # of labels, in the order of the listings
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
    """Return the numbers of images up to the end of each part that is read together."""
    count = len(listed.images)
    if listed.source.archive == TABLE:
        return [*image_parquet.group_ends(listed.source.absolute, listed.source.changed)]
    # separate files are in no order that helps: smaller parts mix them better with the archives of a set
    size = BLOCK if listed.source.archive else BLOCK // 64
    return [*range(size, count, size), count]
