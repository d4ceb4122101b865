"""Features of many images, computed once per image and cached in one file per encoder.

    features = extract_features(encoder, paths, progress=advance)
    features.raw                # (N, D) float32, memory-mapped; rows of unreadable images are NaN

An interrupted extraction continues where it stopped, and new images cost only their own time. An image is identified by
path, size and modification time. Errors are not cached, because their cause may pass. Features in bf16 are cached apart
from those in fp32.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from nnclr_hub.cache import cache_folder
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.errors import DiskFull, ImageError, NoImages, StoreLocked
from nnclr_hub.images.source import Source, file_key
from nnclr_hub.plural import counted

ImageFile = Path | Source
CHUNK = 512  # images between two commits
LOCK_TIMEOUT = 60.0  # seconds to wait while another program writes features of the same encoder
LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
# the file is damaged, is not a database, or has a table of another form: delete it and start from scratch
UNUSABLE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT}


class FeatureSource(Protocol):
    """A source of features: an Encoder, or any object that turns images into vectors."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def embed_dim(self) -> int: ...

    def features_each(self, images: Iterable[ImageLike]) -> list[np.ndarray | ImageError]:
        """Return (D,) float32 per image, not normalized, or its ImageError."""
        ...


@dataclass(frozen=True)
class Extracted:
    """The features of N images.

    raw: (N, D) float32, not normalized, memory-mapped; rows of unreadable images are NaN.
    broken: index -> why the image could not be read.
    """

    raw: np.ndarray
    broken: dict[int, str]


def extract_features(
    source: FeatureSource,
    paths: Sequence[ImageFile],
    *,
    folder: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Extracted:
    """Return the features of all files, from the cache if it has them.

    Args:
        paths: N files, tiles of files, or images in archives.
        folder: where the cache files are; default "features" in the cache folder.
        progress: called with (done, N), unless all features are cached.

    Raises:
        NoImages: there are no files, or none can be read.
        DiskFull: the features do not fit on the disk.
        StoreLocked: another program locks the cache file.
    """
    if not paths:
        raise NoImages("The list of images is empty.")
    place = folder or cache_folder() / "features"
    place.mkdir(parents=True, exist_ok=True)
    raw = _allocate_rows(place, (len(paths), source.embed_dim))
    precision = getattr(source, "precision", "fp32")
    identity = source.fingerprint if precision == "fp32" else f"{source.fingerprint}-{precision}"
    cache = place / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.sqlite"
    broken: dict[int, str] = {}
    for is_last in (False, True):
        try:
            broken = _fill(raw, source, paths, cache, progress)
            break
        except sqlite3.DatabaseError as error:
            # the primary code, in the lowest byte; Python's own errors, such as for text, have none
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in UNUSABLE and not is_last:
                cache.unlink()
                continue
            if code in LOCKED:
                raise StoreLocked(
                    f"The feature cache {cache} has been locked by another program for {LOCK_TIMEOUT:g} s; wait until "
                    "it ends, or set NNCLR_CACHE to another folder."
                ) from error
            raise _no_room(f"Features cannot be written to {cache} ({error})") from error
    if len(broken) == len(paths):
        raise NoImages(f"None of {counted(len(paths), 'image')} could be read, such as {paths[0]}: {broken[0]}")
    return Extracted(raw, broken)


def _no_room(what: str) -> DiskFull:
    return DiskFull(f"{what}; free some space, or set NNCLR_CACHE to another folder.")


def _allocate_rows(place: Path, shape: tuple[int, int]) -> np.ndarray:
    """Return (N, D) float32 in a temporary file, which is removed with the last reference.

    The disk space is reserved now. A disk that fills up later would kill the process when it writes to the map.
    """
    with tempfile.TemporaryFile(dir=place) as file:
        try:
            file.truncate(4 * shape[0] * shape[1])
            if hasattr(os, "posix_fallocate"):  # not on macOS
                os.posix_fallocate(file.fileno(), 0, 4 * shape[0] * shape[1])
        except OSError as error:
            raise _no_room(f"Features of {shape[0]} images do not fit into {place} ({error.strerror})") from error
        return np.memmap(file, np.float32, "r+", shape=shape)


def _fill(
    raw: np.ndarray,
    source: FeatureSource,
    paths: Sequence[ImageFile],
    place: Path,
    progress: Callable[[int, int], None],
) -> dict[int, str]:
    """Fill rows from the cache file, compute the missing ones, and return what is broken."""
    broken: dict[int, str] = {}
    with closing(sqlite3.connect(place, timeout=LOCK_TIMEOUT)) as kept:
        kept.execute("CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")
        keys, missing = [file_key(path) for path in paths], []
        for index, key in enumerate(keys):
            found = kept.execute("SELECT vector FROM features WHERE key = ?", (key,)).fetchone()
            if found and isinstance(found[0], bytes) and len(found[0]) == raw[index].nbytes:
                raw[index] = np.frombuffer(found[0], np.float32)
            else:
                missing.append(index)
        there = len(paths) - len(missing)
        for start in range(0, len(missing), CHUNK):
            progress(there + start, len(paths))
            chunk = missing[start : start + CHUNK]
            for index, result in zip(chunk, source.features_each([paths[i] for i in chunk]), strict=True):
                if isinstance(result, ImageError):
                    broken[index] = str(result)
                elif not np.isfinite(result).all():
                    broken[index] = "The network's output for this image is NaN or infinite."
                raw[index] = np.nan if index in broken else result
            rows = [(keys[index], raw[index].tobytes()) for index in chunk if index not in broken]
            kept.executemany("INSERT OR REPLACE INTO features VALUES (?, ?)", rows)
            kept.commit()
            progress(there + start + len(chunk), len(paths))
    return broken
