"""Read every image once: its hash, a small gray copy, a tile for the report, and facts.

Results are kept in a file of the report's folder, by path, size and modification time, so that an interrupted scan
continues. Decoding processes import this module, so it must not import torch.
"""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from nnclr_hub.encoder.features import ImageFile
from nnclr_hub.errors import ImageError
from nnclr_hub.images.channels import for_people
from nnclr_hub.images.decode import DecodableImage, decode_any
from nnclr_hub.images.pool import decoding_processes, run_isolated
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import file_key
from nnclr_hub.inspect.alignment import COLOR_SIDE, SIDE
from nnclr_hub.inspect.facts import ImageFacts, image_facts
from nnclr_hub.read_ahead import batches, read_ahead
from nnclr_hub.store.disk import translated
from nnclr_hub.workbench.image_record import pixel_hash

FACTS_SIDE = 256  # pixels of the copy whose sharpness is measured
TILE, QUALITY = 96, 70  # of the images in the report
BATCH = 64
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Scanned:
    """What the report needs of an image besides its vector.

    pixel_hash: equal for equal pixels; None if unknown.
    small: (48, 48) uint8, gray.
    color: (12, 12, 2) uint8, Cb and Cr.
    tile: a JPEG of at most 96 pixels per side.
    facts: of the original, or of a thumbnail, whose size is another.
    """

    pixel_hash: str | None
    small: np.ndarray
    color: np.ndarray
    tile: bytes
    facts: ImageFacts


def scan_images(
    paths: Sequence[ImageFile],
    cache: Path | None = None,
    *,
    reading: ImageReading = PLAIN,
    progress: Progress = lambda done, total: None,
) -> list[Scanned | ImageError]:
    """Read the images in decoding processes.

    Args:
        paths: N files, tiles or images in archives.
        cache: file that keeps the results; None: nothing is kept.
        reading: of the encoder.
        progress: called with (done, N).

    Raises:
        DiskFull, StoreReadOnly, StoreError: the cache cannot be written.
    """
    with closing(_open_cache(cache)) as kept:
        keys = [file_key(path, str(reading)) for path in paths]
        found: list[Scanned | ImageError | None] = [_cached(kept, key) for key in keys]
        missing = [i for i, one in enumerate(found) if one is None]
        done = len(paths) - len(missing)
        with decoding_processes(images=len(missing)):
            for batch, results in read_ahead(batches(missing, BATCH), lambda i: scan_image(paths[i], reading)):
                for i, result in zip(batch, results, strict=True):
                    found[i] = result
                _keep(kept, cache or Path(), [(keys[i], one) for i, one in zip(batch, results, strict=True)])
                done += len(batch)
                progress(done, len(paths))
    return [one for one in found if one is not None]


def scan_image(source: DecodableImage, reading: ImageReading = PLAIN, *, original: bool = True) -> Scanned | ImageError:
    """Read one image.

    Args:
        original: False: the source is a thumbnail, which says nothing about the original's pixels.
    """

    try:
        scanned = run_isolated(_read, source, reading)
    except ImageError as error:
        return error
    return scanned if original else replace(scanned, pixel_hash=None)


def _read(source: DecodableImage, reading: ImageReading) -> Scanned:
    whole = decode_any(source, reading)
    digest, image = pixel_hash(whole), for_people(whole)
    gray = image.convert("L")
    squashed = gray.resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=3.0)
    gray.thumbnail((FACTS_SIDE, FACTS_SIDE), reducing_gap=2.0)
    facts = image_facts(np.asarray(gray), *image.size)
    image.thumbnail((TILE, TILE), reducing_gap=2.0)
    cells = image.convert("YCbCr").resize((COLOR_SIDE, COLOR_SIDE), Image.Resampling.BOX)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return Scanned(digest, np.asarray(squashed), np.asarray(cells)[:, :, 1:], file.getvalue(), facts)


# ---- the cache


def _open_cache(path: Path | None) -> sqlite3.Connection:
    schema = "CREATE TABLE IF NOT EXISTS scanned (key BLOB PRIMARY KEY, hash TEXT, small BLOB, tile BLOB, facts TEXT)"
    try:
        kept = sqlite3.connect(path or ":memory:")
        kept.execute(schema)
        kept.execute("SELECT key, hash, small, tile, facts FROM scanned LIMIT 1")
    except sqlite3.DatabaseError:  # not a database, or of another form: it can be made again
        if path is None:
            raise
        path.unlink(missing_ok=True)
        with translated(path):
            kept = sqlite3.connect(path)
            kept.execute(schema)
    return kept


def _cached(kept: sqlite3.Connection, key: bytes) -> Scanned | None:
    row = kept.execute("SELECT hash, small, tile, facts FROM scanned WHERE key = ?", (key,)).fetchone()
    if row is None or len(row[1]) != SIDE**2 + 2 * COLOR_SIDE**2:
        return None
    width, height, *rest = json.loads(row[3])
    pixels = np.frombuffer(row[1], np.uint8)
    small, color = pixels[: SIDE**2].reshape(SIDE, SIDE), pixels[SIDE**2 :].reshape(COLOR_SIDE, COLOR_SIDE, 2)
    return Scanned(row[0], small, color, row[2], ImageFacts(int(width), int(height), *rest))


def _keep(kept: sqlite3.Connection, path: Path, results: Sequence[tuple[bytes, Scanned | ImageError]]) -> None:
    rows = [
        (
            key,
            one.pixel_hash,
            one.small.tobytes() + one.color.tobytes(),
            one.tile,
            json.dumps(list(asdict(one.facts).values())),
        )
        for key, one in results
        if isinstance(one, Scanned)
    ]
    with translated(path):
        kept.executemany("INSERT OR REPLACE INTO scanned VALUES (?, ?, ?, ?, ?)", rows)
        kept.commit()
