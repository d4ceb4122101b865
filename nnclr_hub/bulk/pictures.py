"""The pictures of a bulk run: files, folders of them, and tar archives, which are read where they lie.

    sources, pictures = list_pictures([Path("photos"), Path("more.tar")])
    for image in contents(sources, pictures):
        ...                                     # a path, or the bytes out of an archive

The order stays the same for the same files, wherever they lie: a shard is a part of it.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nnclr_hub.encoder.image_folder import IMAGE_SUFFIXES, list_images
from nnclr_hub.errors import InvalidRequest, NoImages

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")


@dataclass(frozen=True, slots=True)
class Source:
    """Where pictures lie.

    given: the folder or archive, as it was named.
    absolute: the same from the root of the file system.
    archive: whether it is a tar file.
    """

    given: str
    absolute: str
    archive: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture.

    source: number of the source that it lies in.
    path: below the source, with slashes.
    size: bytes; 0 for a file that cannot be looked at.
    mtime: when it was changed, in seconds since 1970.
    offset: where its bytes begin in the archive; None for a file of its own.
    """

    source: int
    path: str
    size: int
    mtime: float
    offset: int | None = None


def list_pictures(given: Sequence[Path]) -> tuple[list[Source], list[Picture]]:
    """Every picture below what is given, in a stable order.

    Args:
        given: files, folders, and tar archives without compression.

    Raises:
        InvalidRequest: one is not there, or is an archive that cannot be read in the middle.
        NoImages: there is no picture in one of them.
    """
    sources: list[Source] = []
    pictures: list[Picture] = []
    for place in map(Path, given):
        number = len(sources)
        if place.is_dir():
            sources.append(_source(place))
            pictures += [_file(number, path, place) for path in list_images(place)]
        elif place.name.lower().endswith(COMPRESSED):
            raise InvalidRequest(f"{place} is compressed, so its pictures can only be read in turn: unpack it first.")
        elif place.suffix.lower() == ".tar" and place.is_file():
            sources.append(_source(place, archive=True))
            pictures += _members(number, place)
        elif place.exists():
            sources.append(_source(place.parent))
            pictures.append(_file(number, place, place.parent))
        else:
            raise NoImages(f"{place} does not exist: give pictures, folders of pictures, or tar files of them.")
    return sources, pictures


def named(sources: Sequence[Source], picture: Picture) -> str:
    """A picture's name for people: its source as it was given, and its path below."""
    return str(Path(sources[picture.source].given, picture.path))


def digest_of(pictures: Sequence[Picture]) -> str:
    """SHA-256, in hex, of what the pictures are called and how large they are: tells one listing from another."""
    digest = hashlib.sha256()
    for one in pictures:
        digest.update(f"{one.source}\0{one.path}\0{one.size}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def contents(sources: Sequence[Source], pictures: Iterable[Picture]) -> Iterator[str | bytes]:
    """What `Encoder` reads of each picture: a file's path, or the bytes out of an archive, one at a time.

    Raises:
        OSError: an archive cannot be read; a file of its own is its reader's affair.
    """
    with ExitStack() as stack:
        opened: tuple[int, BinaryIO] | None = None
        for one in pictures:
            place = sources[one.source].absolute
            if one.offset is None:
                yield os.path.join(place, one.path)
                continue
            if opened is None or opened[0] != one.source:
                stack.close()
                opened = one.source, stack.enter_context(open(place, "rb"))
            opened[1].seek(one.offset)
            yield opened[1].read(one.size)


def _source(place: Path, archive: bool = False) -> Source:
    return Source(str(place), str(place.resolve()), archive)


def _file(source: int, path: Path, root: Path) -> Picture:
    name = path.relative_to(root).as_posix()
    try:
        stat = path.stat()
    except OSError:  # a dangling link; the shard will say so
        return Picture(source, name, 0, 0.0)
    return Picture(source, name, stat.st_size, stat.st_mtime)


def _members(source: int, archive: Path) -> list[Picture]:
    """The pictures of a tar file, by suffix, in its own order, which is the fast one to read."""
    found = []
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                hidden = any(part.startswith(".") for part in Path(member.name).parts)
                if member.isreg() and not hidden and Path(member.name).suffix.lower() in IMAGE_SUFFIXES:
                    name = member.name.removeprefix("./")
                    found.append(Picture(source, name, member.size, float(member.mtime), member.offset_data))
                tar.members.clear()  # type: ignore[attr-defined] - else each member stays, with all its fields
    except tarfile.TarError as error:
        raise InvalidRequest(
            f"{archive} is no whole tar file ({error}): make it anew, or give its pictures."
        ) from error
    if not found:
        raise NoImages(f"{archive} holds no picture: give a tar file of pictures.")
    return found
