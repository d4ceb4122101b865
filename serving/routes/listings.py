"""Listings: the cursor of the next page, and the query parameter `where`, a filter on metadata as JSON.

    write_cursor("photos", where, "p7")     # opaque text
    read_cursor("photos", where, text)      # "p7"; refuses a cursor of another collection or filter

A cursor belongs to one collection and filter. It holds the last id and not a position: additions and deletions
between two pages then neither repeat nor skip an item.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query
from pydantic import TypeAdapter, ValidationError

from nnclr_hub.errors import InvalidFilter, InvalidRequest
from nnclr_hub.workbench.privacy import public_where

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


_WHERE: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
WhereText = Annotated[
    str | None,
    Query(description='filter on metadata as JSON, such as {"must": [{"key": "label", "match": "cat"}]}'),
]


def read_where(text: str | None) -> dict[str, Any] | None:
    """Parse the filter; None: no filter.

    Raises:
        InvalidFilter: the text is not a JSON object, or it names a private key.
    """
    if text is None:
        return None
    try:
        where = _WHERE.validate_json(text)
        public_where(where)
    except ValidationError as error:
        raise InvalidFilter("where must be a JSON object.") from error
    except ValueError as error:
        raise InvalidFilter(f"where: {error}.") from error
    return where
