"""ImagePack: a set of pictures decoded once, as one memory-mapped uint8 array.

Every picture is squashed to S x S; its original aspect is kept beside it, so that random crops are
still drawn in the picture's own proportions. Packs live in a cache folder under a hash of the file
list (paths, sizes, times), so the second run on the same pictures starts at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nnclr_hub.cache import cache_folder
from nnclr_hub.encoder.preprocess import decode_image
from nnclr_hub.errors import ImageError, NoImages

FORMAT = 1


@dataclass(frozen=True)
class ImagePack:
    """Decoded pictures.

    pixels: (N, S, S, 3) uint8, memory-mapped.
    aspect: (N,) float32, width / height of the upright original.
    kept: (N,) int64, which of the given paths each row is.
    broken: (path, reason) of the files that could not be read.
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
    """Opens the pack of these files, decoding them first if it is not there.

    Args:
        paths: picture files.
        size: S, side of the stored squares in pixels.
        cache: folder for packs; default `cache_folder()`.
        progress: called with (done, total) after each picture.

    Raises:
        NoImages: not one of the files could be read.
    """
    folder = (cache or cache_folder()) / "packs" / _digest(paths, size)
    if not (folder / "pack.json").exists():
        _decode(paths, size, folder, progress)
    about = json.loads((folder / "pack.json").read_text())
    # "c": copy on write, for torch refuses to wrap a read-only array without a warning
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
    except OSError:  # a dangling link, or gone meanwhile: decoding will say so
        return (0, 0)
    return (stat.st_size, stat.st_mtime_ns)


def _decode(paths: Sequence[Path], size: int, folder: Path, progress: Callable[[int, int], None]) -> None:
    """Writes the pack beside its place and moves it there whole, so that no half pack is ever opened."""
    half = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    half.mkdir(parents=True, exist_ok=True)
    try:
        pixels = np.lib.format.open_memmap(
            half / "pixels.npy", mode="w+", dtype=np.uint8, shape=(len(paths), size, size, 3)
        )
        aspect, kept, broken = [], [], []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for i, result in enumerate(pool.map(lambda path: _squash(path, size), paths)):
                if isinstance(result, ImageError):
                    broken.append((str(paths[i]), str(result)))
                else:
                    pixels[len(kept)] = result[0]
                    aspect.append(result[1])
                    kept.append(i)
                progress(i + 1, len(paths))
        if not kept:
            raise NoImages(f"None of the {len(paths)} pictures could be read; the first: {broken[0][1]}")
        pixels.flush()
        np.save(half / "aspect.npy", np.array(aspect, np.float32))
        np.save(half / "kept.npy", np.array(kept, np.int64))
        (half / "pack.json").write_text(json.dumps({"images": len(kept), "broken": broken}))
        if folder.exists():  # left by another run without its pack.json, or written by one meanwhile
            shutil.rmtree(folder)
        half.rename(folder)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _squash(path: Path, size: int) -> tuple[np.ndarray, float] | ImageError:
    try:
        image = decode_image(path)
    except ImageError as error:
        return error
    aspect = image.width / image.height
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)), aspect


def resident(pack: ImagePack, where: torch.device) -> Tensor:
    """The pixels on the device if they take less than half of its free memory, else memory-mapped."""
    pixels = torch.from_numpy(pack.pixels)
    if where.type == "cuda" and pixels.numel() < torch.cuda.mem_get_info(where)[0] / 2:
        return pixels.to(where)
    return pixels
