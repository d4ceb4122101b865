"""Source: one image, wherever its bytes are: a file, a tile, a member of an archive, a row of a table, an address.

    image = find_images(["photos.zip"])[0]
    str(image), image.label, image.read()

Whatever decodes an image takes a Source, a path, bytes, a PIL image or an array. This module does not import Pillow,
which the client does without.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from nnclr_hub.errors import ImageError, ImageTooLarge, InvalidRequest
from nnclr_hub.remote_files import RemoteBytes, is_address, without_query

MOST_BYTES = 1_000_000_000  # most bytes of one image, which is in memory as a whole
ARCHIVES = (".tar", ".zip", ".parquet")
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
CLS = "cls"  # the kind of text that is a label
TAR, ZIP, TABLE = ARCHIVES
READ = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # other methods may need gigabytes of memory
# the heading of a file in a zip: signature, flags, method, CRC-32, packed size, lengths of its name and extra field
_HEADING = struct.Struct("<4s2xHH4xII4xHH")
_EXTRA = 256  # bytes of an extra field that are read with the file; those of usual programs have 30
_STREAMED, _ZIP64 = 0x8, 0xFFFFFFFF  # such a heading has neither CRC-32 nor packed size

Box = tuple[int, int, int, int]
Window = tuple[tuple[float, ...], tuple[float, ...]]


class Text(NamedTuple):
    """A text of a sample of WebDataset, which is a member of its tar."""

    kind: str
    size: int
    offset: int


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or archive of images.

    given: the path as passed by the caller.
    absolute: the absolute path, or the address.
    archive: ".tar", ".zip" or ".parquet"; "" for a folder.
    changed: modification time of the archive, in seconds since 1970.
    left_out: (suffix, number) of its files that are not read.
    """

    given: str
    absolute: str
    archive: str = ""
    changed: float = 0.0
    left_out: tuple[tuple[str, int], ...] = field(default=(), compare=False)

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return not is_address(self.absolute)

    def part(self, offset: int, size: int) -> bytes:
        """Read a part of an archive.

        Raises:
            InvalidRequest: it has changed since it was listed.
        """
        if not self.is_local:
            return RemoteBytes(self.absolute, offset, size).read()
        with open(self.absolute, "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_mtime != self.changed:
                raise InvalidRequest(f"{self.given} changed while its images were read; restart the run.")
            return os.pread(file.fileno(), size, offset)


@dataclass(frozen=True, slots=True)
class Source:
    """One image.

    place: its folder or archive.
    path: below the place, with slashes; of a tile, it ends in the box.
    size: bytes; 0 if unknown.
    mtime: modification time, in seconds since 1970.
    offset: where its bytes begin in a tar, or its heading in a zip; its row in a table; None for a separate file.
    zipped: packed size and CRC-32 of a file in a zip; None elsewhere, or if unknown.
    key: key of its sample in an archive, `__key__` in WebDataset; "" if it has none.
    texts: the texts of its sample.
    row_label: its label in a table; "" if it has none.
    folder: its label by the folders of its place, see `listing.labels_of`; "" if it has none.
    box: edges of a tile: left, top, right and bottom in pixels of the upright image.
    window: of a tile: for each channel the values of the whole page that become 0 and 255; None: 8-bit values, or the
        file's.
    """

    place: Place
    path: str
    size: int = 0
    mtime: float = 0.0
    offset: int | None = None
    zipped: tuple[int, int] | None = None
    key: str = ""
    texts: tuple[Text, ...] = ()
    row_label: str = ""
    folder: str = ""
    box: Box | None = None
    window: Window | None = None

    @classmethod
    def tile_of(cls, path: str | Path, box: Sequence[int], window: Window | None = None) -> Source:
        """Return a tile of a file of this machine."""
        path = os.path.abspath(path)
        return cls(Place(os.path.dirname(path), os.path.dirname(path)), os.path.basename(path)).tile(box, window)

    @classmethod
    def at(cls, address: str) -> Source:
        """Return the image at an address."""
        parent, _, name = address.rpartition("/")
        return cls(Place(parent, parent), name)

    def tile(self, box: Sequence[int], window: Window | None = None) -> Source:
        """Return a tile of this image, whose path is unique among those of its folder."""
        left, top, right, bottom = box
        return replace(self, path=f"{self.path}#{left},{top},{right},{bottom}", box=(*box,), window=window)  # type: ignore[arg-type]

    def __str__(self) -> str:
        given = self.place.given
        return str(Path(given, self.path)) if self.place.is_local else f"{given.rstrip('/')}/{self.path}"

    @property
    def name(self) -> str:
        """The name of the file."""
        return PurePosixPath(self.path).name

    @property
    def file_path(self) -> str:
        """`path`, for a tile without its box."""
        return self.path if self.box is None else self.path.rpartition("#")[0]

    @property
    def file(self) -> str | None:
        """The path of its file on this machine; None if it is in an archive or at an address."""
        loose = self.offset is None and self.place.is_local
        return os.path.join(self.place.absolute, self.file_path) if loose else None

    @property
    def plain(self) -> Path | Source:
        """The path of a separate file as the caller named it; otherwise the source itself."""
        return self if self.file is None or self.box is not None else Path(self.place.given, self.path)

    @property
    def label(self) -> str | None:
        """The text `cls` of its sample or row, or else the name of its folder; None if it has neither."""
        return self.label_in(self.read_texts(CLS))

    def label_in(self, texts: Sequence[tuple[str, str]]) -> str | None:
        """Return the label, given what `read_texts` returned."""
        return next((text for kind, text in texts if kind == CLS), self.folder) or None

    def read_texts(self, *kinds: str) -> list[tuple[str, str]]:
        """Read the texts of its sample, or those of some kinds; return (kind, text) of each.

        The label of a row in a table is its text `cls`. See `read` for errors of the archive.
        """
        texts = [(CLS, self.row_label)] if self.row_label and (not kinds or CLS in kinds) else []
        for kind, size, offset in self.texts:
            if not kinds or kind in kinds:
                texts.append((kind, self.place.part(offset, size).decode("utf-8", "replace").strip()))
        return texts

    @property
    def identity(self) -> str:
        """What is equal only for the same image in the same state: place, path, size and time."""
        return f"{self.place.absolute}\0{self.place.changed}\0{self.path}\0{self.size}\0{self.mtime}\0{self.offset}"

    def read(self, most: int = MOST_BYTES) -> bytes:
        """Return the bytes of the image; of a tile, those of its file.

        Raises:
            ImageTooLarge: it has more than `most` bytes.
            ImageError: it is damaged in its zip, or no file exists at its address.
            InvalidRequest: the archive has changed since it was listed.
            OSError: the file or archive was deleted.
            NNCLRHubError: it cannot be read.
        """
        if self.size > most:
            raise ImageTooLarge(f"The image has {in_words(self.size)}; the limit is {in_words(most)}.")
        if self.file is not None:
            return Path(self.file).read_bytes()
        if self.offset is None:
            try:
                return RemoteBytes(f"{self.place.absolute}/{self.path}").read()
            except FileNotFoundError as error:
                raise ImageError("No file exists at its address; check the address, and run this again.") from error
        if self.place.archive == TABLE:
            from nnclr_hub.images.parquet import read_row

            return read_row(self.place.absolute, self.place.changed, self.offset)
        return self._unzipped() if self.place.archive == ZIP else self.place.part(self.offset, self.size)

    def _unzipped(self) -> bytes:
        """Return the bytes of a file in a zip; at most one more than `size` is unpacked, whatever the zip declares."""
        assert self.offset is not None
        broken = ImageError("It is damaged within the zip; pack it again.")
        most, zipped = self.size + self.size // 1000 + 64, self.zipped  # packed, even if it cannot be compressed
        heading = _HEADING.size + len(self.path.encode("utf-8", "surrogateescape")) + _EXTRA
        data = self.place.part(self.offset, heading + (most if zipped is None else min(zipped[0], most)))
        if len(data) < _HEADING.size:
            raise broken
        signature, flags, method, crc, packed, name, extra = _HEADING.unpack_from(data)
        if signature != b"PK\x03\x04":
            raise broken
        if method not in READ:
            raise ImageError("Its compression method is not supported; use deflate.")
        if zipped is None and not flags & _STREAMED and packed != _ZIP64:
            zipped = packed, crc
        start, packed = _HEADING.size + name + extra, most if zipped is None else min(zipped[0], most)
        if start + packed > len(data):
            data += self.place.part(self.offset + len(data), start + packed - len(data))
        content = memoryview(data)[start : start + packed]
        try:
            inflate = zlib.decompressobj(-zlib.MAX_WBITS).decompress
            found = bytes(content[: self.size]) if method == zipfile.ZIP_STORED else inflate(content, self.size + 1)
        except zlib.error as error:
            raise broken from error
        if len(found) != self.size or (zipped is not None and zlib.crc32(found) != zipped[1]):
            raise broken
        return found


def archive_kind(path: str) -> str:
    """Return the kind of an archive by its name, for `Place.archive`."""
    return next((kind for kind in (ZIP, TABLE) if without_query(path).lower().endswith(kind)), TAR)


def in_words(size: int) -> str:
    """Return a number of bytes for people."""
    return f"{size / 1e6:,.0f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"


def file_key(image: Path | Source, part: str = "") -> bytes:
    """Return the identity of an image: a hash of its path, size and modification time, and the part that is read."""
    path = image.file if isinstance(image, Source) else image
    if isinstance(image, Source):
        if path is None:
            return hashlib.sha256(f"{image.identity}{part}".encode("utf-8", "surrogateescape")).digest()[:16]
        if image.box is not None:
            part = f"{part}{image.box}{image.window or ''}"
    assert path is not None
    try:
        stat = os.stat(path)
        identity = f"{stat.st_size} {stat.st_mtime_ns}"
    except OSError:
        identity = "-"
    return hashlib.sha256(f"{Path(path).resolve()} {identity}{part}".encode("utf-8", "surrogateescape")).digest()[:16]
