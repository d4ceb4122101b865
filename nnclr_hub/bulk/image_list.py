"""The images of a bulk run: files, folders of them, and tar archives.

    sources, images = list_images([Path("photos"), Path("more.tar")])
    for image in contents(sources, images):
        ...                                     # a path, or an object whose `read` returns the bytes

The order is the same for the same files in every location, because a shard is a slice of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nnclr_hub.encoder.image_folder import list_images
from nnclr_hub.errors import NoImages
from nnclr_hub.workbench.image_tar import COMPRESSED, TarMember, members

SAMPLED = 16  # images whose bytes are part of a listing's digest


@dataclass(frozen=True, slots=True)
class Source:
    """A folder or archive of images.

    given: the path as passed by the caller.
    absolute: the absolute path.
    archive: whether it is a tar file.
    changed: modification time of the archive, in seconds since 1970.
    """

    given: str
    absolute: str
    archive: bool = False
    changed: float = 0.0


@dataclass(frozen=True, slots=True)
class ListedImage:
    """One image.

    source: number of its source.
    path: below the source, with slashes.
    size: bytes; 0 for an inaccessible file.
    mtime: modification time, in seconds since 1970.
    offset: of its bytes in the archive; None for a separate file.
    """

    source: int
    path: str
    size: int
    mtime: float
    offset: int | None = None


def find_images(given: Sequence[Path]) -> tuple[list[Source], list[ListedImage]]:
    """List every image of the given paths, in a stable order.

    Args:
        given: files, folders, and uncompressed tar archives; a folder with archives but no images means its archives.

    Raises:
        NoImages: a path does not exist, or contains no image.
        InvalidRequest: an archive is compressed or incomplete.
    """
    sources: dict[Source, int] = {}
    images: list[ListedImage] = []
    for place in _places(given):
        if place.is_dir():
            number = sources.setdefault(_source(place), len(sources))
            images += [_file(number, path, place) for path in list_images(place)]
        elif place.name.lower().endswith((".tar", *COMPRESSED)) and place.is_file():
            number = sources.setdefault(_source(place, place.stat().st_mtime), len(sources))
            found = [ListedImage(number, *member) for member in members(place)]
            if not found:
                raise NoImages(f"{place} contains no image; expected a tar file of images.")
            images += found
        elif place.exists():
            number = sources.setdefault(_source(place.parent), len(sources))
            images.append(_file(number, place, place.parent))
        else:
            raise NoImages(f"{place} does not exist; expected images, folders of images, or tar files of images.")
    if not images:
        raise NoImages("The list of paths is empty; expected images, folders of images, or tar files of images.")
    return list(sources), images


def named(sources: Sequence[Source], image: ListedImage) -> str:
    """Return the display name of an image: its source as passed, and its path below."""
    return str(Path(sources[image.source].given, image.path))


def digest_of(sources: Sequence[Source], images: Sequence[ListedImage]) -> str:
    """Return the SHA-256 of a listing, in hex, independent of its location.

    It covers names and sizes, and the bytes of a few images, because images of equal names and sizes may differ.
    """
    digest = hashlib.sha256()
    for one in images:
        digest.update(f"{one.source}\0{one.path}\0{one.size}\n".encode("utf-8", "surrogateescape"))
    some = images[:: -(-len(images) // SAMPLED)]
    for image in contents(sources, some):
        try:
            digest.update(Path(image).read_bytes() if isinstance(image, str) else image.read())
        except OSError:  # its shard reports the error
            digest.update(b"-")
    return digest.hexdigest()


def contents(sources: Sequence[Source], images: Iterable[ListedImage]) -> Iterator[str | TarMember]:
    """Yield each image in a form that `Encoder` reads: the path of a file, or a member of an archive."""
    for one in images:
        place = sources[one.source]
        if one.offset is None:
            yield os.path.join(place.absolute, one.path)
        else:
            yield TarMember(place.absolute, place.changed, one.offset, one.size)


def _places(given: Sequence[Path]) -> Iterator[Path]:
    """Yield files, archives and folders; for a folder of archives, its archives."""
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


def _file(source: int, path: Path, root: Path) -> ListedImage:
    name = path.relative_to(root).as_posix()
    try:
        stat = path.stat()
    except OSError:  # a dangling link; its shard reports the error
        return ListedImage(source, name, 0, 0.0)
    return ListedImage(source, name, stat.st_size, stat.st_mtime)
