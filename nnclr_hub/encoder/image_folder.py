"""A folder of images: its files, and their labels by folder."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from nnclr_hub.errors import NoImages

log = logging.getLogger(__name__)
_OF_PILLOW = frozenset(
    [
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".png",
        ".webp",
        ".gif",
        ".bmp",
        ".dib",
        ".tif",
        ".tiff",
        ".avif",
        ".heic",
        ".heif",
        ".hif",
        ".ppm",
        ".pgm",
        ".pbm",
        ".pnm",
        ".ico",
        ".qoi",
        ".jp2",
        ".j2k",
    ]
)
# files that often lie next to images and are not expected to be any
COMPANIONS = frozenset(
    [".csv", ".tsv", ".json", ".jsonl", ".txt", ".md", ".xml", ".yaml", ".yml", ".html", ".log", ".db"]
)
SHOWN = 8  # suffixes in a warning
SPLITS = ("train", "val", "test", "unlabeled", "unlabelled")


@cache
def image_suffixes() -> frozenset[str]:
    """Return the suffixes of image files, in lower case: those of Pillow and of all readers."""
    from nnclr_hub.encoder.readers import readers  # imports Pillow, which the client does without

    return _OF_PILLOW.union(*(reader.suffixes for reader in readers()))


def list_images(folder: Path) -> list[Path]:
    """Return every image below a folder, by suffix, in a stable order, without hidden files and folders.

    Links to folders are not followed, because they may form a cycle or leave the tree that a user may read. A warning
    reports their number, and another one the number of other files by suffix, without tables and texts.

    Raises:
        NoImages: the folder does not exist, is a file, or contains no image.
    """
    folder = Path(folder)
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise NoImages(f"{folder} {problem}; expected a folder of images.")
    suffixes = image_suffixes()
    found = []
    links = []
    others: Counter[str] = Counter()
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links += [path for name in folders if os.path.islink(path := os.path.join(parent, name))]
        for path in (Path(parent, name) for name in sorted(files) if not name.startswith(".")):
            suffix = path.suffix.lower()
            if suffix in suffixes:
                found.append(path)
            elif suffix not in COMPANIONS and not path.is_symlink():
                others[suffix] += 1
    if links:
        whole = folder.resolve()  # the same path for every spelling of the folder
        _warn_of_links(str(whole), len(links), str(whole / Path(links[0]).relative_to(folder)))
    if not found and not any(folder.iterdir()):
        raise NoImages(f"{folder} is empty; expected a folder of images.")
    if not found:
        counted = f" ({_counted(others)})" if others else ""
        raise NoImages(
            f"{folder} and its subfolders contain no image{counted}; supported suffixes are "
            f"{' '.join(sorted(suffixes))}."
        )
    place = str(folder.resolve())
    if archives := others.pop(".tar", 0) + others.pop(".zip", 0):
        _warn_of_archives(place, archives)
    warn_of_others(place, others)
    return found


def left_out(folder: Path, without: Sequence[Path] = ()) -> dict[str, int]:
    """Count the files of a folder that are not read as images, by suffix in lower case, the most frequent first.

    Args:
        without: files that are not counted, such as the table of labels.
    """
    excluded = {Path(one).resolve() for one in without}
    counts: Counter[str] = Counter()
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(parent, name)
            if name.startswith(".") or path.suffix.lower() in image_suffixes() or path.resolve() in excluded:
                continue
            counts[path.suffix.lower() or "(none)"] += 1
    return dict(counts.most_common())


def warn_of_others(place: str, others: Counter[str]) -> None:
    """Log the number of other files of a folder or archive by suffix, without tables and texts, once."""
    others = Counter({suffix: count for suffix, count in others.items() if suffix not in COMPANIONS})
    if others:
        _warn_once(place, _counted(others))


def _counted(others: Counter[str]) -> str:
    return ", ".join(f"{n} {suffix or 'without suffix'}" for suffix, n in others.most_common(SHOWN))


@cache
def _warn_once(place: str, counted: str) -> None:
    log.warning("%s also contains files that are not read as images: %s", place, counted)


@cache
def _warn_of_links(folder: str, count: int, first: str) -> None:
    """Log a warning once per folder; programs list the same folder several times."""
    log.warning(
        "%s contains %d links to folders, such as %s, which are not followed; pass those folders instead",
        folder,
        count,
        first,
    )


@cache
def _warn_of_archives(folder: str, count: int) -> None:
    log.warning("%s contains images, so its %d archives (tar, zip) are not read; pass them by name", folder, count)


def label_of(path: Path, root: Path) -> str | None:
    """Return the label of an image: the name of its parent folder; None directly below the root or a split."""
    parents = Path(path).relative_to(root).parts[:-1]
    if parents and parents[0] in SPLITS:
        parents = parents[1:]
    return parents[-1] if parents else None
