"""A folder of images: which files are in it, and what their folders call them."""

from __future__ import annotations

import logging
import os
from functools import cache
from pathlib import Path

from nnclr_hub.errors import NoImages

log = logging.getLogger(__name__)
IMAGE_SUFFIXES = frozenset(
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
SPLITS = ("train", "val", "test", "unlabelled")


def list_images(folder: Path) -> list[Path]:
    """Every image below `folder`, by suffix, in a stable order; hidden files and folders are left out.

    Links to folders are not followed, for they may lead in circles or out of what somebody may read: the log says how
    many there are.

    Raises:
        NoImages: the folder is not there, is a file, or holds no image.
    """
    folder = Path(folder)
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise NoImages(f"{folder} {problem}: give a folder of images.")
    found = []
    links = []
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links += [path for name in folders if os.path.islink(path := os.path.join(parent, name))]
        found += [
            Path(parent, name)
            for name in sorted(files)
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES
        ]
    if links:
        whole = folder.resolve()  # however it was named
        _tell_of_links(str(whole), len(links), str(whole / Path(links[0]).relative_to(folder)))
    if not found:
        raise NoImages(
            f"{folder} holds no image (looked in all its folders for {' '.join(sorted(IMAGE_SUFFIXES))}): "
            "give a folder of images."
        )
    return found


@cache
def _tell_of_links(folder: str, count: int, first: str) -> None:
    """Once: most programs list a folder more often."""
    log.warning(
        "%s holds links to folders, which are not followed (%d, such as %s): name the folders themselves instead",
        folder,
        count,
        first,
    )


def label_of(path: Path, root: Path) -> str | None:
    """An image's label: its immediate parent folder below the root or split; None for one that lies in neither."""
    parents = Path(path).relative_to(root).parts[:-1]
    if parents and parents[0] in SPLITS:
        parents = parents[1:]
    return parents[-1] if parents else None
