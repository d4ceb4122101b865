"""Small files that cost far more to decode than their size suggests."""

import io
import struct
import zlib

from PIL import Image


def repeated_scans(scans: int, size: tuple[int, int] = (8000, 5000)) -> bytes:
    """Return a progressive JPEG whose last scan is repeated; 65 bytes per scan cost 25 ms at 40 megapixels."""
    file = io.BytesIO()
    Image.new("RGB", size, (90, 120, 200)).save(file, "JPEG", progressive=True, quality=50)
    whole = file.getvalue()
    last = whole[whole.rfind(b"\xff\xda") : -2]
    return whole[:-2] + last * scans + whole[-2:]


def many_segments(count: int) -> bytes:
    """Return a JPEG with many empty comments."""
    file = io.BytesIO()
    Image.new("RGB", (32, 32)).save(file, "JPEG")
    whole = file.getvalue()
    return whole[:2] + b"\xff\xfe\x00\x02" * count + whole[2:]


def many_chunks(count: int) -> bytes:
    """Return a PNG with many small text chunks."""
    file = io.BytesIO()
    Image.new("RGB", (32, 32)).save(file, "PNG")
    whole = file.getvalue()
    text = b"tEXta\0b"
    chunk = struct.pack(">I", 3) + text + struct.pack(">I", zlib.crc32(text))
    return whole[:33] + chunk * count + whole[33:]  # after the signature and IHDR


def many_blocks(count: int) -> bytes:
    """Return a GIF with many small comments; Pillow copies all of them for each one."""
    file = io.BytesIO()
    Image.new("RGB", (32, 32), (1, 2, 3)).save(file, "GIF")
    whole = file.getvalue()
    frame = whole.rindex(b",\0\0\0\0 \0 \0")
    return whole[:frame] + b"!\xfe\x01a\0" * count + whole[frame:]


def many_pages(count: int) -> bytes:
    """Return a TIFF with many pages of one pixel."""
    file = io.BytesIO()
    Image.new("L", (1, 1)).save(file, "TIFF")
    first = file.getvalue()
    entries = first[8:]
    [length] = struct.unpack_from("<H", entries)
    directory = bytearray(entries[: 2 + 12 * length])
    pages = []
    for page in range(count):
        here = len(first) + page * (len(directory) + 4)
        pages.append(bytes(directory) + struct.pack("<I", here + len(directory) + 4 if page < count - 1 else 0))
    at = 8 + len(directory)
    return first[:at] + struct.pack("<I", len(first)) + first[at + 4 :] + b"".join(pages)
