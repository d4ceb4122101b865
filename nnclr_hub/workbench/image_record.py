"""What a collection stores of an image besides its vector: a thumbnail and a hash of its pixels.

Decoding processes import this module, so it must not import torch.
"""

from __future__ import annotations

import hashlib
import io

from PIL import Image

from nnclr_hub.images.channels import AnyImage, ChannelImage, for_people
from nnclr_hub.images.color import LOST
from nnclr_hub.images.decode import DecodableImage, decode_any
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.store.checks import MAX_THUMBNAIL

SIDE = 256  # pixels of the longer side
# Noise and fine texture of 256 x 256 take up to 63 kB at quality 85; at 10 no image takes more than 20 kB.
QUALITIES = (85, 60, 30, 10)


def record(
    source: DecodableImage, reading: ImageReading, with_thumbnail: bool, with_image: bool
) -> tuple[str, bytes | None, AnyImage | None]:
    """Decode an image; return its hash, its thumbnail, and itself."""
    image = decode_any(source, reading)
    thumbnail = make_thumbnail(image) if with_thumbnail else None
    return pixel_hash(image), thumbnail, image if with_image else None


def make_thumbnail(image: AnyImage) -> bytes:
    """Return a JPEG of at most 256 pixels per side, in the best quality that the store accepts.

    Smaller images are not enlarged.

    Args:
        image: upright; of several channels, the first three are shown as red, green and blue.
    """
    small = for_people(image).copy()
    small.thumbnail((SIDE, SIDE), reducing_gap=2.0)
    for quality in QUALITIES[:-1]:
        if len(jpeg := _jpeg(small, quality)) <= MAX_THUMBNAIL:
            return jpeg
    return _jpeg(small, QUALITIES[-1])


def pixel_hash(image: AnyImage) -> str:
    """Return a hash that is equal for equal images, whatever their files are.

    It is the SHA-256, in hex, of width and height (8 bytes each, little-endian) and the bytes of RGB, or of all
    channels, row by row; and of what the conversion to 8 bits and the blending of transparent pixels lost. It is not
    a hash of the file: other frames, pages, channels and EXIF may differ.

    Args:
        image: as `decode_any` returns it, upright.
    """
    rgb = image if isinstance(image, ChannelImage) else for_people(image)
    digest = hashlib.sha256(b"".join(side.to_bytes(8, "little") for side in rgb.size))
    digest.update(rgb.tobytes())
    if isinstance(rgb, Image.Image):
        digest.update(rgb.info.get(LOST, b""))
    return digest.hexdigest()


def _jpeg(image: Image.Image, quality: int) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()
