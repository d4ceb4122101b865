"""Read every image once: its hash, a small gray copy, a tile for the report, and facts.

Results are kept in a file of the report's folder, by path, size and modification time, so that an interrupted scan
continues. Decoding processes import this module, so it must not import torch.
"""

from __future__ import annotations

import io
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from nnclr_hub.encoder.decoding import Source, decode_image, run_isolated
from nnclr_hub.encoder.decoding_pool import decoding_processes
from nnclr_hub.encoder.features import file_key
from nnclr_hub.encoder.image_folder import IMAGE_SUFFIXES
from nnclr_hub.errors import ImageError
from nnclr_hub.inspect.alignment import SIDE
from nnclr_hub.inspect.facts import ImageFacts, image_facts
from nnclr_hub.read_ahead import batches, read_ahead
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
    tile: a JPEG of at most 96 pixels per side.
    facts: of the original, or of a thumbnail, whose size is another.
    """

    pixel_hash: str | None
    small: np.ndarray
    tile: bytes
    facts: ImageFacts


def scan_images(
    paths: Sequence[Path], cache: Path | None = None, *, progress: Progress = lambda done, total: None
) -> list[Scanned | ImageError]:
    """Read the images in decoding processes.

    Args:
        paths: N files.
        cache: file that keeps the results; None: nothing is kept.
        progress: called with (done, N).
    """
    with closing(_open_cache(cache)) as kept:
        keys = [file_key(path) for path in paths]
        found: list[Scanned | ImageError | None] = [_cached(kept, key) for key in keys]
        missing = [i for i, one in enumerate(found) if one is None]
        done = len(paths) - len(missing)
        with decoding_processes(images=len(missing)):
            for batch, results in read_ahead(batches(missing, BATCH), lambda i: scan_image(paths[i])):
                for i, result in zip(batch, results, strict=True):
                    found[i] = result
                _keep(kept, [(keys[i], one) for i, one in zip(batch, results, strict=True)])
                done += len(batch)
                progress(done, len(paths))
    return [one for one in found if one is not None]


def scan_image(source: Source, *, original: bool = True) -> Scanned | ImageError:
    """Read one image.

    Args:
        original: False: the source is a thumbnail, which says nothing about the original's pixels.
    """

    def take(digest: str, small: np.ndarray, tile: np.ndarray, facts: np.ndarray) -> Scanned:
        width, height, *rest = facts.tolist()
        known = ImageFacts(int(width), int(height), *rest)
        return Scanned(digest if original else None, small.copy(), tile.tobytes(), known)

    try:
        return run_isolated(_read, source, take=take)
    except ImageError as error:
        return error


def left_out(folder: Path, without: Sequence[Path] = ()) -> dict[str, int]:
    """Count the files of a folder that are not read as images, by suffix in lower case, the most frequent first.

    Args:
        without: files that are not counted, such as the table of labels.
    """
    excluded = {Path(one).resolve() for one in without}
    counts: Counter[str] = Counter()
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(parent, name)
            if name.startswith(".") or path.suffix.lower() in IMAGE_SUFFIXES or path.resolve() in excluded:
                continue
            counts[path.suffix.lower() or "(none)"] += 1
    return dict(counts.most_common())


def _read(source: Source) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
    image = decode_image(source)
    gray = image.convert("L")
    squashed = gray.resize((SIDE, SIDE), Image.Resampling.BILINEAR, reducing_gap=3.0)
    gray.thumbnail((FACTS_SIDE, FACTS_SIDE), reducing_gap=2.0)
    facts = image_facts(np.asarray(gray), *image.size)
    digest = pixel_hash(image)
    image.thumbnail((TILE, TILE), reducing_gap=2.0)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    tile = np.frombuffer(file.getvalue(), np.uint8)
    return digest, np.asarray(squashed), tile, np.array(list(asdict(facts).values()), np.float64)


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
        kept = sqlite3.connect(path)
        kept.execute(schema)
    return kept


def _cached(kept: sqlite3.Connection, key: bytes) -> Scanned | None:
    row = kept.execute("SELECT hash, small, tile, facts FROM scanned WHERE key = ?", (key,)).fetchone()
    if row is None or len(row[1]) != SIDE * SIDE:
        return None
    width, height, *rest = json.loads(row[3])
    small = np.frombuffer(row[1], np.uint8).reshape(SIDE, SIDE)
    return Scanned(row[0], small, row[2], ImageFacts(int(width), int(height), *rest))


def _keep(kept: sqlite3.Connection, results: Sequence[tuple[bytes, Scanned | ImageError]]) -> None:
    rows = [
        (key, one.pixel_hash, one.small.tobytes(), one.tile, json.dumps(list(asdict(one.facts).values())))
        for key, one in results
        if isinstance(one, Scanned)
    ]
    kept.executemany("INSERT OR REPLACE INTO scanned VALUES (?, ?, ?, ?, ?)", rows)
    kept.commit()
