"""Read every image once: its hash, a small gray copy, a tile for the report, and facts.

Results are kept in a file of the report's folder, by path, size and modification time, so that an interrupted scan
continues. Decoding processes import this module, so it must not import torch.
"""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, replace
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
from nnclr_hub.store.base import Progress
from nnclr_hub.store.sqlite import translated
from nnclr_hub.workbench.image_record import pixel_hash

FACTS_SIDE = 256  # pixels of the copy whose sharpness is measured
TILE, QUALITY = 96, 70  # pixels and JPEG quality of the images in the report
BATCH = 64
TABLE = "CREATE TABLE IF NOT EXISTS scanned (key BLOB PRIMARY KEY, hash TEXT, small BLOB, tile BLOB, facts TEXT)"


@dataclass(frozen=True)
class Scanned:
    """What the report needs of an image in addition to its vector.

    pixel_hash: equal for equal pixels; None if unknown.
    small: (48, 48) uint8, gray.
    color: (12, 12, 2) uint8, Cb and Cr.
    tile: a JPEG of at most 96 pixels per side.
    facts: facts of the original, or of a thumbnail, which has another size.
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
    """Read N images in decoding processes.

    Args:
        cache: file that keeps the results; None: nothing is kept.
    """
    keys = [file_key(path, str(reading)) for path in paths]
    with closing(_open_cache(cache)) as kept:
        found: list[Scanned | ImageError | None] = [_cached(kept, key) for key in keys]
        missing = [i for i, one in enumerate(found) if one is None]
        with decoding_processes(images=len(missing)):
            for batch, results in read_ahead(batches(missing, BATCH), lambda i: scan_image(paths[i], reading)):
                for i, result in zip(batch, results, strict=True):
                    found[i] = result
                with translated(cache or Path()):
                    rows = [
                        _row(keys[i], one) for i, one in zip(batch, results, strict=True) if isinstance(one, Scanned)
                    ]
                    kept.executemany("INSERT OR REPLACE INTO scanned VALUES (?, ?, ?, ?, ?)", rows)
                    kept.commit()
                progress(len(paths) - found.count(None), len(paths))
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
    image.save(file := io.BytesIO(), "JPEG", quality=QUALITY)
    return Scanned(digest, np.asarray(squashed), np.asarray(cells)[:, :, 1:], file.getvalue(), facts)


def _open_cache(path: Path | None) -> sqlite3.Connection:
    try:
        kept = sqlite3.connect(path or ":memory:")
        kept.execute(TABLE)
        kept.execute("SELECT key, hash, small, tile, facts FROM scanned LIMIT 1")
    except sqlite3.DatabaseError:  # not a database, or of another form: it can be made again
        if path is None:
            raise
        path.unlink(missing_ok=True)
        with translated(path):
            kept = sqlite3.connect(path)
            kept.execute(TABLE)
    return kept


def _row(key: bytes, one: Scanned) -> tuple[bytes, str | None, bytes, bytes, str]:
    return key, one.pixel_hash, one.small.tobytes() + one.color.tobytes(), one.tile, json.dumps(astuple(one.facts))


def _cached(kept: sqlite3.Connection, key: bytes) -> Scanned | None:
    row = kept.execute("SELECT hash, small, tile, facts FROM scanned WHERE key = ?", (key,)).fetchone()
    if row is None or len(row[1]) != SIDE**2 + 2 * COLOR_SIDE**2:
        return None
    small, color = np.split(np.frombuffer(row[1], np.uint8), [SIDE**2])
    facts = ImageFacts(*json.loads(row[3]))
    return Scanned(row[0], small.reshape(SIDE, SIDE), color.reshape(COLOR_SIDE, COLOR_SIDE, 2), row[2], facts)
