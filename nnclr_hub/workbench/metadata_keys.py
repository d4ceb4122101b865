"""The metadata keys that indexing writes. The client imports them, without Pillow."""

from __future__ import annotations

# metadata key of every indexed image: SHA-256 of its size and upright RGB pixels
PIXEL_HASH = "pixel_sha256"
# metadata key of an uploaded image whose file is kept: SHA-256 of the bytes of the file
FILE_HASH = "file_sha256"
HASHES = (PIXEL_HASH, FILE_HASH)  # which no edit of metadata changes
BOX, WINDOW = "box", "window"  # metadata keys of a tile; see `Source`
OFFSET = "archive_offset"  # metadata key of an image in an archive; see `Source`
PLACE = frozenset({"root", "path", "size", "mtime"})  # in the metadata of all images that indexing sends
OWNED = PLACE | {PIXEL_HASH, FILE_HASH, BOX, WINDOW, OFFSET}  # metadata keys that users do not write
