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
