"""How much of an image's contrast remains at fewer pixels: photographs keep most of it, fine textures lose it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from nnclr_hub.errors import ImageError
from nnclr_hub.images.pool import decoding_processes, run_isolated
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import PackedImage

from .cutting import decode_reduced

SAMPLED = 40  # most images that are read, in about a second
FULL = 256  # pixels of the short side that count as all of the detail
SIDES = (48, 64, 96, 128, 160)


def kept_contrast(
    paths: Sequence[Path | PackedImage], reading: ImageReading = PLAIN, channels: int = 3
) -> dict[int, float]:
    """Return {side in pixels: median share of the variance of the pixels that remains at that side, in [0, 1]}.

    An image is compared with its copy that is shrunk to that side and enlarged again. Empty if no image can be read.
    """
    shares = []
    count = min(len(paths), SAMPLED)
    with decoding_processes(1):
        for number in range(count):
            path = paths[number * len(paths) // count]
            if isinstance(path, Path) and not path.is_file():  # opening a named pipe would block
                continue
            try:
                pixels, _, _ = run_isolated(decode_reduced, path, FULL, 4 * FULL, reading, channels)
            except (ImageError, OSError):
                continue  # decoding will report the reason
            gray = pixels.mean(axis=2, dtype=np.float32)
            if gray.var() > 1:  # else an empty image
                shares.append([_kept(gray, side) for side in SIDES])
    return dict(zip(SIDES, np.median(shares, axis=0).tolist(), strict=True)) if shares else {}


def _kept(gray: np.ndarray, side: int) -> float:
    """Return the share of the variance of (H, W) float32 pixels that remains at that short side."""
    height, width = gray.shape
    factor = side / min(gray.shape)
    if factor >= 1:
        return 1.0
    image = Image.fromarray(gray)
    small = image.resize((max(1, round(width * factor)), max(1, round(height * factor))), Image.Resampling.LANCZOS)
    lost = gray - np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))
    return max(0.0, 1 - float(lost.var() / gray.var()))
