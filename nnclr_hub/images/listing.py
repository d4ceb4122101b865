"""The images at the places that a caller names: files, folders, tars, zips and tables; also at an address of fsspec.

    for image in find_images(["photos", "more-{000..009}.tar", "s3://bucket/photos"]):
        image.read()

    for unit in find_units(["photos", "shards"]):       # an archive, a folder, or files named one by one
        places, images = open_unit(unit)                # a folder is walked while its images are consumed

The order is the same for the same files in every location, because a shard is a slice of it: folders are sorted by the
parts of their paths, and archives have their own order, which reads fastest. Hidden files, and the folders that systems
make for thumbnails and deleted files, are left out everywhere.

Archives must allow random access: uncompressed as a whole, one archive per file, and complete. They may come from
anyone: nothing is unpacked, so a path cannot lead outside, and no header may take more memory than its file.
"""

from __future__ import annotations

import calendar
import logging
import mmap
import os
import re
import stat
import sys
import tarfile
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from nnclr_hub.errors import ImageError, InvalidRequest, NoImages
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.images.source import (
    ARCHIVES,
    CLS,
    COMPRESSED,
    TABLE,
    TAR,
    ZIP,
    Place,
    Source,
    Text,
    archive_kind,
    in_words,
)
from nnclr_hub.remote_files import expand, is_address, open_file_system, reading, without_query

if TYPE_CHECKING:
    from nnclr_hub.images.tiles import Tiling

log = logging.getLogger(__name__)
EXPECTED = "expected images, folders of images, tar or zip files of images, or tables with a column of images"
_PILLOW = (
    ".jpg .jpeg .jpe .jfif .png .webp .gif .bmp .dib .tif .tiff .avif .heic .heif .hif .ppm .pgm .pbm .pnm .ico .qoi "
    ".jp2 .j2k"
)
# suffixes of files that often lie next to images and are not expected to be any
COMPANIONS = frozenset(
    [".csv", ".tsv", ".json", ".jsonl", ".txt", ".md", ".xml", ".yaml", ".yml", ".html", ".log", ".db"]
)
SHOWN = 8  # suffixes in a warning
MOST_SUFFIXES, OTHER_SUFFIXES = 50, "other suffixes"  # most suffixes of files that are left out and counted
LABELS_FILE = "labels.csv"
UNLABELED = ("unlabeled", "unlabelled")
SPLITS = ("train", "val", "test", *UNLABELED)  # names of folders, see `find_splits`
# folders that a NAS, Windows, macOS or Linux creates: thumbnails, deleted files, and parts of files
SYSTEM_FOLDERS = frozenset(
    ["@eadir", "#recycle", "#snapshot", "$recycle.bin", "lost+found", "system volume information", "__macosx"]
) | {".thumbnails"}
LINKS, REPEATED, UNMATCHED = "links", "repeated", "texts without an image"  # counted like suffixes
NO_SUFFIX = "(none)"


@cache
def warn_once(message: str) -> None:
    """Log a warning once; programs list the same folder several times."""
    log.warning("%s", message)


@cache
def image_suffixes() -> frozenset[str]:
    """Return the suffixes of image files, in lower case: those of Pillow and of all readers."""
    from nnclr_hub.images.readers import readers  # imports Pillow, which the client does without

    return frozenset(_PILLOW.split()).union(*(reader.suffixes for reader in readers()))


def is_image(path: str) -> bool:
    """Return whether a file is an image, by its suffix."""
    return os.path.splitext(path)[1].lower() in image_suffixes()


def is_archive(place: str) -> bool:
    """Return whether a file is an archive, by its name."""
    return without_query(place).lower().endswith((*ARCHIVES, *COMPRESSED))


def is_packed(given: str | Path) -> bool:
    """Return whether the images of a place are not files of this machine: an archive, an address or a pattern."""
    place = str(given)
    if os.path.exists(place):  # even if its name has brackets, as a pattern has
        return os.path.isfile(place) and is_archive(place)
    return is_address(place) or expand(place) != [place]


# ---- what a caller names ---------------------------------------------------------------------------------------------


def find_images(given: Sequence[str | Path]) -> list[Source]:
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
    return list_places(given)[1]


def list_places(given: Sequence[str | Path]) -> tuple[list[Place], list[Source]]:
    """Return the folders and archives at the given paths, with those without images, and what `find_images` returns."""
    listed = [found for place in find_places(given) for found in sources_at(place)]
    if not listed:
        raise NoImages(f"The list of paths is empty; {EXPECTED}.")
    return list(dict.fromkeys(place for place, _ in listed)), [image for _, found in listed for image in found]


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
        units += [(archive,) for archive in _only_archives(place)] or [(place,)]
    return units + ([tuple(files)] if files else [])


def _only_archives(place: str) -> list[str]:
    """Return the archives in a folder, here or at an address, if it has no images."""
    if is_address(place):
        files, root = open_file_system(place)
        with reading(place), suppress(FileNotFoundError):  # which is reported when the unit is opened
            if files.info(root)["type"] != "directory":
                return []
            if not any(is_image(name) for _, _, names in files.walk(root) for name in names):  # up to the first one
                return [f"{place.rstrip('/')}/{path}" for path in _archives_of(_remote_files(place)[0])]
        return []
    return [] if not os.path.isdir(place) or _has_images(place) else list(map(str, archives_in(place)))


def open_unit(unit: tuple[str, ...], start: str = "") -> tuple[list[Place], Iterator[Source]]:
    """Return the places of a unit, and its images; those of a local folder are never in memory at once.

    Args:
        start: path of the first image of a local folder; names of other units may repeat.

    Raises:
        NoImages: it is empty; or see `find_images`.
    """
    if os.path.isdir(unit[0]):
        place, images = _folder(unit[0], start)
        return [place], images
    places, found = list_places(unit)
    return places, iter(found)


def sources_at(place: str) -> Iterator[tuple[Place, list[Source]]]:
    """Yield each folder or archive at a path or address, see `find_places`, with its images."""
    if is_address(place):
        yield from _remote(place)
    elif is_archive(place) and os.path.isfile(place):
        yield from _with_images(place, [_archive(place)])
    elif os.path.isdir(place):
        if _has_images(place) or not (archives := archives_in(place)):
            folder, images = _folder(place)
            yield folder, list(images)
        else:
            yield from _with_images(place, map(_archive, map(str, archives)))
    else:
        parent, name = os.path.split(place)
        folder = Place(parent or ".", os.path.realpath(parent or "."))
        yield folder, [Source(folder, name, *_size_and_time(place))]


def prefixed_keys(images: Iterable[Source]) -> Iterator[Source]:
    """Put the name of its archive before the key of each sample: keys of several archives may repeat."""
    for one in images:
        yield replace(one, key=f"{PurePosixPath(one.place.absolute).name}/{one.key}") if one.key else one


def in_tiles(images: Iterable[Source], tiling: Tiling, reading: ImageReading) -> Iterator[Source]:
    """Yield the tiles of the images; a file that cannot be read stays, and its reader reports the error.

    Raises:
        InvalidRequest: an image is in an archive or at an address, so no part of it can be read.
    """
    from nnclr_hub.images.pool import decoding_processes
    from nnclr_hub.images.tiles import tiles_with_content  # imports Pillow, which the client does without

    with decoding_processes():  # one slide may take as long as thousands of images
        for one in images:
            if one.file is None:
                step = "give its path, without file://" if str(one).startswith("file://") else "unpack or copy it"
                raise InvalidRequest(f"--tile needs files of this machine, not {one}; {step}.")
            try:
                yield from tiles_with_content(one, tiling, reading)
            except ImageError:
                yield one


# ---- folders ---------------------------------------------------------------------------------------------------------


def _is_system_folder(name: str) -> bool:
    return name.lower() in SYSTEM_FOLDERS


def _is_hidden(path: str) -> bool:
    """Return whether a file is hidden or in a hidden folder or system folder, by its path with slashes."""
    return any(part.startswith(".") or _is_system_folder(part) for part in path.split("/"))


def walk(
    folder: Path | str, start: str = "", *, others: Counter[str] | None = None, without: Collection[str] = ()
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield each visible file below a folder, and each link to a folder, sorted by the parts of its path.

    At any time, the names of one folder and of those above it are in memory. Links to folders are not followed, because
    they may form a cycle or leave the tree that a user may read.

    Args:
        start: the path to begin with.
        others: counts the files in system folders, by the name of the system folder.
        without: paths of folders that are not entered.

    Returns:
        The path below the folder, with slashes, and the entry of each.
    """
    first, _, rest = start.partition("/")
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:  # as os.walk, which leaves out what cannot be read
        return
    for entry in entries:
        name = entry.name
        if name < first:
            continue
        is_folder = entry.is_dir(follow_symlinks=False)
        if _is_hidden(name):
            if others is not None and is_folder and _is_system_folder(name):
                others[name] += sum(len(files) for _, _, files in os.walk(entry.path))
        elif not is_folder:
            yield name, entry
        elif name not in without:
            below = [path.removeprefix(f"{name}/") for path in without if path.startswith(f"{name}/")]
            for path, inner in walk(entry.path, rest if name == first else "", others=others, without=below):
                yield f"{name}/{path}", inner


def _has_images(folder: Path | str) -> bool:
    """Return whether there is an image below a folder; the walk ends at the first one."""
    return any(is_image(path) and not entry.is_dir() for path, entry in walk(folder))


def list_images(folder: Path | str) -> list[Path]:
    """Return every image below a folder, see `walk`.

    A warning reports the number of other files by suffix, without tables and texts, and that of links to folders.

    Raises:
        NoImages: the folder does not exist, is a file, or contains no image.
    """
    return [Path(folder, image.path) for image in _folder(folder)[1]]


def _folder(folder: Path | str, start: str = "") -> tuple[Place, Iterator[Source]]:
    """Return a folder with its images from a path on, which are read from the disk while they are consumed."""
    folder = Path(folder)
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise NoImages(f"{folder} {problem}; expected a folder of images.")
    parents, others, links = (_last_survey if start else _survey)(folder)  # else each shard of a run walks it all
    absolute = folder.resolve()  # the same path for every spelling of the folder
    if links:
        warn_once(
            f"{absolute} contains links to folders ({len(links)}), such as {absolute / links[0]}, which are not "
            "followed; pass those folders instead"
        )
    if not parents:
        if not any(folder.iterdir()):
            raise NoImages(f"{folder} is empty; expected a folder of images.")
        counted = f" ({_counted(others)})" if _unexpected(others) else ""
        raise NoImages(
            f"{folder} and its subfolders contain no image{counted}; supported suffixes are "
            f"{' '.join(sorted(image_suffixes()))}."
        )
    if archives := others[".tar"] + others[".zip"]:
        warn_once(f"{absolute} contains images, so its archives (tar, zip: {archives}) are not read; pass them by name")
    _warn_of(str(absolute), Counter({kind: n for kind, n in others.items() if kind not in (".tar", ".zip")}))
    place, labels = Place(str(folder), str(absolute), left_out=bounded_counts(others)), labels_of(parents)

    def images() -> Iterator[Source]:
        for path, entry in walk(folder, start):
            if is_image(path) and not (entry.is_symlink() and entry.is_dir()):
                label = labels.get(path.rpartition("/")[0], "")
                yield Source(place, path, *_size_and_time(entry.path), folder=label)

    return place, images()


def _survey(folder: Path) -> tuple[set[str], Counter[str], list[str]]:
    """Return the folders with images, the number of other files by suffix, and the links to folders."""
    parents, others, links = set[str](), Counter[str](), list[str]()
    for path, entry in walk(folder, others=others):
        if entry.is_symlink() and entry.is_dir():
            links.append(path)
        elif is_image(path):
            parents.add(path.rpartition("/")[0])
        elif not entry.is_symlink():
            others[os.path.splitext(path)[1].lower() or NO_SUFFIX] += 1
    return parents, others, links


_last_survey = lru_cache(maxsize=4)(_survey)


def empty_place(folder: Path) -> Place:
    """Return a folder whose images were all removed."""
    return Place(str(folder), str(folder.resolve()), left_out=bounded_counts(_survey(folder)[1]))


def _size_and_time(path: str) -> tuple[int, float]:
    try:
        found = os.stat(path)
    except OSError:  # a dangling link; its reader reports the error
        return 0, 0.0
    return found.st_size, found.st_mtime


def archives_in(folder: Path | str) -> list[Path]:
    """Return the archives below a folder, in order; see `walk`."""
    found = [Path(folder, path) for path, entry in walk(folder) if path.lower().endswith(ARCHIVES) and entry.is_file()]
    return sorted(map(Path, _without_descriptions(map(str, found))))


def _without_descriptions(archives: Iterable[str]) -> list[str]:
    # img2dataset puts a table without images next to each tar file
    archives = list(archives)
    tars = {os.path.splitext(path)[0] for path in archives if not path.lower().endswith(TABLE)}
    return [one for one in archives if not one.lower().endswith(TABLE) or os.path.splitext(one)[0] not in tars]


def bounded_counts(others: Counter[str]) -> tuple[tuple[str, int], ...]:
    """Return the numbers of other files by suffix, with one number for the rarest: a name may have any suffix."""
    known = [one for one in (+others).most_common() if one[0] != OTHER_SUFFIXES]
    common = {kind for kind, _ in [one for one in known if one[0].startswith(".")][:MOST_SUFFIXES]}
    rest = others[OTHER_SUFFIXES] + sum(n for kind, n in known if kind.startswith(".") and kind not in common)
    kept = [one for one in known if one[0] in common or not one[0].startswith(".")]
    return (*kept, *([(OTHER_SUFFIXES, rest)] if rest else ()))


def _unexpected(others: Counter[str]) -> Counter[str]:
    return Counter({kind: n for kind, n in others.items() if kind not in COMPANIONS})


def _warn_of(place: str, others: Counter[str]) -> None:
    if _unexpected(others):
        warn_once(f"{place} also contains files that are not read as images: {_counted(others)}")


def _counted(others: Counter[str]) -> str:
    def words(kind: str) -> str:
        return f"in {kind}" if _is_system_folder(kind) else "without suffix" if kind == NO_SUFFIX else kind

    return ", ".join(f"{n} {words(kind)}" for kind, n in _unexpected(others).most_common(SHOWN))


# ---- splits and labels of folders ------------------------------------------------------------------------------------


def find_splits(folders: Iterable[str]) -> dict[str, str]:
    """Return the path of each split of a data set, by its name: {"train": "data/train", "test": "data/test"}.

    A folder with the name of a split is one if it contains folders of images, or is next to another one. Otherwise it
    is a class of this name, such as train next to bus and car. If all images are below one folder, that is searched.

    Args:
        folders: paths, with slashes, of all folders that contain images directly; "" is the data set itself.
    """
    paths = {tuple(filter(None, path.split("/"))) for path in folders}
    above: tuple[str, ...] = ()
    while True:
        depth = len(above)
        names = {path[depth] for path in paths if len(path) > depth}
        splits = names & set(SPLITS)
        if len(splits) < 2:
            splits &= {path[depth] for path in paths if len(path) > depth + 1}
        if splits or above in paths or len(names) != 1:
            return {name: "/".join((*above, name)) for name in sorted(splits)}
        above = (*above, *names)


def splits_in(folder: Path | str) -> dict[str, Path]:
    """Return the splits in a folder, see `find_splits`; one may also contain archives or a table of its labels."""
    folder = Path(folder)
    if not folder.is_dir():
        return {}
    names = {one.name for one in os.scandir(folder) if one.is_dir(follow_symlinks=False) and not _is_hidden(one.name)}
    if len(names) != 1 and not names & set(SPLITS):  # saves a walk
        return {}
    parents = set[str]()
    for path, _ in walk(folder):
        parent, _, name = path.rpartition("/")
        if is_image(name):
            parents.add(parent)
        elif parent and (name == LABELS_FILE or name.lower().endswith(ARCHIVES)):
            parents.add(f"{parent}/*")
    return {name: folder / path for name, path in find_splits(parents).items()}


def labels_of(parents: Iterable[str]) -> dict[str, str]:
    """Return the label of the images directly in each folder of a data set: its name.

    It is "" for the data set or a split itself, and for everything in `unlabeled`.

    Args:
        parents: paths, with slashes, of all folders that contain images directly.
    """
    labels = {parent: parent.rpartition("/")[2] for parent in parents}
    for name, path in find_splits(labels).items():
        for parent in labels if name in UNLABELED else (path,):
            if parent == path or parent.startswith(f"{path}/"):
                labels[parent] = ""
    return labels


def _labeled(place: Place, images: Iterable[Source]) -> list[Source]:
    """Return images with their labels by folder.

    An image without a text `cls` in an archive with such texts is unlabeled, and not in the class of its folder.
    """
    images = list(images)
    by_text = any(text.kind == CLS for one in images for text in one.texts)
    labels = {} if by_text else labels_of({one.path.rpartition("/")[0] for one in images})
    return [replace(one, place=place, folder=labels.get(one.path.rpartition("/")[0], "")) for one in images]


# ---- addresses -------------------------------------------------------------------------------------------------------


def _remote_files(address: str) -> tuple[dict[str, dict[str, Any]], Counter[str]]:
    """Return what is known of each visible file below an address, by its path in order; of a file itself by "".

    Also the number of files in system folders, by the name of the folder.
    """
    files, root = open_file_system(address)
    with reading(address):
        try:
            about = files.info(root)
        except FileNotFoundError as error:
            cause = error.__cause__  # the server of an https:// address may be unreachable
            if cause is not None and not isinstance(cause, FileNotFoundError):
                raise cause from error
            raise NoImages(f"{address} does not exist; {EXPECTED}.") from error
        if about["type"] != "directory":
            return {"": about}, Counter()
        found = {path.removeprefix(root).lstrip("/"): one for path, one in files.find(root, detail=True).items()}
    others = Counter[str]()
    visible = sorted((path for path in found if inside(path, others)), key=lambda path: path.split("/"))
    return {path: found[path] for path in visible}, others


def _archives_of(files: Iterable[str]) -> list[str]:
    return _without_descriptions(path for path in files if path.lower().endswith(ARCHIVES))


def _remote(address: str) -> Iterator[tuple[Place, list[Source]]]:
    files, _ = open_file_system(address)
    found, others = _remote_files(address)

    def archive(place: str, about: dict[str, Any]) -> tuple[Place, list[Source]]:
        with reading(place), files.open(about["name"], "rb") as file:
            return _warned(*_listed(Place(place, place, archive_kind(place), _changed(about)), file, False))

    if "" in found and is_archive(address):
        yield from _with_images(address, [archive(address, found[""])])
    elif "" in found:
        image = Source.at(address)
        yield image.place, [_at(image.place, image.path, found[""])]
    elif images := [path for path in found if is_image(path)]:
        _warn_of(address, others)
        place = Place(address, address.rstrip("/"), left_out=bounded_counts(others))
        yield place, _labeled(place, (_at(place, path, found[path]) for path in images))
    else:
        archives = ((path, f"{address.rstrip('/')}/{path}") for path in _archives_of(found))
        yield from _with_images(address, (archive(place, found[path]) for path, place in archives))


def _at(place: Place, path: str, about: dict[str, Any]) -> Source:
    return Source(place, path, int(about.get("size") or 0), _changed(about))


def _changed(about: dict[str, Any]) -> float:
    """Return the modification time that a file system reports, in seconds since 1970; 0 if it reports none."""
    changed = next((about[name] for name in ("mtime", "LastModified", "updated", "created") if about.get(name)), 0.0)
    if isinstance(changed, str):
        with suppress(ValueError):
            return datetime.fromisoformat(changed).timestamp()
        return 0.0
    return changed.timestamp() if isinstance(changed, datetime) else float(changed)


# ---- archives --------------------------------------------------------------------------------------------------------

MOST_FILES = 100_000  # in an archive that someone sent
MOST_UNPACKED = 20_000_000_000  # bytes of all its files
MOST_RATIO = 100  # unpacked over packed bytes; photos have 1, uncompressed drawings up to 50
RATIO_FROM = 50_000_000  # bytes below which the ratio is not checked
MOST_TEXT = 1 << 16  # bytes of a text of a sample; longer ones are left out
MOST_HEADER = 1 << 20  # bytes of a long name, or of other attributes of a member
CHUNK = 1 << 20
TEXTS = ("json", CLS, "txt")  # suffixes of the texts of a sample of WebDataset
ZIP_ENTRY = b"PK\x01\x02"  # starts each entry of the directory of a zip
ENCRYPTED = 0x1
_BROKEN = (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, ValueError, zlib.error)
_DRIVE = re.compile(r"^[A-Za-z]:(?=/)")


def _archive(path: str) -> tuple[Place, list[Source]]:
    return list_archive(Place(str(Path(path)), os.path.realpath(path), archive_kind(path), os.stat(path).st_mtime))


def list_archive(place: Place, *, limited: bool = False) -> tuple[Place, list[Source]]:
    """List the images of an archive of this machine, in its order, in another process if this one uses them.

    The number of its other files by suffix is part of the place.

    Args:
        place: the archive; `given` is its name in messages.
        limited: refuse an archive with too many files, and a zip with too many bytes.

    Raises:
        InvalidRequest: it is damaged, truncated, compressed as a whole, encrypted, or contains a header that is too
            large.
    """
    from nnclr_hub.images.pool import LISTING, run_in_reader  # which the client does without

    try:
        return _warned(*run_in_reader(LISTING, _list_file, place.absolute, place, limited))
    except ImageError as error:  # the process was ended
        raise InvalidRequest(
            f"{place.given} takes too much time or memory to list, or is damaged; create it again, or unpack it."
        ) from error


def _list_file(path: str, place: Place, limited: bool) -> tuple[Place, list[Source]]:
    with open(path, "rb") as file:
        return _listed(place, file, limited)


def _warned(place: Place, images: list[Source]) -> tuple[Place, list[Source]]:
    """Return what was listed; warn of the other files, and of images without a text in an archive of samples."""
    others = Counter(dict(place.left_out))
    _warn_of(place.given, others)
    bare = [image.path for image in images if not image.texts] if place.archive == TAR else []
    if bare and (others[UNMATCHED] or len(bare) < len(images)):
        warn_once(
            f"{len(bare)} of the {len(images)} images in {place.given} have no text (cls, txt, json), such as {bare[0]}"
        )
    return place, images


def _listed(place: Place, file: BinaryIO, limited: bool) -> tuple[Place, list[Source]]:
    others = Counter[str]()
    if place.archive == TABLE:  # sizes are unknown (0) without reading all images
        from nnclr_hub.images.parquet import rows

        found = enumerate(rows(place.absolute, place.changed))
        images = [Source(place, name, 0, place.changed, number, row_label=label) for number, (name, label) in found]
    else:
        is_zip = place.archive == ZIP
        images = list((_zip_images if is_zip else _tar_images)(place, file, others, limited))
    if repeated := len(images) - len({one.path for one in images}):
        others[REPEATED] = repeated
    place = replace(place, left_out=bounded_counts(others))
    return place, _labeled(place, images)


def _with_images(place: str, found: Iterable[tuple[Place, list[Source]]]) -> Iterator[tuple[Place, list[Source]]]:
    """Yield the archives of a place; warn if some have no image, and raise NoImages if none has."""
    found = list(found)
    empty = [one.given for one, images in found if not images]
    if len(empty) == len(found):
        raise NoImages(f"{place} contains no image; {EXPECTED}.")
    if empty:
        warn_once(f"{len(empty)} of the {len(found)} archives in {place} contain no image, such as {empty[0]}")
    return iter(found)


def inside(name: str, others: Counter[str]) -> str:
    """Return the path of a member in the form a/b.jpg; "" if it is hidden or in a system folder.

    A drive, and steps that lead outside, are left out: nothing is unpacked, and `zip -r x.zip ../photos` writes them.

    Args:
        others: counts the files in system folders, by the name of the system folder.
    """
    path = "/".join(part for part in PurePosixPath(_DRIVE.sub("", name)).parts if part not in ("/", "//", ".."))
    if folder := next(filter(_is_system_folder, path.split("/")[:-1]), None):
        others[folder] += 1
    return "" if _is_hidden(path) else path


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower() or NO_SUFFIX


def _zip_images(place: Place, file: BinaryIO, others: Counter[str], limited: bool) -> Iterator[Source]:
    """Yield each image, in the order of the zip's directory; programs for Windows write names with backslashes."""
    name = place.given
    if limited and _entries(file) > MOST_FILES:
        raise InvalidRequest(f"{name} holds more than {MOST_FILES:,} files; split it into several zips.")
    try:
        entries = zipfile.ZipFile(file).infolist()
    except _BROKEN as error:
        raise InvalidRequest(f"{name} is not a complete zip file ({error}); create it again, or unpack it.") from error
    file.seek(0)
    if file.read(4) == b"PK\x03\x04" and all(entry.header_offset > 0 for entry in entries):
        # these are the entries of a zip in the zip: a truncated file may end with the directory of one
        raise InvalidRequest(f"{name} is truncated; create it again, or unpack it.")
    size, packed = (sum(getattr(entry, of) for entry in entries) for of in ("file_size", "compress_size"))
    if limited and size > MOST_UNPACKED:
        raise InvalidRequest(
            f"{name} would unpack to {in_words(size)}; the limit is {in_words(MOST_UNPACKED)}; split it."
        )
    if limited and size > RATIO_FROM and size > MOST_RATIO * packed:
        raise InvalidRequest(
            f"{name} would unpack to {size // max(1, packed):,} times its size, which images never do; choose the "
            "folder of images itself."
        )
    for entry in entries:
        path = "" if entry.is_dir() else inside(entry.filename.replace("\\", "/"), others)
        if not path:
            continue
        if entry.flag_bits & ENCRYPTED:
            raise InvalidRequest(f"{name} is encrypted; pack the images without a password.")
        is_link = stat.S_ISLNK(entry.external_attr >> 16)
        if is_link or not is_image(path):
            others[LINKS if is_link else _suffix(path)] += 1
            continue
        changed = 0.0
        with suppress(OverflowError, ValueError):  # without a time zone, so as if in UTC
            changed = float(calendar.timegm((*entry.date_time, 0, 0, 0)))
        zipped = entry.compress_size, entry.CRC
        yield Source(place, path, entry.file_size, changed, entry.header_offset, zipped)


def _entries(file: BinaryIO) -> int:
    """Return an upper bound on the number of entries, before reading a directory that could fill the memory."""
    count, position = 0, -1
    try:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # it is empty
        return 0
    with content:
        while count <= MOST_FILES and (position := content.find(ZIP_ENTRY, position + 1)) >= 0:
            count += 1
    return count


def _tar_images(place: Place, file: BinaryIO, others: Counter[str], limited: bool) -> Iterator[Source]:
    """Yield each image with its key, and the texts of its sample, as WebDataset packs them.

    The files of a sample have the same name up to the first dot, which is the key, in any order. A text belongs to the
    only image of its sample, or to the only one that has its name without the suffix: `0.cls` to `0.jpg`, and not to
    the mask `0.seg.png`. The other images of a sample have neither key nor texts. Of equal names, the last one counts.
    """
    images: list[tuple[str, int, float, int]] = []
    texts: dict[str, dict[str, Text]] = defaultdict(dict)  # by the path without the suffix
    by_stem, by_key = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for member in _tar_files(place.given, file, others, MOST_FILES if limited else sys.maxsize):
        path, size, _, offset = member
        suffix = PurePosixPath(path).suffix
        stem, kind = path.removesuffix(suffix), suffix[1:].lower()
        if is_image(path):
            images.append(member)
            by_stem[stem].add(path)
            by_key[_key(path)].add(path)
        elif kind in TEXTS and size <= MOST_TEXT:
            texts[stem][kind] = Text(kind, size, offset)
        elif kind not in TEXTS:
            others[_suffix(path)] += 1
    texts_of: dict[str, dict[str, Text]] = defaultdict(dict)
    unmatched = Counter[str]()
    for stem, found in texts.items():
        owners = by_stem.get(stem) or by_key.get(stem) or ()
        if len(owners) == 1:
            texts_of[next(iter(owners))].update(found)
        else:
            unmatched.update(found.keys())
    for path, size, mtime, offset in images:
        key, own = _key(path), tuple(texts_of.get(path, {}).values())
        named = len(by_key[key]) == 1 or (os.path.splitext(path)[0] == key and len(by_stem[key]) == 1)
        yield Source(place, path, size, mtime, offset, key=key if named else "", texts=own)
    for kind, count in unmatched.items():  # without samples, a .json or .txt may be any file
        others[UNMATCHED if texts_of or kind == CLS else f".{kind}"] += count


def _key(path: str) -> str:
    # the key of a sample ends at the first dot of the file name
    folder, slash, file = path.rpartition("/")
    return folder + slash + file.partition(".")[0]


class _BoundedHeader(tarfile.TarInfo):
    """A header whose size is checked before tarfile reads that many bytes at once."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        # tarfile reads nothing of other members
        if header.size < 0 or (header.type in b"LKxgX" and header.size > MOST_HEADER):
            raise tarfile.ReadError(f"a header declares {header.size} bytes; the limit is {MOST_HEADER}")
        return header


def _tar_files(name: str, file: BinaryIO, others: Counter[str], most: int) -> Iterator[tuple[str, int, float, int]]:
    """Yield name, size, mtime and offset of the regular files that are not hidden, and check that all is there."""
    if without_query(name).lower().endswith(COMPRESSED):
        raise InvalidRequest(f"{name} is compressed and does not allow random access; decompress it first.")
    again = "create it again, or unpack it"
    try:
        with tarfile.open(fileobj=file, mode="r:", tarinfo=_BoundedHeader) as tar:
            for number, member in enumerate(tar):
                if number == most:
                    raise InvalidRequest(f"{name} holds more than {most:,} files; split it into several archives.")
                if member.size < 0:  # from an extended header; tarfile would go back and never end
                    raise tarfile.ReadError(f"a header declares {member.size} bytes")
                path = inside(member.name, others if member.isreg() else Counter())
                if member.isreg() and path:
                    if member.issparse() and is_image(path):
                        raise InvalidRequest(f"{name} contains the sparse file {path}; pack it without --sparse.")
                    yield path, member.size, float(member.mtime), member.offset_data
                elif (member.issym() or member.islnk()) and path:
                    others[LINKS] += 1
                tar.members.clear()  # type: ignore[attr-defined] - otherwise all members stay in memory
            end = tar.offset
    except (tarfile.TarError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        if isinstance(error, InvalidRequest):
            raise
        # tarfile does not expect every damage of a header, such as that of a sparse file
        raise InvalidRequest(f"{name} is not a complete tar file ({error}); {again}.") from error
    # tarfile stops silently at an invalid header; only zeros may follow the last member
    file.seek(end)
    rest = file.read(CHUNK)
    if len(rest) < tarfile.BLOCKSIZE:
        raise InvalidRequest(f"{name} is truncated; {again}.")
    while rest:
        if rest.strip(b"\0"):
            raise InvalidRequest(f"{name} has data after its end, so it is damaged or concatenated; {again}.")
        rest = file.read(CHUNK)
