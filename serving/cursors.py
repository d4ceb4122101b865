"""Cursors of listings: where the next page starts, and to which listing it belongs.

    write_cursor("photos", where, "p7")     # opaque text
    read_cursor("photos", where, text)      # "p7"; refuses a cursor of another collection or filter

A cursor holds the last id and not a position: additions and deletions between two pages then neither repeat nor
skip an item.
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
    """Return the cursor after an item."""
    return base64.urlsafe_b64encode(_check(name, where, last) + last.encode()).decode().rstrip("=")


def read_cursor(name: str, where: Mapping[str, Any] | None, cursor: str) -> str:
    """Return the id of the last item of the previous page.

    Raises:
        InvalidRequest: the cursor is malformed, or belongs to another listing.
    """
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        last = data[_CHECK:].decode()
    except (binascii.Error, ValueError):
        data, last = b"", ""
    if not last or data[:_CHECK] != _check(name, where, last):
        raise InvalidRequest(
            f"Invalid cursor {cursor!r:.60}; pass the one from the previous page with the same collection and filter, "
            "or omit it."
        )
    return last


def _check(name: str, where: Mapping[str, Any] | None, last: str) -> bytes:
    listing = json.dumps([name, where, last], sort_keys=True).encode()
    return hashlib.blake2b(listing, digest_size=_CHECK).digest()
