"""The images in a zip that anybody may have made.

    with ImageZip(path, "photos.zip") as zip:         # refuses what is no honest zip of images
        zip.names                                       # ["cat/01.jpg", ...]
        zip.left_out                                    # [("inner.zip", "It is a zip within the zip: ...")]
        data = zip.read("cat/01.jpg")

Nothing is unpacked onto the disk, so a name can lead nowhere; one that tries to is refused all the same, since no
program that packs images writes it. What a file holds is counted while it is read, whatever the zip says of it.
"""

from __future__ import annotations

import mmap
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Self

from nnclr_hub.encoder.image_folder import IMAGE_SUFFIXES
from nnclr_hub.errors import ImageError, ImageTooLarge, InvalidRequest

SUFFIX = ".zip"
MOST_FILES = 10_000
MOST_BYTES = 2_000_000_000  # of all files, unpacked
MOST_RATIO = 100  # of unpacked to packed bytes; photos have 1, drawings that were saved plainly up to 50
RATIO_FROM = 50_000_000  # bytes below which the ratio is of no concern
MOST_IMAGE = 20_000_000
HEADING = b"PK\x01\x02"  # of each entry of the zip's list
ENCRYPTED = 0x1
READ = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # others may ask for gigabytes of memory
BROKEN = (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, ValueError, zlib.error)


class ImageZip:
    """See the module; a context manager.

    Args:
        path: of the zip.
        name: what people call it.
        most_bytes: of one image.

    Raises:
        InvalidRequest: it is no zip, or encrypted, or asks for more than is sensible, or its names lead elsewhere.
    """

    def __init__(self, path: Path, name: str, most_bytes: int = MOST_IMAGE) -> None:
        self.name = name
        self._most_bytes = most_bytes
        count = _headings(path)
        if count > MOST_FILES:
            raise InvalidRequest(f"{name} holds more than {MOST_FILES:,} files: make several zips of it.")
        with self._sound():
            self._zip = zipfile.ZipFile(path)
        try:
            self._refuse(self._zip.infolist())
        except InvalidRequest:
            self._zip.close()
            raise
        self._images, self.left_out = self._sorted_out()
        self.names = list(self._images)
        if not self.names and not self.left_out:
            self._zip.close()
            raise InvalidRequest(f"{name} holds no image: put JPEG, PNG or other images into it.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._zip.close()

    def read(self, name: str) -> bytes:
        """One of `names`.

        Raises:
            ImageError: it is damaged, or holds more than it says.
        """
        try:
            with self._zip.open(self._images[name]) as file:
                data = file.read(self._most_bytes + 1)
        except BROKEN as error:
            raise ImageError("It is damaged within the zip: pack it again.") from error
        if len(data) > self._most_bytes:
            raise _too_large(len(data), self._most_bytes)
        return data

    # ---- inside

    @contextmanager
    def _sound(self) -> Iterator[None]:
        try:
            yield
        except BROKEN as error:
            raise InvalidRequest(
                f"{self.name} is no zip, or it is damaged: choose another file, or the folder of images itself."
            ) from error

    def _refuse(self, entries: list[zipfile.ZipInfo]) -> None:
        for entry in entries:
            if _leads_elsewhere(entry.filename):
                raise InvalidRequest(
                    f"{self.name} names a file outside of itself ({entry.filename!r:.80}): pack the folder of images "
                    "anew."
                )
            if stat.S_ISLNK(entry.external_attr >> 16):
                raise InvalidRequest(
                    f"{self.name} holds a link ({entry.filename!r:.80}) in place of a file: pack the images themselves."
                )
        if any(entry.flag_bits & ENCRYPTED for entry in entries):
            raise InvalidRequest(f"{self.name} is encrypted: pack the images without a password.")
        size = sum(entry.file_size for entry in entries)
        if size > MOST_BYTES:
            raise InvalidRequest(
                f"{self.name} would unpack to {_words(size)}, and {_words(MOST_BYTES)} is the most: make several zips."
            )
        packed = sum(entry.compress_size for entry in entries)
        if size > RATIO_FROM and size > MOST_RATIO * packed:
            raise InvalidRequest(
                f"{self.name} would unpack to {size // max(1, packed):,} times its size, as no images do: choose the "
                "folder of images itself."
            )

    def _sorted_out(self) -> tuple[dict[str, zipfile.ZipInfo], list[tuple[str, str]]]:
        """The images by name, and what looks like one but is left out, with the reason."""
        pictures: dict[str, zipfile.ZipInfo] = {}
        left_out = []
        for entry in self._zip.infolist():
            path = PurePosixPath(entry.filename)
            if entry.is_dir() or any(part.startswith((".", "__MACOSX")) for part in path.parts):
                continue
            reason = self._reason(entry, path.suffix.lower())
            if reason:
                left_out.append((entry.filename, reason))
            elif path.suffix.lower() in IMAGE_SUFFIXES:
                pictures[entry.filename] = entry
        return pictures, left_out

    def _reason(self, entry: zipfile.ZipInfo, suffix: str) -> str:
        if suffix == SUFFIX:
            return "It is a zip within the zip, which is not opened: add it by itself."
        if suffix not in IMAGE_SUFFIXES:
            return ""
        if entry.compress_type not in READ:
            return "It is packed in a way that is not read here: pack it in the usual one, which is called deflate."
        if entry.file_size > self._most_bytes:
            return str(_too_large(entry.file_size, self._most_bytes))
        return ""


def _headings(path: Path) -> int:
    """At most as many entries the zip lists; found before its list is read, which may be made to fill the memory."""
    if path.stat().st_size == 0:
        return 0
    count, place = 0, -1
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as bytes_:
        while count <= MOST_FILES and (place := bytes_.find(HEADING, place + 1)) >= 0:
            count += 1
    return count


def _leads_elsewhere(name: str) -> bool:
    drive = name[1:2] == ":"
    return name.startswith("/") or "\\" in name or drive or ".." in name.split("/") or "\0" in name


def _too_large(size: int, most: int) -> ImageTooLarge:
    return ImageTooLarge(f"It has {_words(size)}, and {_words(most)} is the most: make the image smaller.")


def _words(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"
