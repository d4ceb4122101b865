"""Pages and channels of a file that Pillow reads: animations, and images with an alpha channel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageOps

from nnclr_hub.images.color import to_rgb
from nnclr_hub.images.readers.stack import Box, ImageStack
from nnclr_hub.images.reading import ImageReading

_ORIENTATION = 0x0112  # EXIF tag
_SWAPPED = range(5, 9)  # orientations that swap width and height


def pillow_stack(image: Image.Image, reading: ImageReading) -> ImageStack:
    """Return the frames of an image as pages. Alpha is a channel only if the reading selects it."""
    image.seek(0)
    first = _frame(image, 4)
    alpha = first.mode in ("RGBA", "LA") and max(reading.channels, default=0) == len(first.getbands()) - 1
    channels = len(first.getbands()) - (first.mode in ("RGBA", "LA") and not alpha)
    swapped = image.getexif().get(_ORIENTATION) in _SWAPPED
    several = reading.page is not None or bool(reading.project)

    def read(page: int, wanted: Sequence[int], box: Box | None) -> np.ndarray:
        image.seek(page)
        frame = _frame(ImageOps.exif_transpose(image), channels)
        frame = frame if box is None else frame.crop(box)
        values = np.asarray(frame)
        return values.reshape(*values.shape[:2], -1)[:, :, list(wanted)]

    return ImageStack(
        getattr(image, "n_frames", 1) if several else 1,
        channels,
        (image.height, image.width) if swapped else image.size,
        np.asarray(first.crop((0, 0, 1, 1))).dtype,
        read,
    )


def _frame(image: Image.Image, channels: int) -> Image.Image:
    """Return an image whose bands are its channels: gray, RGB, and alpha if there are so many."""
    if image.mode in ("L", "LA", "RGB", "RGBA", "I", "F") or image.mode.startswith("I;16"):
        found = image
    else:
        found = image.convert("RGBA" if image.has_transparency_data else "L" if image.mode == "1" else "RGB")
    if found.mode in ("RGBA", "LA") and channels < len(found.getbands()):
        rgb = to_rgb(found)
        return rgb if channels == 3 else rgb.convert("L")
    return found
