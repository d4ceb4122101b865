"""A folder of images: its files in a stable order, its splits, and labels by folder."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path, PurePath

from nnclr_hub.errors import NoImages

log = logging.getLogger(__name__)
_PILLOW = (
    ".jpg .jpeg .jpe .jfif .png .webp .gif .bmp .dib .tif .tiff .avif .heic .heif .hif .ppm .pgm .pbm .pnm .ico .qoi "
    ".jp2 .j2k"
)
# suffixes of files that often lie next to images and are not expected to be any
_COMPANIONS = ".csv .tsv .json .jsonl .txt .md .xml .yaml .yml .html .log .db"
COMPANIONS = frozenset(_COMPANIONS.split())
SHOWN = 8  # suffixes in a warning
ARCHIVES = (".tar", ".zip", ".parquet")
TABLE = "labels.csv"
UNLABELED = ("unlabeled", "unlabelled")
SPLITS = ("train", "val", "test", *UNLABELED)  # names of folders, see `find_splits`
# folders that a NAS, Windows, macOS or Linux creates: thumbnails, deleted files, and parts of files
SYSTEM_FOLDERS = frozenset(
    ["@eadir", "#recycle", "#snapshot", "$recycle.bin", "lost+found", "system volume information", "__macosx"]
) | {".thumbnails"}


@cache
def warn_once(message: str) -> None:
    """Log a warning once; programs list the same folder several times."""
    log.warning("%s", message)


def is_system_folder(name: str) -> bool:
    """Return whether a folder belongs to the system, by its name."""
    return name.lower() in SYSTEM_FOLDERS


def is_hidden(path: str) -> bool:
    """Return whether a file is hidden or in a hidden folder or system folder, by its path with slashes."""
    return any(part.startswith(".") or is_system_folder(part) for part in path.split("/"))


def count_system_files(path: str, others: Counter[str]) -> None:
    """Count a file that is left out because of a system folder in its path with slashes."""
    if folder := next(filter(is_system_folder, path.split("/")[:-1]), None):
        others[folder] += 1


@cache
def image_suffixes() -> frozenset[str]:
    """Return the suffixes of image files, in lower case: those of Pillow and of all readers."""
    from nnclr_hub.images.readers import readers  # imports Pillow, which the client does without

    return frozenset(_PILLOW.split()).union(*(reader.suffixes for reader in readers()))


def is_image(path: str) -> bool:
    """Return whether a file is an image, by its suffix."""
    return os.path.splitext(path)[1].lower() in image_suffixes()


def walk(folder: Path | str, others: Counter[str] | None = None) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a folder as `os.walk` does, in a stable order, without hidden files, hidden folders and system folders.

    Args:
        others: counts the files in system folders, by the name of the system folder.
    """
    for parent, folders, files in os.walk(folder):
        if others is not None:
            for name in filter(is_system_folder, folders):
                others[name] += sum(len(files) for _, _, files in os.walk(os.path.join(parent, name)))
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        yield parent, folders, sorted(name for name in files if not name.startswith("."))


def walk_images(folder: Path | str, start: str = "") -> Iterator[str]:
    """Yield the path with slashes of each image below a folder, sorted by its parts, from `start` on.

    At any time, the names of one folder and of those above it are in memory.
    """
    first, _, rest = start.partition("/")
    try:
        with os.scandir(folder) as found:
            entries = sorted((one.name, one.is_dir(follow_symlinks=False), one.is_dir()) for one in found)
    except OSError:  # as os.walk, which leaves out what cannot be read
        return
    for name, is_folder, leads_to_one in entries:
        if name < first or is_hidden(name):
            continue
        if is_folder:
            for path in walk_images(os.path.join(folder, name), rest if name == first else ""):
                yield f"{name}/{path}"
        elif not leads_to_one and is_image(name):
            yield name


def list_images(folder: Path) -> list[Path]:
    """Return every image below a folder, by suffix, in a stable order, without hidden and system folders.

    Links to folders are not followed, because they may form a cycle or leave the tree that a user may read. A warning
    reports their number, and another one the number of other files by suffix, without tables and texts.

    Raises:
        NoImages: the folder does not exist, is a file, or contains no image.
    """
    folder = Path(folder)
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise NoImages(f"{folder} {problem}; expected a folder of images.")
    found, links, others = [], [], Counter[str]()
    for parent, folders, files in walk(folder, others):
        links += [path for name in folders if os.path.islink(path := os.path.join(parent, name))]
        for path in (os.path.join(parent, name) for name in files):
            suffix = os.path.splitext(path)[1].lower()
            if suffix in image_suffixes():
                found.append(path)
            elif suffix not in COMPANIONS and not os.path.islink(path):
                others[suffix] += 1
    found.sort(key=lambda path: path.split(os.sep))  # the order of `walk_images`
    place = folder.resolve()  # the same path for every spelling of the folder
    if links:
        warn_once(
            f"{place} contains {len(links)} links to folders, such as {place / Path(links[0]).relative_to(folder)}, "
            "which are not followed; pass those folders instead"
        )
    if not found and not any(folder.iterdir()):
        raise NoImages(f"{folder} is empty; expected a folder of images.")
    if not found:
        counted = f" ({_counted(others)})" if others else ""
        raise NoImages(
            f"{folder} and its subfolders contain no image{counted}; supported suffixes are "
            f"{' '.join(sorted(image_suffixes()))}."
        )
    if archives := others.pop(".tar", 0) + others.pop(".zip", 0):
        warn_once(f"{place} contains images, so its {archives} archives (tar, zip) are not read; pass them by name")
    warn_of_others(str(place), others)
    return list(map(Path, found))


def has_images(folder: Path | str) -> bool:
    """Return whether there is an image below a folder; the walk ends at the first one."""
    return any(True for _ in walk_images(folder))


def left_out(folder: Path, without: Sequence[Path] = ()) -> dict[str, int]:
    """Count the files of a folder that are not read as images, by suffix in lower case, the most frequent first.

    Args:
        without: files that are not counted, such as the table of labels.
    """
    excluded = {Path(one).resolve() for one in without}
    counts: Counter[str] = Counter()
    for parent, _, files in walk(folder, counts):
        others = [Path(parent, name) for name in files if not is_image(name)]
        counts.update(path.suffix.lower() or "(none)" for path in others if path.resolve() not in excluded)
    return dict(counts.most_common())


def warn_of_others(place: str, others: Counter[str]) -> None:
    """Log the number of other files of a folder or archive by suffix, without tables and texts, once."""
    others = Counter({suffix: count for suffix, count in others.items() if suffix not in COMPANIONS})
    if others:
        warn_once(f"{place} also contains files that are not read as images: {_counted(others)}")


def _counted(others: Counter[str]) -> str:
    def words(kind: str) -> str:
        return f"in {kind}" if is_system_folder(kind) else kind or "without suffix"

    return ", ".join(f"{n} {words(kind)}" for kind, n in others.most_common(SHOWN))


# ---- splits and labels -----------------------------------------------------------------------------------------------


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

    def folders_of_images() -> Iterator[str]:
        for parent, _, files in walk(folder):
            path = PurePath(parent).relative_to(folder).as_posix().removeprefix(".")
            if any(map(is_image, files)):
                yield path
            if path and any(name == TABLE or name.lower().endswith(ARCHIVES) for name in files):
                yield f"{path}/*"

    if not folder.is_dir():
        return {}
    _, names, _ = next(walk(folder), ("", [], []))
    if len(names) != 1 and not set(names) & set(SPLITS):  # saves a walk
        return {}
    return {name: folder / path for name, path in find_splits(folders_of_images()).items()}


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


def folder_labels(paths: Sequence[str]) -> list[str]:
    """Return the label of each image of a data set by its path with slashes; see `labels_of`."""
    parents = [path.rpartition("/")[0] for path in paths]
    labels = labels_of(parents)
    return [labels[parent] for parent in parents]
