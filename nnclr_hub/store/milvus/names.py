"""How names are encoded for Milvus.

Milvus allows A-Z a-z 0-9 _ and 255 characters. Our names may contain . ~ - and letters of any script, too, and may
begin with a digit. The prefix separates our collections from those of other programs in the same database.

    encode("photos.v2")  ->  "nnclr_photos_dv2"
"""

from __future__ import annotations

import base64
import re

_PLAIN, _LONG = "nnclr_", "nnclrx_"
_ESCAPES = {"_": "__", ".": "_d", "~": "_t", "-": "_m"}
_MEANINGS = {escape[1]: character for character, escape in _ESCAPES.items()}
# Milvus's limit, in bytes
_MAX_NAME = 255


def encode(name: str) -> str:
    """Return the name in Milvus of a collection or alias; `check_collection_name` must have accepted it."""
    escaped = _PLAIN + "".join(_ESCAPES.get(character, character) for character in name)
    if len(escaped) <= _MAX_NAME and name.isascii() and " " not in name:
        return escaped
    # 128 bytes that nearly all need an escape are too long; base32 takes at most 205
    return _LONG + base64.b32encode(name.encode()).decode().rstrip("=").lower()


def decode(name: str) -> str | None:
    """Return the name that was encoded; None for a collection of another program."""
    if name.startswith(_LONG):
        text = name.removeprefix(_LONG).upper()
        try:
            return base64.b32decode(text + "=" * (-len(text) % 8)).decode()
        except ValueError:
            return None
    if not name.startswith(_PLAIN) or not re.fullmatch(r"([A-Za-z0-9]|_[_dtm])+", name.removeprefix(_PLAIN)):
        return None
    return re.sub("_(.)", lambda escape: _MEANINGS[escape[1]], name.removeprefix(_PLAIN))
