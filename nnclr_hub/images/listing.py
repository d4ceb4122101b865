"""The images at the places that a caller names: files, folders, tar and zip archives; also at an address of fsspec.

    sources, images = find_images(["photos", "more-{000..009}.tar", "s3://bucket/photos"])
    for image in contents(sources, images):
        ...                                     # a path, a `Tile` or a `PackedImage`: each a source for decoding

    for unit in find_units(["photos", "shards"]):       # an archive, a folder, or files named one by one
        sources, images = open_unit(unit)               # a folder is walked while its images are consumed

The order is the same for the same files in every location, because a shard is a slice of it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from nnclr_hub.errors import ImageError, InvalidRequest, NoImages
from nnclr_hub.images.folder import (
    ARCHIVES,
    count_system_files,
    folder_labels,
    has_images,
    is_hidden,
    is_image,
    labels_of,
    list_images,
    walk,
    walk_images,
    warn_of_others,
    warn_once,
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


def find_units(given: Sequence[str | Path]) -> list[tuple[str, ...]]:
    """Return groups of places that are listed one after the other: an archive, a folder, or files named one by one.

    A folder with archives but no images is its archives. Nothing is listed but names.

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


def open_unit(unit: tuple[str, ...], start: str = "") -> tuple[list[ImageSource], Iterator[ListedImage]]:
    """Return the sources of a unit, and its images from a path on; those of a local folder are never in memory at once.

    Raises:
        NoImages: it is empty; or see `find_images`.
    """
    if not os.path.isdir(unit[0]):
        sources, images = find_images(unit)
        first = next((i for i, one in enumerate(images) if one.path == start), 0) if start else 0
        return sources, iter(images[first:])
    folder = Path(unit[0])
    labels = labels_of({path.rpartition("/")[0] for path in walk_images(folder)})
    if not labels:
        list_images(folder)  # raises

    def images_of() -> Iterator[ListedImage]:
        for path in walk_images(folder, start):
            yield ListedImage(0, path, *_size_and_time(folder / path), folder=labels.get(path.rpartition("/")[0], ""))

    return [_source(folder)], images_of()


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
    sources: Sequence[ImageSource], images: Iterable[ListedImage], tiling: Tiling, reading: ImageReading
) -> list[ListedImage]:
    """Return the tiles of the images; see `tiles_in_order`."""
    return list(tiles_in_order(sources, images, tiling, reading))


def tiles_in_order(
    sources: Sequence[ImageSource], images: Iterable[ListedImage], tiling: Tiling, reading: ImageReading
) -> Iterator[ListedImage]:
    """Yield the tiles of the images; a file that cannot be read stays, and its shard reports the error.

    Raises:
        InvalidRequest: an image is in an archive or at an address, so no part of it can be read.
    """
    from nnclr_hub.images.pool import decoding_processes
    from nnclr_hub.images.tiles import tiles_with_content  # imports Pillow, which the client does without

    with decoding_processes():  # one slide may take as long as thousands of images
        for one in images:
            [content] = contents(sources, [one])
            if not isinstance(content, str):
                name = named(sources, one)
                step = "give its path, without file://" if name.startswith("file://") else "unpack or copy it"
                raise InvalidRequest(f"--tile needs files of this machine, not {name}; {step}.")
            try:
                tiles = tiles_with_content(Path(content), tiling, reading)
            except ImageError:
                yield one
                continue
            yield from (replace(one, path=replace(tile, path=one.path).name, tile=tile) for tile in tiles)


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

Found = tuple[ImageSource, list[ListedImage]]  # the images have source 0


def sources_at(place: str) -> Iterator[Found]:
    """Yield each folder or archive at a path or address, see `find_places`, with its images (of source 0)."""
    for source, images in _remote(place) if is_address(place) else _local(Path(place)):
        if any(kind == CLS for one in images for kind, *_ in one.texts):
            yield source, images  # an image without this text is unlabeled, and not in the class of its folder
            continue
        folders = folder_labels([one.path for one in images])
        yield source, [replace(one, folder=name) if name else one for one, name in zip(images, folders, strict=True)]


def _local(place: Path) -> Iterable[Found]:
    """Return the sources at a local path."""
    if is_archive(place.name) and place.is_file():
        return _with_images(str(place), [_archive(place)])
    if not place.is_dir():
        return [(_source(place.parent), [_file(place, place.parent)])]
    try:
        return [(_source(place), [_file(path, place) for path in list_images(place)])]
    except NoImages:
        if not (archives := archives_in(place)):
            raise
        return _with_images(str(place), list(map(_archive, archives)))


def _archive(path: Path) -> Found:
    with path.open("rb") as file:
        return _archived(ImageSource(str(path), str(path.resolve()), True, path.stat().st_mtime), file)


def _archived(source: ImageSource, file: Any) -> Found:
    """List the images of an archive; the number of its other files by suffix is part of the source."""
    others: Counter[str] = Counter()
    if is_table(source.absolute):  # sizes are unknown (0) without reading all images
        found = rows(source.absolute, source.changed)
        return source, [ListedImage(0, one.name, 0, source.changed, one.number, label=one.label) for one in found]
    if is_zip(source.absolute):
        images = [ListedImage(0, *one) for one in zip_members(file, source.given, others)]
    else:
        images = [ListedImage(0, *one, None, key, texts) for one, key, texts in samples(file, source.given, others)]
    if repeated := len(images) - len({one.path for one in images}):
        others[REPEATED] = repeated
    warn_of_others(source.given, others)
    return replace(source, left_out=tuple((kind or "(none)", count) for kind, count in others.most_common())), images


def _with_images(place: str, found: list[Found]) -> list[Found]:
    """Return the archives of a place; warn if some have no image, and raise NoImages if none has."""
    empty = [source.given for source, images in found if not images]
    if len(empty) == len(found):
        raise NoImages(f"{place} contains no image; {EXPECTED}.")
    if empty:
        warn_once(f"{len(empty)} of the {len(found)} archives in {place} contain no image, such as {empty[0]}")
    return found


def _remote(address: str) -> Iterable[Found]:
    """Return the sources at an address."""
    files, root = open_file_system(address)

    def at(place: str, about: dict[str, Any]) -> Found:
        size, changed = int(about.get("size") or 0), _changed(about)
        if is_archive(place):
            with reading(place), files.open(about["name"], "rb") as file:
                return _archived(ImageSource(place, place, True, changed), file)
        parent, _, name = place.rpartition("/")
        return ImageSource(parent, parent), [ListedImage(0, name, size, changed)]

    with reading(address):
        try:
            about = files.info(root)
        except FileNotFoundError as error:
            cause = error.__cause__  # of an https:// address, the server may be unreachable
            if cause is not None and not isinstance(cause, FileNotFoundError):
                raise cause from error
            raise NoImages(f"{address} does not exist; {EXPECTED}.") from error
        if about["type"] != "directory":
            return _with_images(address, [at(address, about)])
        found = {path.removeprefix(root).lstrip("/"): one for path, one in files.find(root, detail=True).items()}
    others: Counter[str] = Counter()
    for path in found:
        count_system_files(path, others)
    paths = sorted((path for path in found if not is_hidden(path)), key=lambda path: path.split("/"))
    if images := [
        ListedImage(0, path, int(found[path].get("size") or 0), _changed(found[path]))
        for path in paths
        if is_image(path)
    ]:
        warn_of_others(address, others)
        return [(ImageSource(address, address.rstrip("/"), left_out=tuple(others.items())), images)]
    archives = _without_descriptions([path for path in paths if path.lower().endswith(ARCHIVES)])
    return _with_images(address, [at(f"{address.rstrip('/')}/{path}", found[path]) for path in archives])


def _changed(about: dict[str, Any]) -> float:
    """Return the modification time that a file system reports, in seconds since 1970; 0 if it reports none."""
    changed = next((about[name] for name in ("mtime", "LastModified", "updated", "created") if about.get(name)), 0.0)
    if isinstance(changed, str):
        try:
            changed = datetime.fromisoformat(changed)
        except ValueError:
            return 0.0
    return changed.timestamp() if isinstance(changed, datetime) else float(changed)


def archives_in(folder: Path) -> list[Path]:
    """Return the archives below a folder, in order, without hidden files, hidden folders and system folders."""
    found = (Path(parent, name) for parent, _, files in walk(folder) for name in files)
    archives = [str(path) for path in found if path.name.lower().endswith(ARCHIVES) and path.is_file()]
    return sorted(map(Path, _without_descriptions(archives)))


def _without_descriptions(archives: list[str]) -> list[str]:
    """Return archives without the tables that img2dataset puts next to each tar file, which have no images."""
    tars = {os.path.splitext(path)[0] for path in archives if not is_table(path)}
    return [path for path in archives if not is_table(path) or os.path.splitext(path)[0] not in tars]


def _source(place: Path) -> ImageSource:
    return ImageSource(str(place), str(place.resolve()))


def _file(path: Path, root: Path) -> ListedImage:
    return ListedImage(0, path.relative_to(root).as_posix(), *_size_and_time(path))


def _size_and_time(path: Path) -> tuple[int, float]:
    try:
        stat = path.stat()
    except OSError:  # a dangling link; its shard reports the error
        return 0, 0.0
    return stat.st_size, stat.st_mtime
