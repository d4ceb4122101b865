"""Features of many images, each computed once: an encoder's are kept in one file, by the images' identity.

    features = extract_features(encoder, paths, progress=advance)
    features.raw                # (N, D) float32, on the disk; rows of unreadable images are NaN
    unit_rows(features.raw)     # the same with rows of length 1

So an interrupted extraction goes on where it stopped, and a list with new images costs only those. A file that
changes (by size or time) is another image. What is broken is not kept: the reason may pass.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from nnclr_hub.cache import cache_folder
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.errors import DiskFull, ImageError, NoImages, StoreLocked

CHUNK = 512  # images between two commits
TINY = 1e-12
PATIENCE = 60.0  # seconds to wait while another program writes features of the same encoder
HELD = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
# damaged, no database at all, or with a table of another form, as "no such column" says: all anew
WORTHLESS = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT}


class FeatureSource(Protocol):
    """What features can be taken from: an Encoder, or anything that makes vectors of images."""

    name: str

    @property
    def fingerprint(self) -> str: ...

    @property
    def embed_dim(self) -> int: ...

    def features_each(self, images: Iterable[ImageLike]) -> list[np.ndarray | ImageError]:
        """One entry an image: (D,) float32 as the network gives it, not normalized, or why it has none."""
        ...


@dataclass(frozen=True)
class Extracted:
    """What an encoder makes of N images.

    raw: (N, D) float32, as the network gives them, on the disk; rows of unreadable images are NaN.
    broken: place in the list -> why it could not be read.
    """

    raw: np.ndarray
    broken: dict[int, str]


def unit_rows(raw: np.ndarray) -> np.ndarray:
    """(N, D) float32 with rows of length 1."""
    return raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), TINY)


def extract_features(
    source: FeatureSource,
    paths: Sequence[Path],
    *,
    folder: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Extracted:
    """The features of all files, from the cache where they are there.

    Args:
        source: an encoder.
        paths: N files.
        folder: where they are kept; default "features" in the cache folder.
        progress: called with (done, N), unless all of them are there already.

    Raises:
        NoImages: no files, or not one that can be read.
        DiskFull: they cannot be kept there.
        StoreLocked: another program has the file that they are kept in.
    """
    if not paths:
        raise NoImages("There are no images to take features of.")
    place = folder or cache_folder() / "features"
    place.mkdir(parents=True, exist_ok=True)
    raw = _rows(place, (len(paths), source.embed_dim))
    kept = place / f"{hashlib.sha256(source.fingerprint.encode()).hexdigest()[:32]}.sqlite"
    with _refusals(kept):
        try:
            broken = _fill(raw, source, paths, kept, progress)
        except sqlite3.DatabaseError as error:
            if _reason(error) not in WORTHLESS:
                raise
            kept.unlink()
            broken = _fill(raw, source, paths, kept, progress)
    if len(broken) == len(paths):
        raise NoImages(f"Not one of the {len(paths)} images could be read, such as {paths[0]}: {broken[0]}")
    return Extracted(raw, broken)


def _rows(place: Path, shape: tuple[int, int]) -> np.ndarray:
    """(N, D) float32 on the disk, gone with the last that looks at them; their room is taken now: later, a full disk
    would end the process."""
    with tempfile.TemporaryFile(dir=place) as file:
        try:
            file.truncate(4 * shape[0] * shape[1])
            if hasattr(os, "posix_fallocate"):  # macOS has none
                os.posix_fallocate(file.fileno(), 0, 4 * shape[0] * shape[1])
        except OSError as error:
            raise DiskFull(
                f"Features of {shape[0]} images do not fit into {place} ({error.strerror}): make room there, or set "
                "NNCLR_CACHE to another folder."
            ) from error
        return np.memmap(file, np.float32, "r+", shape=shape)


@contextmanager
def _refusals(kept: Path) -> Iterator[None]:
    """What the disk or another program refuses, in one sentence."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if _reason(error) in HELD:
            raise StoreLocked(
                f"Features cannot be kept in {kept} ({error}): another program has had it for {PATIENCE:g} s, so let "
                "it end, or set NNCLR_CACHE to another folder."
            ) from error
        raise DiskFull(
            f"Features cannot be kept in {kept} ({error}): make room there, or set NNCLR_CACHE to another folder."
        ) from error


def _reason(error: sqlite3.Error) -> int:
    """SQLite's number for it, without the details above its lowest byte; Python's own errors, as at text, have none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _fill(
    raw: np.ndarray, source: FeatureSource, paths: Sequence[Path], place: Path, progress: Callable[[int, int], None]
) -> dict[int, str]:
    """Rows from the file at `place`, and what is missing there from the source; gives what is broken."""
    broken: dict[int, str] = {}
    with closing(sqlite3.connect(place, timeout=PATIENCE)) as kept:
        kept.execute("CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")
        keys = [_key(path) for path in paths]
        missing = [index for index, key in enumerate(keys) if not _read(kept, key, raw[index])]
        there = len(paths) - len(missing)
        for start in range(0, len(missing), CHUNK):
            progress(there + start, len(paths))
            chunk = missing[start : start + CHUNK]
            for index, result in zip(chunk, source.features_each([paths[i] for i in chunk]), strict=True):
                _take(result, index, raw, broken)
            rows = [(keys[index], raw[index].tobytes()) for index in chunk if index not in broken]
            kept.executemany("INSERT OR REPLACE INTO features VALUES (?, ?)", rows)
            kept.commit()
            progress(there + start + len(chunk), len(paths))
    return broken


def _key(path: Path) -> bytes:
    """An image's identity: its place, size and time."""
    try:
        stat = os.stat(path)
        identity = f"{stat.st_size} {stat.st_mtime_ns}"
    except OSError:
        identity = "-"
    return hashlib.sha256(f"{Path(path).resolve()} {identity}".encode("utf-8", "surrogateescape")).digest()[:16]


def _read(kept: sqlite3.Connection, key: bytes, row: np.ndarray) -> bool:
    """Fills a row with what is kept of an image, if anything is."""
    found = kept.execute("SELECT vector FROM features WHERE key = ?", (key,)).fetchone()
    if found is None or not isinstance(found[0], bytes) or len(found[0]) != row.nbytes:
        return False
    row[:] = np.frombuffer(found[0], np.float32)
    return True


def _take(result: np.ndarray | ImageError, index: int, raw: np.ndarray, broken: dict[int, str]) -> None:
    if isinstance(result, ImageError):
        broken[index] = str(result)
    elif not np.isfinite(result).all():
        broken[index] = "The network gives numbers for it that are not finite."
    raw[index] = np.nan if index in broken else result
