"""Cursors of listings: where the next page begins, and which listing it belongs to.

    write_cursor("photos", where, "p7")     # opaque text
    read_cursor("photos", where, text)      # "p7"; of another collection or filter it is refused

By the last id and not by a number, so that what is added or deleted meanwhile neither repeats nor skips an item.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from nnclr_hub.errors import InvalidRequest

_CHECK = 9  # bytes, so that base64 has no padding before the id


def write_cursor(name: str, where: Mapping[str, Any] | None, last: str) -> str:
    """The cursor behind an item."""
    return base64.urlsafe_b64encode(_check(name, where, last) + last.encode()).decode().rstrip("=")


def read_cursor(name: str, where: Mapping[str, Any] | None, cursor: str) -> str:
    """The id of the item before the page.

    Raises:
        InvalidRequest: it is no cursor, or one of another listing.
    """
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        last = data[_CHECK:].decode()
    except (binascii.Error, ValueError):
        data, last = b"", ""
    if not last or data[:_CHECK] != _check(name, where, last):
        raise InvalidRequest(
            f"The cursor {cursor!r:.60} is none of this listing: give the one that its page before came with, with the "
            "same collection and filter, or none for the first page."
        )
    return last


def _check(name: str, where: Mapping[str, Any] | None, last: str) -> bytes:
    listing = json.dumps([name, where, last], sort_keys=True).encode()
    return hashlib.blake2b(listing, digest_size=_CHECK).digest()
