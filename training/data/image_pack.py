"""ImagePack: a set of images decoded once, in one memory-mapped file.

A copy keeps the proportions of its image, and has at most `size` pixels along its short side. Crops are sampled in the
coordinates of the original and cut from the copy. Packs are stored in a cache folder under a hash of the list of files
(names, sizes, times), so a second run on the same images starts at once. An interrupted decoding continues from its
journal. Two programs that need the same pack decode it once.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nnclr_hub.cache import cache_folder, lock_folder
from nnclr_hub.cores import usable_cores
from nnclr_hub.errors import ImageError, NNCLRHubError, NoImages, NoRoom
from nnclr_hub.images.pool import decoding_processes, run_isolated
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import Source

from .augment import StoredImages, copy_boxes
from .cutting import decode_reduced
from .views import View

FORMAT = 2
BLOCK = 1024  # images between two entries of the journal
MOST_LONG = 2  # long side of a copy over its short side; longer images are squashed along it
TYPICAL = 4 / 3  # width / height, to estimate the space that a pack needs
MEMORY_SHARE = 0.5  # share of the free device memory that a pack may use

Shape = tuple[int, int, int, int]  # height and width of a copy, and of its original
Form = tuple[int, ImageReading, int]  # size, reading and channels of copies


@dataclass(frozen=True)
class ImagePack:
    """Decoded images.

    pixels: (T,) uint8, memory-mapped: the copies (H, W, C) one after the other, and zeros after the last one.
    stored: (N, 2) int64, height and width of each copy.
    sizes: (N, 2) int64, height and width of each upright original.
    kept: (N,) int64, position of each row's file in the given paths.
    broken: (path, reason) for the unreadable files.
    channels: C.
    """

    pixels: np.ndarray
    stored: np.ndarray
    sizes: np.ndarray
    kept: np.ndarray
    broken: tuple[tuple[str, str], ...] = ()
    channels: int = 3

    def __len__(self) -> int:
        return len(self.stored)


class PackedPixels:
    """The images of a pack, from which the device cuts views.

    A pack that fits into device memory is kept there. A larger pack stays memory-mapped: a thread gathers the next
    step's images into pinned memory while the device processes the present step, and the copy overlaps with it.

    Args:
        residency: "device", "host", or "auto": on the device if it takes at most half of the free memory.

    Attributes:
        ahead: steps in work ahead of the one that trains.
        device_bytes: bytes of the memory of a GPU that the whole pack takes.
    """

    def __init__(self, pack: ImagePack, where: torch.device, residency: str = "auto") -> None:
        self.unreadable: dict[int, str] = {}  # they were left out when the pack was decoded
        self._pack, self._where = pack, where
        self._pixels = torch.from_numpy(pack.pixels)
        sizes = pack.stored.prod(axis=1) * pack.channels
        self._most_high, self._most_wide = pack.stored.max(axis=0).tolist()
        self.resident = residency == "device" or (residency == "auto" and self._fits())
        self.ahead = 0 if self.resident else 1
        self.device_bytes = self._pixels.numel() if self.resident and where.type == "cuda" else 0
        self._thread = None if self.resident else ThreadPoolExecutor(1, "prefetch")
        if self.resident:
            self._pixels = self._pixels.to(where)
        places = (np.cumsum(sizes) - sizes, pack.stored)
        self._start, self._stored = (torch.from_numpy(one).to(self._pixels.device) for one in places)

    def _fits(self) -> bool:
        if self._where.type != "cuda":
            return True
        return self._pixels.numel() < MEMORY_SHARE * torch.cuda.mem_get_info(self._where)[0]

    def __len__(self) -> int:
        return len(self._pack)

    def fetch(
        self, rows: np.ndarray, views: Sequence[View], numbers: Tensor
    ) -> Callable[[], tuple[StoredImages, np.ndarray]]:
        """Gather the images at rows (B,) int64; see `Originals.fetch`."""
        ready = None if self._thread is None else self._thread.submit(self._gather, rows)

        def wait() -> tuple[StoredImages, np.ndarray]:
            gathered = self._gather(rows) if ready is None else ready.result()
            boxes = self.boxes(rows, views, numbers)
            images, boxes = (one.to(self._where, non_blocking=True) for one in (gathered, boxes))
            return StoredImages(images, boxes, self._pack.sizes[rows]), rows

        return wait

    def boxes(self, rows: np.ndarray, views: Sequence[View], numbers: Tensor) -> Tensor:
        """Return the crops of the images at rows (B,): (V, B, 4) float32 on the CPU, see `copy_boxes`."""
        filled, sizes = self._pack.stored[rows].astype(np.float64), self._pack.sizes[rows].astype(np.float64)
        return torch.stack([copy_boxes(sizes, filled, view, own) for view, own in zip(views, numbers, strict=True)])

    def gather(self, rows: Tensor) -> Tensor:
        """Return the images at rows (B,) int64 on the device of a resident pack: (B, H, W, C) uint8.

        H and W are those of the largest copies of the pack, so the shape is the same for any rows.
        """
        return self._lines(rows, self._most_high, self._most_wide)

    def close(self) -> None:
        """Stop the prefetching thread."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _gather(self, rows: np.ndarray) -> Tensor:
        """Return (B, H, W, C) uint8 with the largest height and width of these images."""
        there = torch.from_numpy(rows).to(self._pixels.device, non_blocking=True)
        images = self._lines(there, *self._pack.stored[rows].max(axis=0).tolist())
        return images.pin_memory() if self._where.type == "cuda" and not self.resident else images

    def _lines(self, rows: Tensor, most_high: int, most_wide: int) -> Tensor:
        # each line of the result is read from where the image's line starts, so what is not filled is arbitrary
        start, (high, wide), channels = self._start[rows], self._stored[rows].unbind(1), self._pack.channels
        line = most_wide * channels
        below = torch.minimum(torch.arange(most_high, device=start.device), high[:, None] - 1)  # (B, H)
        starts = start[:, None] + below * (wide * channels)[:, None]
        lines = self._pixels.as_strided((len(self._pixels) - line + 1, line), (1, 1))
        return lines.index_select(0, starts.flatten()).view(len(start), most_high, most_wide, channels)


def stored_sizes(sizes: np.ndarray, size: int) -> np.ndarray:
    """Return height and width of the copies of images of sizes (N, 2)."""
    factor = np.minimum(1.0, size / sizes.min(axis=1, keepdims=True))
    return np.clip(np.round(sizes * factor), 1, MOST_LONG * size)


def pack_bytes(images: int, size: int, channels: int = 3) -> int:
    """Return about how many bytes the pack of some images needs."""
    return int(images * size * size * TYPICAL * channels)


def build_pack(
    paths: Sequence[Path | Source],
    size: int,
    *,
    reading: ImageReading = PLAIN,
    channels: int = 3,
    cache: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ImagePack:
    """Open the pack of these files, decoding them first if necessary.

    Args:
        paths: the images.
        size: most pixels of the short side of a copy.
        reading: the page and the channels to read of each file.
        channels: C; files with another number are broken.
        cache: folder for packs; default `cache_folder()`.
        progress: called with (done, total) after each image.
    """
    folder = (cache or cache_folder()) / "packs" / _digest(paths, size, reading, channels)
    form = (size, reading, channels)

    def outdated() -> bool:
        return not (folder / "pack.json").exists() or _can_read_more(folder, paths, form)

    if outdated():
        with lock_folder(folder):
            if outdated():
                _decode(paths, form, folder, progress)
    about = json.loads((folder / "pack.json").read_text())
    # "c" is copy on write: torch warns when it wraps a read-only array
    return ImagePack(
        np.memmap(folder / "pixels.bin", np.uint8, "c"),
        np.load(folder / "stored.npy"),
        np.load(folder / "sizes.npy"),
        np.load(folder / "kept.npy"),
        tuple((path, reason) for path, reason in about["broken"]),
        channels,
    )


def _can_read_more(folder: Path, paths: Sequence[Path | Source], form: Form) -> bool:
    """Return whether a file can be read that could not be before: a package was installed, or a disk was mounted."""
    broken = sorted({*range(len(paths))} - set(np.load(folder / "kept.npy").tolist()))
    return any(not isinstance(_reduced(paths[number], form), NNCLRHubError) for number in broken)


def _digest(paths: Sequence[Path | Source], size: int, reading: ImageReading, channels: int) -> str:
    stats = [(str(one.absolute()), *_size_and_time(one)) if isinstance(one, Path) else one.identity for one in paths]
    part = [] if (reading, channels) == (PLAIN, 3) else [str(reading), channels]
    return hashlib.sha256(json.dumps([FORMAT, size, stats, *part]).encode()).hexdigest()[:24]


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:  # a dangling link or a deleted file: decoding will report it
        return (0, 0)
    return (stat.st_size, stat.st_mtime_ns)


def _decode(
    paths: Sequence[Path | Source],
    form: Form,
    folder: Path,
    progress: Callable[[int, int], None],
) -> None:
    """Write the pack to a temporary folder and rename it, so that no incomplete pack is ever opened."""
    size, _, channels = form
    half = folder.with_suffix(".part")
    half.mkdir(exist_ok=True)
    shapes, kept, broken = list[Shape](), list[int](), list[tuple[str, str]]()
    for number, shape, reason in _journal(half):
        if shape is None:
            broken.append((str(paths[number]), reason))
        else:
            shapes.append(shape)
            kept.append(number)
    done = len(kept) + len(broken)
    written = sum(height * width * channels for height, width, *_ in shapes)
    _check_space(half, len(paths) - done, size, channels)
    with (
        decoding_processes(images=len(paths)),
        ThreadPoolExecutor(usable_cores()) as pool,
        (half / "pixels.bin").open("ab") as pixels,
        (half / "journal.jsonl").open("a") as journal,
    ):
        pixels.truncate(written)  # what the journal does not list is decoded again
        while done < len(paths):
            lines = []
            block = range(done, min(done + BLOCK, len(paths)))
            for number, result in zip(block, pool.map(lambda i: _reduced(paths[i], form), block), strict=True):
                if isinstance(result, NNCLRHubError):
                    broken.append((str(paths[number]), str(result)))
                    lines.append((number, None, str(result)))
                else:
                    pixels.write(result[0])
                    shapes.append(result[1])
                    kept.append(number)
                    lines.append((number, result[1], ""))
                done += 1
                progress(done, len(paths))
            pixels.flush()  # before the journal lists them
            journal.write("".join(json.dumps(line) + "\n" for line in lines))
            journal.flush()
        if shapes:
            pixels.write(bytes(max(width for _, width, *_ in shapes) * channels))  # see `PackedPixels._gather`
    if not kept:
        shutil.rmtree(half)
        raise NoImages(f"No image can be read; the first error: {broken[0][1]}")
    table = np.array(shapes, np.int64)
    for name, values in (("stored", table[:, :2]), ("sizes", table[:, 2:]), ("kept", np.array(kept, np.int64))):
        np.save(half / f"{name}.npy", values)
    (half / "pack.json").write_text(json.dumps({"images": len(kept), "broken": broken}))
    if folder.exists():  # without some files that can be read now, or without a pack.json
        shutil.rmtree(folder)
    half.rename(folder)


def _check_space(half: Path, images: int, size: int, channels: int) -> None:
    need, free = pack_bytes(images, size, channels), shutil.disk_usage(half).free
    if need > free:
        raise NoRoom(
            f"{images} images decoded at {size} pixels need up to {need / 1e6:,.0f} MB, but the cache folder "
            f"{half.parents[1]} has {free / 1e6:,.0f} MB free. Set NNCLR_CACHE to another folder, lower pack_size, or "
            "use --set cut_from=originals."
        )


def _journal(half: Path) -> Iterator[tuple[int, Shape | None, str]]:
    """Yield (file, shape or None, reason) for files decoded before; an incomplete last line is ignored."""
    path = half / "journal.jsonl"
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if len(whole) != len(text):
        path.write_text(whole)
    for line in whole.splitlines():
        yield tuple(json.loads(line))  # type: ignore[misc]


def _reduced(image: Path | Source, form: Form) -> tuple[bytes, Shape] | NNCLRHubError:
    size, reading, channels = form
    try:
        pixels, height, width = run_isolated(decode_reduced, image, size, MOST_LONG * size, reading, channels)
        return pixels.tobytes(), (pixels.shape[0], pixels.shape[1], height, width)
    except NNCLRHubError as error:
        return error
    except OSError as error:
        return ImageError(f"The file cannot be read: {error.strerror or error}.")
