"""Features of many pictures, computed once: kept on disk under the encoder's fingerprint and the files' identity.

    features = extract_features(encoder, paths, progress=advance)
    features.raw                # (N, D) float32, memory-mapped; rows of unreadable pictures are NaN
    unit_rows(features.raw)     # the same with rows of length 1

An interrupted extraction goes on where it stopped. A file that changes (by size or time) is another file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from nnclr_hub.cache import cache_folder
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.errors import ImageError, NoImages

CHUNK = 512  # pictures between two records of progress
TINY = 1e-12


class FeatureSource(Protocol):
    """What features can be taken from: an Encoder, or anything that makes vectors of pictures."""

    name: str

    @property
    def fingerprint(self) -> str: ...

    @property
    def embed_dim(self) -> int: ...

    def features_each(self, images: Iterable[ImageLike]) -> list[np.ndarray | ImageError]:
        """One entry a picture: (D,) float32 as the network gives it, not normalised, or why it has none."""
        ...


@dataclass(frozen=True)
class Extracted:
    """What an encoder makes of N pictures.

    raw: (N, D) float32, as the network gives them, on the disk; rows of unreadable pictures are NaN.
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
    """
    if not paths:
        raise NoImages("There are no pictures to take features of.")
    place = (folder or cache_folder() / "features") / _key(source, paths)
    place.mkdir(parents=True, exist_ok=True)
    shape = (len(paths), source.embed_dim)
    state, vectors = _open(place, shape)
    done, broken = state
    for index in list(broken):  # a passing error may have passed
        (result,) = source.features_each([paths[index]])
        _take(result, index, vectors, broken)
    while done < len(paths):
        progress(done, len(paths))
        chunk = paths[done : done + CHUNK]
        for index, result in enumerate(source.features_each(chunk), done):
            _take(result, index, vectors, broken)
        done += len(chunk)
        vectors.flush()
        _record(place, done, broken)
        progress(done, len(paths))
    if len(broken) == len(paths):
        raise NoImages(f"Not one of the {len(paths)} pictures could be read, such as {paths[0]}: {broken[0]}")
    return Extracted(np.load(place / "vectors.npy", mmap_mode="c"), broken)


def _key(source: FeatureSource, paths: Sequence[Path]) -> str:
    digest = hashlib.sha256(source.fingerprint.encode())
    for path in paths:
        try:
            stat = os.stat(path)
            identity = f"{stat.st_size} {stat.st_mtime_ns}"
        except OSError:
            identity = "-"
        digest.update(f"{Path(path).resolve()} {identity}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


def _open(place: Path, shape: tuple[int, int]) -> tuple[tuple[int, dict[int, str]], np.memmap]:
    """What was done by an earlier call, and the rows; anew if either is damaged."""
    try:
        state = json.loads((place / "done.json").read_text("utf-8"))
        vectors = np.lib.format.open_memmap(place / "vectors.npy", mode="r+")
        if vectors.shape == shape:
            return (state["done"], {int(i): reason for i, reason in state["broken"].items()}), vectors
    except (OSError, ValueError, KeyError):
        pass  # no earlier call, or one that was cut off before its first record
    vectors = np.lib.format.open_memmap(place / "vectors.npy", mode="w+", dtype=np.float32, shape=shape)
    return (0, {}), vectors


def _take(result: np.ndarray | ImageError, index: int, vectors: np.ndarray, broken: dict[int, str]) -> None:
    broken.pop(index, None)
    if isinstance(result, ImageError):
        broken[index] = str(result)
    elif not np.isfinite(result).all():
        broken[index] = "The network gives numbers for it that are not finite."
    vectors[index] = np.nan if index in broken else result


def _record(place: Path, done: int, broken: dict[int, str]) -> None:
    half = place / f"done.json.{os.getpid()}"
    half.write_text(json.dumps({"done": done, "broken": broken}), "utf-8")
    half.replace(place / "done.json")
