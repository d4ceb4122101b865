"""ImagePack: a set of images decoded once, as one memory-mapped uint8 array.

Every image is squashed to S x S. Its original aspect ratio is stored, so that random crops still have the image's
proportions. Packs are stored in a cache folder under a hash of the file list (paths, sizes, times), so a second run on
the same images starts at once. An interrupted decoding continues from its journal. Two programs that need the same pack
decode it once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnclr_hub.cache import cache_folder
from nnclr_hub.encoder.decoding import decode_squashed, run_isolated
from nnclr_hub.encoder.decoding_pool import decoding_processes
from nnclr_hub.errors import ImageError, NoImages, NoRoom

FORMAT = 1
BLOCK = 1024  # images between two entries of the journal


@dataclass(frozen=True)
class ImagePack:
    """Decoded images.

    pixels: (N, S, S, 3) uint8, memory-mapped.
    aspect: (N,) float32, width / height of the upright original.
    kept: (N,) int64, position of each row's file in the given paths.
    broken: (path, reason) for the unreadable files.
    """

    pixels: np.ndarray
    aspect: np.ndarray
    kept: np.ndarray
    broken: tuple[tuple[str, str], ...]

    def __len__(self) -> int:
        return len(self.pixels)


def build_pack(
    paths: Sequence[Path],
    size: int,
    *,
    cache: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ImagePack:
    """Open the pack of these files, decoding them first if necessary.

    Args:
        size: S, side of the stored squares in pixels.
        cache: folder for packs; default `cache_folder()`.
        progress: called with (done, total) after each image.

    Raises:
        NoImages: none of the files can be read.
        NoRoom: the disk has no space for the decoded images.
    """
    folder = (cache or cache_folder()) / "packs" / _digest(paths, size)
    if not (folder / "pack.json").exists():
        with _alone(folder):
            if not (folder / "pack.json").exists():
                _decode(paths, size, folder, progress)
    about = json.loads((folder / "pack.json").read_text())
    # "c" is copy on write: torch warns when it wraps a read-only array
    pixels = np.load(folder / "pixels.npy", mmap_mode="c")
    return ImagePack(
        pixels[: about["images"]],
        np.load(folder / "aspect.npy"),
        np.load(folder / "kept.npy"),
        tuple((path, reason) for path, reason in about["broken"]),
    )


def _digest(paths: Sequence[Path], size: int) -> str:
    stats = [(str(path.absolute()), *_size_and_time(path)) for path in paths]
    return hashlib.sha256(json.dumps([FORMAT, size, stats]).encode()).hexdigest()[:24]


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:  # a dangling link or a deleted file: decoding will report it
        return (0, 0)
    return (stat.st_size, stat.st_mtime_ns)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other program decodes this pack."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_suffix(".lock").open("w")
    except OSError as error:
        raise NoRoom(
            f"The cache folder {folder.parents[1]} cannot be written ({error.strerror}); set NNCLR_CACHE to another."
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _decode(paths: Sequence[Path], size: int, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Write the pack to a temporary folder and rename it, so that no incomplete pack is ever opened."""
    half = folder.with_suffix(".part")
    half.mkdir(exist_ok=True)
    pixels = _pixel_file(half / "pixels.npy", (len(paths), size, size, 3))
    aspect, kept, broken = [], [], []
    for number, shape, reason in _journal(half):
        if shape is None:
            broken.append((str(paths[number]), reason))
        else:
            aspect.append(shape)
            kept.append(number)
    done = len(kept) + len(broken)
    with (
        decoding_processes(images=len(paths)),
        ThreadPoolExecutor(os.cpu_count()) as pool,
        (half / "journal.jsonl").open("a") as journal,
    ):
        while done < len(paths):
            lines = []
            block = range(done, min(done + BLOCK, len(paths)))
            for number, result in zip(block, pool.map(lambda i: _squash(paths[i], size), block), strict=True):
                if isinstance(result, ImageError):
                    broken.append((str(paths[number]), str(result)))
                    lines.append((number, None, str(result)))
                else:
                    pixels[len(kept)] = result[0]
                    aspect.append(result[1])
                    kept.append(number)
                    lines.append((number, result[1], ""))
                done += 1
                progress(done, len(paths))
            pixels.flush()  # type: ignore[attr-defined]  before the journal lists them
            journal.write("".join(json.dumps(line) + "\n" for line in lines))
            journal.flush()
    if not kept:
        shutil.rmtree(half)
        raise NoImages(f"None of the {len(paths)} images can be read; the first error: {broken[0][1]}")
    np.save(half / "aspect.npy", np.array(aspect, np.float32))
    np.save(half / "kept.npy", np.array(kept, np.int64))
    (half / "pack.json").write_text(json.dumps({"images": len(kept), "broken": broken}))
    if folder.exists():  # an earlier version left it without a pack.json
        shutil.rmtree(folder)
    half.rename(folder)


def _pixel_file(path: Path, shape: tuple[int, int, int, int]) -> np.ndarray:
    """Open the array of an interrupted decoding, or create one if the disk has enough space."""
    if path.exists():
        try:
            return np.lib.format.open_memmap(path, mode="r+")
        except (ValueError, OSError):  # the interruption came before the header was complete
            (path.parent / "journal.jsonl").unlink(missing_ok=True)
    need, free = int(np.prod(shape)), shutil.disk_usage(path.parent).free
    if need > free:
        raise NoRoom(
            f"{shape[0]} images decoded at {shape[1]} pixels need {need / 1e6:,.0f} MB, but the cache folder "
            f"{path.parents[2]} has {free / 1e6:,.0f} MB free. Set NNCLR_CACHE to another folder, or lower pack_size."
        )
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)


def _journal(half: Path) -> Iterator[tuple[int, float | None, str]]:
    """Yield (file, aspect or None, reason) for files decoded before; an incomplete last line is ignored."""
    path = half / "journal.jsonl"
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if len(whole) != len(text):
        path.write_text(whole)
    for line in whole.splitlines():
        yield tuple(json.loads(line))  # type: ignore[misc]


def _squash(path: Path, size: int) -> tuple[np.ndarray, float] | ImageError:
    try:
        return run_isolated(decode_squashed, path, size, take=lambda pixels, aspect: (np.array(pixels), aspect))
    except ImageError as error:
        return error
