"""The images in a zip file, read without unpacking.

    for name, size, mtime, offset, zipped in zip_members(file, "photos.zip"):
        unzipped(read, offset, name, size, zipped)          # read(offset, count) returns bytes of the zip

With `limited`, `zip_members` refuses what is not an ordinary zip of images, since the file may come from anyone. Sizes
are counted while an entry is read, whatever the zip declares.
"""

from __future__ import annotations

import calendar
import mmap
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import BinaryIO

from nnclr_hub.errors import ImageError, ImageTooLarge, InvalidRequest
from nnclr_hub.images.folder import is_image
from nnclr_hub.images.tar import LINKS, path_inside

SUFFIX = ".zip"
MOST_FILES = 100_000
MOST_BYTES = 20_000_000_000  # of all files, unpacked
MOST_RATIO = 100  # of unpacked to packed bytes; photos have 1, uncompressed drawings up to 50
RATIO_FROM = 50_000_000  # bytes below which the ratio is not checked
MOST_IMAGE = 20_000_000
HEADING = b"PK\x01\x02"  # starts each entry of the zip's directory
FILE_HEADING = b"PK\x03\x04"  # starts each file
ENCRYPTED, STREAMED = 0x1, 0x8  # flags; a streamed heading has neither CRC-32 nor packed size
READ = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # other methods may need gigabytes of memory
BROKEN = (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, ValueError, zlib.error)
# the heading of a file: signature, flags, method, CRC-32, packed size, lengths of its name and extra field
_LOCAL = struct.Struct("<4s2xHH4xII4xHH")
_EXTRA = 256  # bytes of an extra field that are read with the file; those of usual programs have 30
_OF_ZIP64 = 0xFFFFFFFF

Zipped = tuple[int, int]  # of a file in a zip: its packed size in bytes, and the CRC-32 of its content


def zip_members(
    file: BinaryIO, name: str, others: Counter[str] | None = None, *, limited: bool = False
) -> Iterator[tuple[str, int, float, int, Zipped]]:
    """Yield (name, size, mtime, offset of its heading) of each image, by suffix, in the order of the zip's directory.

    Names are those of `path_inside`; programs for Windows write them with backslashes.

    Args:
        file: the zip, which can be read anywhere.
        name: for error messages.
        others: counts the files that are not images, by suffix, and links.
        limited: refuse a zip with too many files or bytes; the file is then a local one.

    Raises:
        InvalidRequest: it is not a zip, is damaged, is encrypted, or exceeds a limit.
    """
    others = Counter() if others is None else others
    if limited and _headings(file) > MOST_FILES:
        raise InvalidRequest(f"{name} holds more than {MOST_FILES:,} files; split it into several zips.")
    try:
        entries = zipfile.ZipFile(file).infolist()
    except BROKEN as error:
        raise InvalidRequest(f"{name} is not a complete zip file ({error}); create it again, or unpack it.") from error
    file.seek(0)
    if file.read(len(FILE_HEADING)) == FILE_HEADING and all(entry.header_offset > 0 for entry in entries):
        # these are the entries of a zip in the zip: a truncated file may end with the directory of one
        raise InvalidRequest(f"{name} is truncated; create it again, or unpack it.")
    size, packed = (sum(getattr(entry, of) for entry in entries) for of in ("file_size", "compress_size"))
    if limited and size > MOST_BYTES:
        raise InvalidRequest(f"{name} would unpack to {_words(size)}; the limit is {_words(MOST_BYTES)}; split it.")
    if limited and size > RATIO_FROM and size > MOST_RATIO * packed:
        raise InvalidRequest(
            f"{name} would unpack to {size // max(1, packed):,} times its size, which images never do; choose the "
            "folder of images itself."
        )
    for entry in entries:
        path = "" if entry.is_dir() else path_inside(entry.filename.replace("\\", "/"), others)
        if not path:
            continue
        if entry.flag_bits & ENCRYPTED:
            raise InvalidRequest(f"{name} is encrypted; pack the images without a password.")
        is_link = stat.S_ISLNK(entry.external_attr >> 16)
        if is_link or not is_image(path):
            others[LINKS if is_link else PurePosixPath(path).suffix.lower()] += 1
            continue
        try:
            changed = float(calendar.timegm((*entry.date_time, 0, 0, 0)))  # without a time zone, so as if in UTC
        except (OverflowError, ValueError):
            changed = 0.0
        yield path, entry.file_size, changed, entry.header_offset, (entry.compress_size, entry.CRC)


def _headings(file: BinaryIO) -> int:
    """Return an upper bound on the number of entries, before reading a directory that could fill the memory."""
    count, position = 0, -1
    try:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # it is empty
        return 0
    with content:
        while count <= MOST_FILES and (position := content.find(HEADING, position + 1)) >= 0:
            count += 1
    return count


def too_large(size: int, most: int) -> ImageTooLarge:
    """Return the error of an image with too many bytes."""
    return ImageTooLarge(f"The image has {_words(size)}; the limit is {_words(most)}.")


def _words(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"


def unzipped(
    read: Callable[[int, int], bytes], offset: int, path: str, size: int, zipped: Zipped | None = None
) -> bytes:
    """Return the bytes of a file.

    Args:
        read: returns so many bytes of the zip from an offset on, or fewer at its end.
        offset: of the file's heading.
        path, size: of the file.
        zipped: as in the directory of the zip; None: as in the heading, which may leave it out.

    Raises:
        ImageError: it is damaged, or compressed by an unusual method.
    """
    broken = ImageError("It is damaged within the zip; pack it again.")
    most = size + size // 1000 + 64  # packed, even if it cannot be compressed
    heading = _LOCAL.size + len(path.encode("utf-8", "surrogateescape")) + _EXTRA
    data = read(offset, heading + (most if zipped is None else min(zipped[0], most)))
    if len(data) < _LOCAL.size:
        raise broken
    signature, flags, method, crc, packed, name, extra = _LOCAL.unpack_from(data)
    if signature != FILE_HEADING:
        raise broken
    if method not in READ:
        raise ImageError("Its compression method is not supported; use deflate.")
    if zipped is None:
        zipped = None if flags & STREAMED or packed == _OF_ZIP64 else (packed, crc)
    start, packed = _LOCAL.size + name + extra, most if zipped is None else min(zipped[0], most)
    if start + packed > len(data):
        data += read(offset + len(data), start + packed - len(data))
    content = memoryview(data)[start : start + packed]
    try:
        # at most one byte more than `size`, however many there are
        inflate = zlib.decompressobj(-zlib.MAX_WBITS).decompress
        found = bytes(content[:size]) if method == zipfile.ZIP_STORED else inflate(content, size + 1)
    except zlib.error as error:
        raise broken from error
    if len(found) != size or (zipped is not None and zlib.crc32(found) != zipped[1]):
        raise broken
    return found
