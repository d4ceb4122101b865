"""Thumbnails: what a collection keeps of an image to show."""

from __future__ import annotations

import io

from PIL import Image

from nnclr_hub.store.checks import MAX_THUMBNAIL

SIDE = 256  # pixels of the longer side

# Of noise and fine texture, 256 x 256 at 85 take up to 63 kB; at 10 no image takes more than 20.
QUALITIES = (85, 60, 30, 10)


def make_thumbnail(image: Image.Image) -> bytes:
    """A JPEG of at most 256 pixels a side, as good as a collection has room for; smaller images are not enlarged.

    Args:
        image: RGB, upright.
    """
    small = image.copy()
    small.thumbnail((SIDE, SIDE), reducing_gap=2.0)
    *better, worst = QUALITIES
    for quality in better:
        if len(jpeg := _jpeg(small, quality)) <= MAX_THUMBNAIL:
            return jpeg
    return _jpeg(small, worst)


def _jpeg(image: Image.Image, quality: int) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()
