"""PackedImage: an image in an archive or at an address, whose bytes are read on demand.

    sources, images = find_images(["photos.zip"])
    image = PackedImage(sources[0], images[0])
    str(image), image.label, image.read()

It is a source for decoding like a path, so whatever reads image files reads archives too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from nnclr_hub.errors import ImageError, ImageTooLarge
from nnclr_hub.images.parquet import ParquetImage, is_table
from nnclr_hub.images.tar import CLS, TarMember, Text
from nnclr_hub.images.tile import Tile
from nnclr_hub.images.zip import SUFFIX, Zipped, unzipped
from nnclr_hub.remote_files import RemoteBytes, is_address

MOST_BYTES = 1_000_000_000  # of one image, which is in memory as a whole


@dataclass(frozen=True, slots=True)
class ImageSource:
    """A folder or archive of images.

    given: the path as passed by the caller.
    absolute: the absolute path, or the address.
    archive: whether it is a tar, zip or Parquet file.
    changed: modification time of the archive, in seconds since 1970.
    left_out: (suffix, number) of the archive's files that are not read.
    """

    given: str
    absolute: str
    archive: bool = False
    changed: float = 0.0
    left_out: tuple[tuple[str, int], ...] = field(default=(), compare=False)

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return not is_address(self.absolute)

    def part(self, offset: int, size: int) -> bytes:
        """Read a part of an archive."""
        if self.is_local:
            return TarMember(self.absolute, self.changed, offset, size).read()
        return RemoteBytes(self.absolute, offset, size).read()


@dataclass(frozen=True, slots=True)
class ListedImage:
    """One image.

    source: number of its source.
    path: below the source, with slashes.
    size: bytes; 0 for an inaccessible file.
    mtime: modification time, in seconds since 1970.
    offset: of its bytes in the archive, in a zip that of its header, in a table its row; None for a separate file.
    zipped: packed size and CRC-32 of a file in a zip; None elsewhere, or if unknown.
    key: of its sample in an archive (`__key__` of WebDataset), after the archive's name and a slash if the key repeats;
        "" if it has none.
    texts: of its sample; see `images.tar.samples`.
    label: of its row in a table; "" if it has none.
    tile: of the file, if the image is one; `path` then ends in its box.
    folder: its label by the folders of its source, see `folder_labels`; "" if it has none.
    """

    source: int
    path: str
    size: int
    mtime: float
    offset: int | None = None
    zipped: Zipped | None = None
    key: str = ""
    texts: tuple[Text, ...] = ()
    label: str = ""
    tile: Tile | None = None
    folder: str = ""


@dataclass(frozen=True, slots=True)
class PackedImage:
    """An image that is not a file of this machine."""

    source: ImageSource
    image: ListedImage

    def __str__(self) -> str:
        given = self.source.given
        return str(Path(given, self.image.path)) if self.source.is_local else f"{given.rstrip('/')}/{self.image.path}"

    @property
    def name(self) -> str:
        """The name of the file."""
        return PurePosixPath(self.image.path).name

    @property
    def label(self) -> str | None:
        """The text `cls` of its sample or row, or else the name of its folder; None if it has neither."""
        return self.label_in(self.read_texts(CLS))

    def label_in(self, texts: Sequence[tuple[str, str]]) -> str | None:
        """Return the label, given what `read_texts` returned."""
        found = [text for kind, text in texts if kind == CLS]
        return (found[0] if found else self.image.folder) or None

    def read_texts(self, *kinds: str) -> list[tuple[str, str]]:
        """Read the texts of its sample, or those of some kinds; return (kind, text) of each.

        The label of a row in a table is its text `cls`. See `read` for errors of the archive.
        """
        texts = [(CLS, self.image.label)] if self.image.label and (not kinds or CLS in kinds) else []
        for kind, size, offset in self.image.texts:
            if not kinds or kind in kinds:
                texts.append((kind, self.source.part(offset, size).decode("utf-8", "replace").strip()))
        return texts

    @property
    def identity(self) -> str:
        """What is equal only for the same image in the same state: place, path, size and time."""
        one, place = self.image, self.source
        return f"{place.absolute}\0{place.changed}\0{one.path}\0{one.size}\0{one.mtime}\0{one.offset}"

    def read(self) -> bytes:
        """Return the bytes of the image.

        Raises:
            ImageTooLarge: more than 1 GB.
            ImageError: it is damaged in its zip, or it was deleted at its address.
            InvalidRequest: the archive has changed since it was listed.
            FileNotFoundError: the archive was deleted.
            NNCLRHubError: it cannot be read.
        """
        one, place = self.image, self.source
        if one.size > MOST_BYTES:
            raise ImageTooLarge(f"The image has {one.size / 1e9:.1f} GB; the limit is {MOST_BYTES / 1e9:g} GB.")
        if one.offset is None:
            try:
                return RemoteBytes(f"{place.absolute}/{one.path}").read()
            except FileNotFoundError as error:
                raise ImageError("It was deleted while images were read; run the same command again.") from error
        if is_table(place.absolute):
            return ParquetImage(place.absolute, place.changed, one.offset).read()
        if is_zip(place.absolute):
            return unzipped(place.part, one.offset, one.path, one.size, one.zipped)
        return place.part(one.offset, one.size)


def is_zip(place: str) -> bool:
    """Return whether an archive is a zip, by its name."""
    return os.path.splitext(place)[1].lower() == SUFFIX


def file_key(path: Path | Tile | PackedImage, part: str = "") -> bytes:
    """Return the identity of an image: a hash of its path, size and modification time, and the part that is read."""
    if isinstance(path, PackedImage):
        return hashlib.sha256(f"{path.identity}{part}".encode("utf-8", "surrogateescape")).digest()[:16]
    if isinstance(path, Tile):
        path, part = Path(path.path), f"{part}{path.box}{path.window or ''}"
    try:
        stat = os.stat(path)
        identity = f"{stat.st_size} {stat.st_mtime_ns}"
    except OSError:
        identity = "-"
    return hashlib.sha256(f"{Path(path).resolve()} {identity}{part}".encode("utf-8", "surrogateescape")).digest()[:16]
