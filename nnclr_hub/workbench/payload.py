"""Images and vectors as JSON carries them: base64 and data URIs."""

from __future__ import annotations

import base64
import binascii
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.images.source import Source
from nnclr_hub.plural import counted
from nnclr_hub.remote_files import is_address

if TYPE_CHECKING:
    from nnclr_hub.encoder.embedder import ImageLike

# the URL-safe alphabet, and the line breaks that mail programs and shells insert
_TOLERATED = str.maketrans("-_", "+/", " \t\r\n")


def encode_vector(vector: Any) -> str:
    """Return a vector (D,) as base64 of little-endian float32, or raise InvalidRequest if it is not a vector."""
    try:
        row = np.asarray(vector)
    except (TypeError, ValueError, RuntimeError) as error:  # the last one by torch
        raise InvalidRequest(f"A vector must have shape (D,) and hold numbers ({error}).") from error
    if row.ndim != 1 or row.dtype.kind not in "fiu":
        raise InvalidRequest(f"A vector must have shape (D,) and hold numbers; got {row.shape} {row.dtype}.")
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def decode_vector(vector: Any, what: str = "vector") -> np.ndarray:
    """Return (D,) float32 from a list of numbers, an array, or base64 of little-endian float32.

    Args:
        what: name of the field, for the InvalidRequest about anything else.
    """
    if isinstance(vector, str):
        data = decode_base64(vector, what)
        if len(data) % 4:
            raise InvalidRequest(f"{what} has {counted(len(data), 'byte')}, which is not a multiple of 4 (float32).")
        return np.frombuffer(data, "<f4").astype(np.float32)
    try:
        with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, which the store refuses
            row = np.asarray(vector, np.float32)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # an int beyond float64; a tensor of torch
        raise InvalidRequest(f"{what} must be a list of numbers, got {vector!r:.80}.") from error
    if row.ndim != 1:
        raise InvalidRequest(f"{what} must have shape (D,), got {row.shape}.")
    return row


def encode_image(image: ImageLike) -> str:
    """Return an image file as base64; PIL images and arrays become PNG."""
    return base64.b64encode(image_file(image)[1]).decode()


def decode_base64(text: str, what: str) -> bytes:
    """Return the bytes of base64 or of a data URI.

    Args:
        what: name of the field, for the InvalidRequest about a text that is neither, or empty.
    """
    if text[:5].lower() == "data:":
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise InvalidRequest(f"{what} is a data URI without base64; write data:image/jpeg;base64,....")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        plain = text.translate(_TOLERATED)
        try:
            data = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidRequest(f"{what} is neither base64 nor a data URI.") from error
    if not data:
        raise InvalidRequest(f"{what} is empty.")
    return data


def image_file(image: ImageLike) -> tuple[str, bytes]:
    """Return a file name and the bytes of an image file.

    Args:
        image: a path or address, the bytes of a file, a PIL image, or (H, W, 3) uint8; the last two become PNG.
    """
    if isinstance(image, bytes):
        return "image", image
    if isinstance(image, str) and is_address(image):
        image = Source.at(image)
    if isinstance(image, Source) and image.file is not None:
        image = image.file
    if isinstance(image, Source):
        return image.name.encode("utf-8", "replace").decode(), image.read()
    if isinstance(image, Path | str):
        from nnclr_hub.errors import ImageError

        try:
            if Path(image).exists() and not Path(image).is_file():  # reading a pipe would never end
                raise ImageError("The file cannot be opened: it is a folder or a device.")
            # file names may hold bytes that are not UTF-8, which a header cannot carry
            return Path(image).name.encode("utf-8", "replace").decode(), Path(image).read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ImageError(f"{image} cannot be opened ({reason}).") from error
    return "image.png", _png(image)


def _png(image: Any) -> bytes:
    from PIL import Image

    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise InvalidRequest(f"An image array must be (H, W, 3) uint8, got {image.shape} {image.dtype}.")
        image = Image.fromarray(image)
    if not isinstance(image, Image.Image):
        raise InvalidRequest(f"{type(image).__name__} is not an image; give a path, bytes, a PIL image or an array.")
    from nnclr_hub.images.decode import decode_image

    file = io.BytesIO()
    # a PNG has no CMYK, and Pillow does not write the orientation
    decode_image(image).save(file, "PNG", compress_level=1)
    return file.getvalue()
