"""Images as requests carry them: files, in batches that one request can hold.

list(bounded(paths, size_of))       # lists of at most 64 members and 19 MB
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.read_ahead import batches

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    ImageLike = Path | str | bytes | Image | np.ndarray

MOST = 64  # images per request
MOST_BYTES = 19_000_000  # leaves space for the headers of the parts below the server's 20 MB
T = TypeVar("T")


def as_images(images: Iterable[ImageLike]) -> list[ImageLike]:
    """Return the images in a list.

    Raises:
        InvalidRequest: if it is a single image.
    """
    if isinstance(images, str | bytes | Path) or not isinstance(images, Iterable):
        raise InvalidRequest("Give a list of images, even for one: client.embed([image]).")
    return list(images)


def bounded(things: Iterable[T], size: Callable[[T], int], *, most: int = MOST) -> Iterator[list[T]]:
    """Yield lists that one request can hold, in order; a thing above the limit is alone in its list."""
    return batches(things, most, size, MOST_BYTES)


def shrunk(data: bytes, side: int) -> bytes:
    """Return an upright JPEG of at most `side` pixels per side, or the file itself if that is not larger.

    Raises:
        ImageError: if the image cannot be read.
    """
    from nnclr_hub.images.decode import decode_image

    image = decode_image(data)
    if max(image.size) <= side:
        return data
    image.thumbnail((side, side), reducing_gap=2.0)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue() if file.tell() < len(data) else data
