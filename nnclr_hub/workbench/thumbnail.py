"""Thumbnails: what a collection keeps of a picture to show."""

from __future__ import annotations

import io

from PIL import Image

SIDE = 256  # pixels of the longer side


def make_thumbnail(image: Image.Image) -> bytes:
    """A JPEG of at most 256 pixels a side; smaller pictures are not enlarged.

    Args:
        image: RGB, upright.
    """
    small = image.copy()
    small.thumbnail((SIDE, SIDE), reducing_gap=2.0)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=85)
    return file.getvalue()
