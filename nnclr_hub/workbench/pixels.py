"""What tells whether two images are the same, whatever their files are."""

from __future__ import annotations

import hashlib

from PIL import Image


def pixel_hash(image: Image.Image) -> str:
    """SHA-256, in hex, of width and height (8 bytes each, little-endian) and the RGB bytes row by row.

    Args:
        image: as `decode_image` returns it: RGB, upright.
    """
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    digest = hashlib.sha256(b"".join(side.to_bytes(8, "little") for side in rgb.size))
    digest.update(rgb.tobytes())
    return digest.hexdigest()
