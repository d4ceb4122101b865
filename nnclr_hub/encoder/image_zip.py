"""The images in a zip file that may come from anyone.

    with ImageZip(path, "photos.zip") as zip:         # refuses what is not an ordinary zip of images
        zip.names                                       # ["cat/01.jpg", ...]
        zip.left_out                                    # [("inner.zip", "It is a zip within the zip, ...")]
        zip.others                                      # {".txt": 2}: other files, by suffix
        data = zip.read("cat/01.jpg")

    for name, size, mtime, offset, zipped in zip_members(file, "photos.zip"):
        ...                                             # without the limits, for a zip of the user's own

Nothing is unpacked to disk, so names cannot escape from a folder; names that try are refused all the same, since no
program that packs images writes them. Sizes are counted while an entry is read, whatever the zip declares.
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
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Self

from nnclr_hub.encoder.image_folder import COMPANIONS, image_suffixes
from nnclr_hub.encoder.image_tar import is_image, path_inside
from nnclr_hub.errors import ImageError, ImageTooLarge, InvalidRequest

SUFFIX = ".zip"
MOST_FILES = 100_000
MOST_BYTES = 20_000_000_000  # of all files, unpacked
MOST_RATIO = 100  # of unpacked to packed bytes; photos have 1, uncompressed drawings up to 50
RATIO_FROM = 50_000_000  # bytes below which the ratio is not checked
MOST_IMAGE = 20_000_000
HEADING = b"PK\x01\x02"  # starts each entry of the zip's directory
ENCRYPTED = 0x1
READ = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # other methods may need gigabytes of memory
BROKEN = (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, ValueError, zlib.error)
# the heading of a file: signature, flags, method, CRC-32, packed size, lengths of its name and extra field
_LOCAL = struct.Struct("<4s2xHH4xII4xHH")
_EXTRA = 256  # bytes of an extra field that are read with the file; those of usual programs have 30
STREAMED = 0x8  # the flag of a heading without CRC-32 and packed size
_OF_ZIP64 = 0xFFFFFFFF


Zipped = tuple[int, int]  # of a file in a zip: its packed size in bytes, and the CRC-32 of its content


class ImageZip:
    """The images in a zip, by name; a context manager.

    Raises:
        InvalidRequest: if it is not a zip, is encrypted, exceeds a limit, or has names that lead outside.
    """

    def __init__(self, path: Path, name: str, most_bytes: int = MOST_IMAGE) -> None:
        self.name = name
        self._most_bytes = most_bytes
        count = _headings(path)
        if count > MOST_FILES:
            raise InvalidRequest(f"{name} holds more than {MOST_FILES:,} files; split it into several zips.")
        with self._sound():
            self._zip = zipfile.ZipFile(path)
        try:
            self._refuse(self._zip.infolist())
        except InvalidRequest:
            self._zip.close()
            raise
        self.others: Counter[str] = Counter()
        self._images, self.left_out = self._sorted_out()
        self.names = list(self._images)
        if not self.names and not self.left_out:
            self._zip.close()
            raise InvalidRequest(f"{name} holds no images; put JPEG, PNG or other images into it.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._zip.close()

    def read(self, name: str) -> bytes:
        """Return the bytes of one of `names`.

        Raises:
            ImageError: if it is damaged or too large.
        """
        try:
            with self._zip.open(self._images[name]) as file:
                data = file.read(self._most_bytes + 1)
        except BROKEN as error:
            raise ImageError("It is damaged within the zip; pack it again.") from error
        if len(data) > self._most_bytes:
            raise too_large(len(data), self._most_bytes)
        return data

    # ---- inside

    @contextmanager
    def _sound(self) -> Iterator[None]:
        try:
            yield
        except BROKEN as error:
            raise InvalidRequest(
                f"{self.name} is not a zip, or it is damaged; choose another file, or the folder of images itself."
            ) from error

    def _refuse(self, entries: list[zipfile.ZipInfo]) -> None:
        for entry in entries:
            if _leads_elsewhere(entry.filename):
                raise InvalidRequest(
                    f"{self.name} holds a name that leads outside of it ({entry.filename!r:.80}); pack the folder of "
                    "images again."
                )
            if stat.S_ISLNK(entry.external_attr >> 16):
                raise InvalidRequest(
                    f"{self.name} holds a link ({entry.filename!r:.80}) instead of a file; pack the images themselves."
                )
        if any(entry.flag_bits & ENCRYPTED for entry in entries):
            raise InvalidRequest(f"{self.name} is encrypted; pack the images without a password.")
        size = sum(entry.file_size for entry in entries)
        if size > MOST_BYTES:
            raise InvalidRequest(
                f"{self.name} would unpack to {_words(size)}; the limit is {_words(MOST_BYTES)}; split it."
            )
        packed = sum(entry.compress_size for entry in entries)
        if size > RATIO_FROM and size > MOST_RATIO * packed:
            raise InvalidRequest(
                f"{self.name} would unpack to {size // max(1, packed):,} times its size, which images never do; "
                "choose the folder of images itself."
            )

    def _sorted_out(self) -> tuple[dict[str, zipfile.ZipInfo], list[tuple[str, str]]]:
        """Return the images by name, and the entries that are left out, with the reason."""
        images: dict[str, zipfile.ZipInfo] = {}
        left_out = []
        for entry in self._zip.infolist():
            path = PurePosixPath(entry.filename)
            if entry.is_dir() or any(part.startswith((".", "__MACOSX")) for part in path.parts):
                continue
            reason = self._reason(entry, path.suffix.lower())
            if reason:
                left_out.append((entry.filename, reason))
            elif path.suffix.lower() in image_suffixes():
                images[entry.filename] = entry
            else:
                self.others[path.suffix.lower()] += 1
        return images, left_out

    def _reason(self, entry: zipfile.ZipInfo, suffix: str) -> str:
        if suffix == SUFFIX:
            return "It is a zip within the zip, which is not opened; add it separately."
        if suffix not in image_suffixes():
            return ""
        if entry.compress_type not in READ:
            return "Its compression method is not supported; use deflate."
        if entry.file_size > self._most_bytes:
            return str(too_large(entry.file_size, self._most_bytes))
        return ""


def _headings(path: Path) -> int:
    """Return an upper bound on the number of entries, before reading a directory that could fill the memory."""
    if path.stat().st_size == 0:
        return 0
    count, position = 0, -1
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as bytes_:
        while count <= MOST_FILES and (position := bytes_.find(HEADING, position + 1)) >= 0:
            count += 1
    return count


def _leads_elsewhere(name: str) -> bool:
    drive = name[1:2] == ":"
    return name.startswith("/") or "\\" in name or drive or ".." in name.split("/") or "\0" in name


def too_large(size: int, most: int) -> ImageTooLarge:
    """Return the error of an image with too many bytes."""
    return ImageTooLarge(f"The image has {_words(size)}; the limit is {_words(most)}.")


def _words(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"


# ---- a zip of the user's own


def zip_members(
    file: BinaryIO, name: str, others: Counter[str] | None = None
) -> Iterator[tuple[str, int, float, int, Zipped]]:
    """Yield (name, size, mtime, offset of its heading) of each image, by suffix, in the order of the zip's directory.

    Args:
        file: the zip, which can be read anywhere.
        name: for error messages.
        others: counts the files that are neither images nor tables, by suffix.

    Raises:
        InvalidRequest: it is not a zip, is damaged, or is encrypted.
    """
    try:
        entries = zipfile.ZipFile(file).infolist()
    except BROKEN as error:
        raise InvalidRequest(f"{name} is not a complete zip file ({error}); create it again, or unpack it.") from error
    for entry in entries:
        path = path_inside(entry.filename)
        if entry.is_dir() or not path or path.startswith("__MACOSX"):
            continue
        if entry.flag_bits & ENCRYPTED:
            raise InvalidRequest(f"{name} is encrypted; pack the images without a password.")
        suffix = PurePosixPath(path).suffix.lower()
        if is_image(path):
            yield (
                path,
                entry.file_size,
                _seconds(entry.date_time),
                entry.header_offset,
                (entry.compress_size, entry.CRC),
            )
        elif others is not None and suffix not in COMPANIONS:
            others[suffix] += 1


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
    if signature != b"PK\x03\x04":
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
        found = bytes(content[:size]) if method == zipfile.ZIP_STORED else _inflated(content, size)
    except zlib.error as error:
        raise broken from error
    if len(found) != size or (zipped is not None and zlib.crc32(found) != zipped[1]):
        raise broken
    return found


def _inflated(content: memoryview, size: int) -> bytes:
    """Return the unpacked bytes; at most one more than `size`, however many there are."""
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, size + 1)


def _seconds(moment: tuple[int, int, int, int, int, int]) -> float:
    """Return the time of a zip, which has no time zone, as seconds since 1970 in UTC; 0 if it is not a valid time."""
    try:
        return float(calendar.timegm((*moment, 0, 0, 0)))
    except (OverflowError, ValueError):
        return 0.0
