"""The images of a bulk run: files, folders of them, and tar archives.

    sources, images = list_images([Path("photos"), Path("more.tar")])
    for image in contents(sources, images):
        ...                                     # a path, or something to read the bytes of

The order stays the same for the same files, wherever they lie: a shard is a part of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nnclr_hub.bulk.archives import COMPRESSED, TarMember, members
from nnclr_hub.encoder.image_folder import list_images
from nnclr_hub.errors import NoImages

SAMPLED = 16  # images of a listing whose bytes tell it from another


@dataclass(frozen=True, slots=True)
class Source:
    """Where images lie.

    given: the folder or archive, as it was named.
    absolute: the same from the root of the file system.
    archive: whether it is a tar file.
    changed: when the archive was changed, in seconds since 1970.
    """

    given: str
    absolute: str
    archive: bool = False
    changed: float = 0.0


@dataclass(frozen=True, slots=True)
class Picture:
    """One image.

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
    """Every image below what is given, in a stable order.

    Args:
        given: files, folders, and tar archives without compression; a folder that holds no image but archives stands
            for these.

    Raises:
        NoImages: one is not there, or there is no image in it.
        InvalidRequest: an archive that cannot be read in any order, or is not whole.
    """
    sources: dict[Source, int] = {}
    pictures: list[Picture] = []
    for place in _places(given):
        if place.is_dir():
            number = sources.setdefault(_source(place), len(sources))
            pictures += [_file(number, path, place) for path in list_images(place)]
        elif place.name.lower().endswith((".tar", *COMPRESSED)) and place.is_file():
            number = sources.setdefault(_source(place, place.stat().st_mtime), len(sources))
            found = [Picture(number, *member) for member in members(place)]
            if not found:
                raise NoImages(f"{place} holds no image: give a tar file of images.")
            pictures += found
        elif place.exists():
            number = sources.setdefault(_source(place.parent), len(sources))
            pictures.append(_file(number, place, place.parent))
        else:
            raise NoImages(f"{place} does not exist: give images, folders of images, or tar files of them.")
    if not pictures:
        raise NoImages("Nothing was given: give images, folders of images, or tar files of them.")
    return list(sources), pictures


def named(sources: Sequence[Source], picture: Picture) -> str:
    """An image's name for people: its source as it was given, and its path below."""
    return str(Path(sources[picture.source].given, picture.path))


def digest_of(sources: Sequence[Source], pictures: Sequence[Picture]) -> str:
    """SHA-256, in hex, that tells one listing from another, wherever it lies.

    Of what the images are called and how large they are; and of the bytes of a few, since there are folders whose
    images are all of one size, and called alike.
    """
    digest = hashlib.sha256()
    for one in pictures:
        digest.update(f"{one.source}\0{one.path}\0{one.size}\n".encode("utf-8", "surrogateescape"))
    some = pictures[:: -(-len(pictures) // SAMPLED)]
    for image in contents(sources, some):
        try:
            digest.update(Path(image).read_bytes() if isinstance(image, str) else image.read())
        except OSError:  # its shard will say so
            digest.update(b"-")
    return digest.hexdigest()


def contents(sources: Sequence[Source], pictures: Iterable[Picture]) -> Iterator[str | TarMember]:
    """What `Encoder` reads of each image: a file's path, or a place in an archive."""
    for one in pictures:
        place = sources[one.source]
        if one.offset is None:
            yield os.path.join(place.absolute, one.path)
        else:
            yield TarMember(place.absolute, place.changed, one.offset, one.size)


def _places(given: Sequence[Path]) -> Iterator[Path]:
    """Files, archives and folders; for a folder of archives, these."""
    for place in map(Path, given):
        archives = sorted(place.rglob("*.tar")) if place.is_dir() else []
        if archives and not _holds_images(place):
            yield from archives
        else:
            yield place


def _holds_images(folder: Path) -> bool:
    try:
        return bool(list_images(folder))
    except NoImages:
        return False


def _source(place: Path, changed: float | None = None) -> Source:
    return Source(str(place), str(place.resolve()), changed is not None, changed or 0.0)


def _file(source: int, path: Path, root: Path) -> Picture:
    name = path.relative_to(root).as_posix()
    try:
        stat = path.stat()
    except OSError:  # a dangling link; the shard will say so
        return Picture(source, name, 0, 0.0)
    return Picture(source, name, stat.st_size, stat.st_mtime)
