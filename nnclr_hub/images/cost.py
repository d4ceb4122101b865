"""Refuse JPEG and PNG files whose structure costs far more time than their pixels, before anything is decoded.

A progressive JPEG may repeat a scan: 65 bytes then cost 50 ms at 40 megapixels. Files of many tiny segments or chunks
cost time in Python. `pool` bounds all other costs: it ends the process that exceeds a limit.
"""

from __future__ import annotations

import io
import re
import struct
from typing import BinaryIO

from nnclr_hub.errors import ImageTooExpensive

MAX_SCANS = 100  # in a JPEG; encoders write about 10
MAX_READ = 256_000_000  # bytes of a file that are examined
_PARTS, _BYTES_PER_PART = 1000, 256  # a file may have 1000 segments, chunks or blocks, and one more per 256 bytes

_JPEG, _PNG, _GIF = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", (b"GIF87a", b"GIF89a")
# the next marker after entropy-coded data, where FF 00 is a value and FF D0 to FF D7 are restarts
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # SOF markers
_PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)
_GIF_EXTENSION, _GIF_FRAME, _GIF_END = 0x21, 0x2C, 0x3B
_SCAN, _END, _ALONE = 0xDA, 0xD9, (0x01, 0xD8)


def check_cost(file: BinaryIO) -> BinaryIO:
    """Check a file at its start; raise ImageTooExpensive for too many scans, segments, chunks or blocks.

    Returns:
        The file, or a copy in memory that need not be read again.
    """
    start = file.read(len(_PNG))
    file.seek(0)
    checks = ((_JPEG, _check_jpeg), (_PNG, _check_png), (_GIF, _check_gif))
    check = next((check for mark, check in checks if start.startswith(mark)), None)
    if check is None:
        return file
    if isinstance(file, io.BytesIO):
        check(file.getvalue())  # the bytes that it was made of, without a copy
        return file
    data = file.read(MAX_READ)
    file.seek(0)
    check(data)
    return io.BytesIO(data) if len(data) < MAX_READ else file


def _check_jpeg(data: bytes) -> None:
    """Count the scans of the first image. A JPEG that is not progressive, and has one scan, is not read further."""
    limit = _PARTS + len(data) // _BYTES_PER_PART
    parts = scans = components = 0
    progressive = False
    position = 2
    while (found := _MARKER.search(data, position)) is not None:
        code, position = data[found.start() + 1], found.end()
        header = data[position : position + 8]
        if code == _END or len(header) < 8:
            break
        if code in _ALONE:
            continue
        parts += 1
        if code in _FRAMES:
            components, progressive = header[7], code in _PROGRESSIVE
        elif code == _SCAN:
            scans += 1
            if not progressive and header[2] == components:
                break
        if scans > MAX_SCANS:
            raise ImageTooExpensive(f"The JPEG has more than {MAX_SCANS} scans; save it again with an image editor.")
        if parts > limit:
            raise ImageTooExpensive(f"The JPEG has more than {limit} segments; save it again without metadata.")
        position += int.from_bytes(header[:2], "big")


def _check_png(data: bytes) -> None:
    limit = _PARTS + len(data) // _BYTES_PER_PART
    parts, position, size = 0, len(_PNG), len(data)
    while position + 8 <= size:
        parts += 1
        if parts > limit:
            raise ImageTooExpensive(f"The PNG has more than {limit} chunks; save it again without metadata.")
        position += 12 + struct.unpack_from(">I", data, position)[0]


def _check_gif(data: bytes) -> None:
    """Count the blocks before the first frame; encoders fill them with 255 bytes each."""
    limit = _PARTS + len(data) // _BYTES_PER_PART
    size, parts = len(data), 0
    position = 13 + (2 << (data[10] & 7)) * 3 if size > 10 and data[10] & 0x80 else 13  # after the palette
    while position < size and data[position] not in (_GIF_FRAME, _GIF_END):
        extension = data[position] == _GIF_EXTENSION  # Pillow skips every other byte
        position += 2 if extension else 1
        parts += 1
        while extension and parts <= limit and position < size and data[position]:
            position += 1 + data[position]
            parts += 1
        position += extension  # the end of its blocks
        if parts > limit:
            raise ImageTooExpensive(f"The GIF has more than {limit} blocks; save it again without comments.")
