"""Images and vectors as text: base64, data URIs, and web addresses where they may be fetched."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

import numpy as np

from nnclr_hub.errors import InvalidRequest

_LOOSE = str.maketrans("-_", "+/", " \t\r\n")


def is_address(text: str) -> bool:
    """Whether an image is given by its web address."""
    return text[:8].lower().startswith(("http://", "https://"))


def decode_text(text: str, what: str, fetched: Mapping[str, bytes | str] | None = None) -> bytes:
    """The bytes of a data URI or of base64, or those that were fetched from a web address.

    Args:
        what: the name of the field, for the sentence.
        fetched: by address: the bytes, or why there are none.

    Raises:
        InvalidRequest: it is none of these, or could not be fetched.
    """
    if is_address(text):
        found = (fetched or {}).get(text, "is a web address, which this server does not fetch: send the image itself.")
        if isinstance(found, str):
            raise InvalidRequest(f"{what} {found}")
        return found
    if text[:5].lower() == "data:":
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise InvalidRequest(f"{what} is a data URI without base64: write data:image/jpeg;base64,....")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = _decode_loosely(text, what)
    if not data:
        raise InvalidRequest(f"{what} is empty.")
    return data


def _decode_loosely(text: str, what: str) -> bytes:
    """Base64 in lines, as programs of mail and shells write it, or in the alphabet for addresses, and unpadded."""
    plain = text.translate(_LOOSE)
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"{what} is neither base64 nor a data URI.") from error


def decode_vector(vector: list[float] | str, what: str) -> np.ndarray:
    """(D,) float32 of a list of numbers, or of base64 of little-endian float32.

    Raises:
        InvalidRequest: it is neither.
    """
    if isinstance(vector, str):
        data = decode_text(vector, what)
        if len(data) % 4:
            raise InvalidRequest(f"{what} has {len(data)} bytes, which is no whole number of float32.")
        return np.frombuffer(data, "<f4").astype(np.float32)
    with np.errstate(over="ignore"):  # what is beyond float32 becomes infinite, which the store refuses
        return np.asarray(vector, np.float32)


def encode_vector(vector: np.ndarray) -> str:
    """Base64 of little-endian float32, as OpenAI's clients expect it."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
