"""The images at the places that a caller names: files, folders, tar and zip archives; also at an address of fsspec.

    sources, images = find_images(["photos", "more-{000..009}.tar", "s3://bucket/photos"])
    for image in contents(sources, images):
        ...                                     # a path, a `Tile` or a `PackedImage`: each a source for decoding

The order is the same for the same files in every location, because a shard is a slice of it.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from nnclr_hub.errors import ImageError, InvalidRequest, NoImages
from nnclr_hub.images.folder import (
    ARCHIVES,
    count_system_files,
    folder_labels,
    has_images,
    image_suffixes,
    is_hidden,
    list_images,
    walk,
    warn_of_others,
)
from nnclr_hub.images.parquet import is_table, rows
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.images.source import ImageSource, ListedImage, PackedImage, is_zip
from nnclr_hub.images.tar import CLS, COMPRESSED, REPEATED, samples
from nnclr_hub.images.tile import Tile
from nnclr_hub.images.zip import zip_members
from nnclr_hub.remote_files import expand, is_address, open_file_system, reading

if TYPE_CHECKING:
    from nnclr_hub.images.tiles import Tiling

log = logging.getLogger(__name__)
SAMPLED = 16  # images whose bytes are part of a listing's digest
EXPECTED = "expected images, folders of images, tar or zip files of images, or tables with a column of images"


def find_images(given: Sequence[str | Path]) -> tuple[list[ImageSource], list[ListedImage]]:
    """List every image of the given paths, in a stable order.

    Args:
        given: files, folders, zip files, uncompressed tar files, Parquet files with a column of images, addresses such
            as s3://bucket/folder, and patterns such as data-{000..009}.tar; a folder with archives but no images means
            its archives.

    Raises:
        NoImages: a path does not exist, or contains no image.
        InvalidRequest: an archive is compressed or incomplete, or an address is invalid.
        MissingDependency: the driver of an address is not installed.
    """
    sources: dict[ImageSource, int] = {}
    images: list[ListedImage] = []
    for place in find_places(given):
        for source, found in sources_at(place):
            number = sources.setdefault(source, len(sources))
            images += found if number == 0 else [replace(one, source=number) for one in found]
    if not images:
        raise NoImages(f"The list of paths is empty; {EXPECTED}.")
    return list(sources), _with_unique_keys(list(sources), images)


def find_units(given: Sequence[str | Path]) -> list[tuple[str, ...]]:
    """Return groups of places that are listed one after the other: an archive, a folder, or files named one by one.

    A folder with archives but no images is its archives. Nothing is listed but names, so that a caller of millions of
    images can list one archive at a time, by `find_images` of a group.

    Raises:
        NoImages, InvalidRequest, MissingDependency: see `find_places`.
    """
    units: list[tuple[str, ...]] = []
    files: list[str] = []
    for place in find_places(given):
        if not is_address(place) and os.path.isfile(place) and not is_archive(place):
            files.append(place)
            continue
        units += [tuple(files)] if files else []
        files = []
        archives = archives_in(Path(place)) if os.path.isdir(place) and not has_images(place) else []
        units += [(str(archive),) for archive in archives] or [(place,)]
    return units + ([tuple(files)] if files else [])


def image_files(given: Sequence[str | Path]) -> list[Path | PackedImage]:
    """Return every image of the given paths, under the names that the caller uses; see `find_images`."""
    return files_of(*find_images(given))


def files_of(sources: Sequence[ImageSource], images: Sequence[ListedImage]) -> list[Path | PackedImage]:
    """Return the images of a listing, under the names that the caller uses; see `find_images`."""
    return [
        Path(sources[one.source].given, one.path) if isinstance(content, str) else PackedImage(sources[one.source], one)
        for one, content in zip(images, contents(sources, images), strict=True)
    ]


def in_tiles(
    sources: Sequence[ImageSource], images: Sequence[ListedImage], tiling: Tiling, reading: ImageReading
) -> list[ListedImage]:
    """Return the tiles of the images, in order; a file that cannot be read stays, and its shard reports the error.

    Raises:
        InvalidRequest: an image is in an archive or at an address, so no part of it can be read.
    """
    from nnclr_hub.images.pool import decoding_processes
    from nnclr_hub.images.tiles import tiles_with_content  # imports Pillow, which the client does without

    found = []
    with decoding_processes():  # one slide may take as long as thousands of images
        for one, content in zip(images, contents(sources, images), strict=True):
            if not isinstance(content, str):
                name = named(sources, one)
                step = "give its path, without file://" if name.startswith("file://") else "unpack or copy it"
                raise InvalidRequest(f"--tile needs files of this machine, not {name}; {step}.")
            try:
                tiles = tiles_with_content(Path(content), tiling, reading)
            except ImageError:
                found.append(one)
                continue
            found += [replace(one, path=replace(tile, path=one.path).name, tile=tile) for tile in tiles]
    return found


def find_places(given: Sequence[str | Path]) -> list[str]:
    """Return the paths and addresses that the arguments name, with expanded patterns; nothing is listed.

    Raises:
        NoImages: a local path does not exist, or a pattern names nothing.
        InvalidRequest: an address or pattern is invalid.
        MissingDependency: the driver of an address is not installed.
    """
    places: list[str] = []
    for one in map(str, given):
        if not one:
            raise NoImages(f"A path is empty; {EXPECTED}.")
        found = [one] if os.path.exists(one) else expand(one)
        if not found:
            raise NoImages(f"No file matches {one}; {EXPECTED}.")
        if missing := [place for place in found if not is_address(place) and not os.path.exists(place)]:
            raise NoImages(f"{missing[0]} does not exist; {EXPECTED}.")
        if is_address(found[0]):
            open_file_system(found[0])  # reports a missing driver before anything else is done
        places += found
    return places


def named(sources: Sequence[ImageSource], image: ListedImage) -> str:
    """Return the display name of an image: its source as passed, and its path below."""
    return str(PackedImage(sources[image.source], image))


def is_packed(given: str | Path) -> bool:
    """Return whether the images of a place are not files of this machine: an archive, an address or a pattern."""
    place = str(given)
    if os.path.exists(place):  # even if its name has brackets, as a pattern has
        return os.path.isfile(place) and is_archive(place)
    return is_address(place) or expand(place) != [place]


def is_archive(place: str) -> bool:
    """Return whether a file is an archive, by its name."""
    return place.lower().endswith((*ARCHIVES, *COMPRESSED))


def digest_of(sources: Sequence[ImageSource], images: Sequence[ListedImage]) -> str:
    """Return the SHA-256 of a listing, in hex, independent of its location.

    It covers names and sizes, and the bytes of a few images, because images of equal names and sizes may differ.
    """
    digest = hashlib.sha256()
    for one in images:
        digest.update(f"{one.source}\0{one.path}\0{one.size}\n".encode("utf-8", "surrogateescape"))
    some = images[:: -(-len(images) // SAMPLED)]
    for image in contents(sources, some):
        try:
            if not isinstance(image, Tile):  # whose file may be too large to read
                digest.update(Path(image).read_bytes() if isinstance(image, str) else image.read())
        except (OSError, ImageError):  # its shard reports the error
            digest.update(b"-")
    return digest.hexdigest()


def contents(sources: Sequence[ImageSource], images: Iterable[ListedImage]) -> Iterator[str | PackedImage | Tile]:
    """Yield each image in a form that can be decoded."""
    for one in images:
        place = sources[one.source]
        if one.tile is not None:
            yield one.tile
        elif one.offset is not None or not place.is_local:
            yield PackedImage(place, one)
        else:
            yield os.path.join(place.absolute, one.path)


def _with_unique_keys(sources: Sequence[ImageSource], images: list[ListedImage]) -> list[ListedImage]:
    """Put the name of the archive before keys that repeat, such as 000/0001 in each; drop those that still repeat."""
    for prefixed in (True, False):
        counts = Counter(one.key for one in images if one.key)
        if len(counts) == counts.total():
            break
        images = [
            replace(one, key=f"{PurePath(sources[one.source].absolute).name}/{one.key}" if prefixed else "")
            if counts[one.key] > 1
            else one
            for one in images
        ]
    return images


# ---- sources

Listing = list[tuple[Any, ...]]  # the fields of `ListedImage` after `source`
_Found = tuple[ImageSource, Listing]


def sources_at(place: str) -> Iterator[tuple[ImageSource, list[ListedImage]]]:
    """Yield each folder or archive at a path or address, see `find_places`, with its images (of source 0)."""
    for source, found in _remote(place) if is_address(place) else _local(Path(place)):
        images = [ListedImage(0, *one) for one in found]
        if any(kind == CLS for one in images for kind, *_ in one.texts):
            yield source, images  # an image without this text is unlabeled, and not in the class of its folder
            continue
        folders = folder_labels([one.path for one in images])
        yield source, [replace(one, folder=name) if name else one for one, name in zip(images, folders, strict=True)]


def _local(place: Path) -> Iterator[_Found]:
    """Yield the sources at a local path."""
    if place.is_dir():
        try:
            images = list_images(place)
        except NoImages:
            archives = archives_in(place)
            if not archives:
                raise
            yield from _with_images(str(place), list(map(_archive, archives)))
        else:
            yield _source(place), [_file(path, place) for path in images]
    elif is_archive(place.name) and place.is_file():
        yield from _with_images(str(place), [_archive(place)])
    else:
        yield _source(place.parent), [_file(place, place.parent)]


def _archive(path: Path) -> _Found:
    source = ImageSource(str(path), str(path.resolve()), True, path.stat().st_mtime)
    if is_table(path.name):
        return source, _rows(source)
    with path.open("rb") as file:
        images, others = _archived(str(path), file)
    return replace(source, left_out=others), images


def _rows(source: ImageSource) -> Listing:
    """Return the images of a table; their sizes are unknown (0) without reading all of them."""
    size, zipped, key, texts = 0, None, "", ()
    found = rows(source.absolute, source.changed)
    return [(one.name, size, source.changed, one.number, zipped, key, texts, one.label) for one in found]


def _with_images(place: str, found: list[_Found]) -> list[_Found]:
    """Return the archives of a place, and warn if some have no image.

    Raises:
        NoImages: none has.
    """
    empty = [source.given for source, images in found if not images]
    if len(empty) == len(found):
        raise NoImages(f"{place} contains no image; {EXPECTED}.")
    if empty:
        _warn_of_empty(place, len(empty), len(found), empty[0])
    return found


@cache
def _warn_of_empty(place: str, empty: int, count: int, first: str) -> None:
    """Log a warning once per place; programs list the same folder several times."""
    log.warning("%d of the %d archives in %s contain no image, such as %s", empty, count, place, first)


def _remote(address: str) -> Iterator[_Found]:
    """Yield the sources at an address."""
    files, root = open_file_system(address)
    with reading(address):
        try:
            about = files.info(root)
        except FileNotFoundError as error:
            cause = error.__cause__  # of an https:// address, the server may be unreachable
            if cause is not None and not isinstance(cause, FileNotFoundError):
                raise cause from error
            raise NoImages(f"{address} does not exist; {EXPECTED}.") from error
        if about["type"] != "directory":
            yield from _with_images(address, [_remote_file(files, address, about)])
            return
        found = sorted(files.find(root, detail=True).items())
    inside = [(path.removeprefix(root).lstrip("/"), one) for path, one in found]
    others: Counter[str] = Counter()
    for path, _ in inside:
        count_system_files(path, others)
    inside = [(path, one) for path, one in inside if not is_hidden(path)]
    images = [
        (path, int(one.get("size") or 0), _changed(one))
        for path, one in inside
        if os.path.splitext(path)[1].lower() in image_suffixes()
    ]
    if images:
        warn_of_others(address, others)
        yield ImageSource(address, address.rstrip("/"), left_out=tuple(others.items())), images
        return
    about_each = dict(inside)
    archives = _without_descriptions([path for path in about_each if path.lower().endswith(ARCHIVES)])
    yield from _with_images(
        address, [_remote_file(files, f"{address.rstrip('/')}/{path}", about_each[path]) for path in archives]
    )


def _remote_file(files: Any, address: str, about: dict[str, Any]) -> _Found:
    if not is_archive(address):
        parent, _, name = address.rpartition("/")
        return ImageSource(parent, parent), [(name, int(about.get("size") or 0), _changed(about))]
    if is_table(address):
        source = ImageSource(address, address, True, _changed(about))
        return source, _rows(source)
    with reading(address), files.open(about["name"], "rb") as file:
        images, others = _archived(address, file)
        return ImageSource(address, address, True, _changed(about), others), images


def _changed(about: dict[str, Any]) -> float:
    """Return the modification time that a file system reports, in seconds since 1970; 0 if it reports none."""
    changed = next((about[name] for name in ("mtime", "LastModified", "updated", "created") if about.get(name)), 0.0)
    if isinstance(changed, str):
        try:
            changed = datetime.fromisoformat(changed)
        except ValueError:
            return 0.0
    return changed.timestamp() if isinstance(changed, datetime) else float(changed)


def _archived(name: str, file: Any) -> tuple[Listing, tuple[tuple[str, int], ...]]:
    """Return the images of an archive, and the number of its other files by suffix."""
    others: Counter[str] = Counter()
    if is_zip(name):
        found: Listing = list(zip_members(file, name, others))
    else:
        found = [(*image, None, key, texts) for image, key, texts in samples(file, name, others)]
    if repeated := len(found) - len({image[0] for image in found}):
        others[REPEATED] = repeated
    warn_of_others(name, others)
    return found, tuple((suffix or "(none)", count) for suffix, count in others.most_common())


def archives_in(folder: Path) -> list[Path]:
    """Return the archives below a folder, in order, without hidden files, hidden folders and system folders."""
    found: list[Path] = []
    for parent, _, files in walk(folder):
        found += [Path(parent, name) for name in files if name.lower().endswith(ARCHIVES)]
    kept = _without_descriptions([str(path) for path in found if path.is_file()])
    return sorted(map(Path, kept))


def _without_descriptions(archives: list[str]) -> list[str]:
    """Return archives without the tables that img2dataset puts next to each tar file, which have no images."""
    tars = {os.path.splitext(path)[0] for path in archives if not is_table(path)}
    return [path for path in archives if not is_table(path) or os.path.splitext(path)[0] not in tars]


def _source(place: Path) -> ImageSource:
    return ImageSource(str(place), str(place.resolve()))


def _file(path: Path, root: Path) -> tuple[str, int, float]:
    name = path.relative_to(root).as_posix()
    try:
        stat = path.stat()
    except OSError:  # a dangling link; its shard reports the error
        return name, 0, 0.0
    return name, stat.st_size, stat.st_mtime
