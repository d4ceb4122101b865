"""Images in requests: read from any form to bytes, and the limits of one request."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnclr_hub.errors import ImageError, InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    ImageLike = Path | str | bytes | Image | np.ndarray

MOST = 64  # images a request
MOST_BYTES = 19_000_000  # leaves room for the parts' headers below the server's 20 MB


def read_image(image: ImageLike) -> tuple[str, bytes]:
    """An image's name and file.

    Args:
        image: a path, a file's bytes, a PIL image, or (H, W, 3) uint8; the latter two are sent as PNG.

    Raises:
        ImageError: the file cannot be opened.
        InvalidRequest: it is none of these.
    """
    if isinstance(image, bytes):
        return "image", image
    if isinstance(image, Path | str):
        try:
            return _plain(Path(image).name), Path(image).read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ImageError(f"{image} cannot be opened ({reason}).") from error
    return "image.png", _png(image)


def as_images(images: Iterable[ImageLike]) -> list[ImageLike]:
    """The images in a list.

    Raises:
        InvalidRequest: it is a single one.
    """
    if isinstance(images, str | bytes | Path) or not isinstance(images, Iterable):
        raise InvalidRequest("Give a list of images, even for one: client.embed([image]).")
    return list(images)


def shrunk(data: bytes, side: int) -> bytes:
    """A JPEG of at most `side` pixels a side, upright; the file itself if that is no larger.

    Raises:
        ImageError: the image cannot be read.
    """
    from nnclr_hub.encoder.decoding import decode_image

    image = decode_image(data)
    if max(image.size) <= side:
        return data
    image.thumbnail((side, side), reducing_gap=2.0)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue() if file.tell() < len(data) else data


def _png(image: Any) -> bytes:
    import numpy as np
    from PIL import Image

    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise InvalidRequest(
                f"An array of shape {image.shape} and type {image.dtype} is no image: give (H, W, 3) uint8."
            )
        image = Image.fromarray(image)
    if not isinstance(image, Image.Image):
        raise InvalidRequest(f"{type(image).__name__} is no image: give a path, bytes, a PIL image or an array.")
    from nnclr_hub.encoder.decoding import decode_image

    file = io.BytesIO()
    # a PNG has no CMYK, and Pillow leaves the orientation behind
    decode_image(image).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _plain(name: str) -> str:
    """A name that a header can carry, whatever bytes the file system has in it."""
    return name.encode("utf-8", "replace").decode()
