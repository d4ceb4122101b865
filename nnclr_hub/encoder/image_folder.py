"""A folder of pictures: which files are in it, and what their folders call them."""

from __future__ import annotations

import os
from pathlib import Path

from nnclr_hub.errors import NoImages

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
    """Every picture below `folder`, by suffix, in a stable order; hidden files and folders are left out.

    Raises:
        NoImages: the folder is not there, is a file, or holds no picture.
    """
    folder = Path(folder)
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise NoImages(f"{folder} {problem}: give a folder of pictures.")
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            Path(parent, name)
            for name in sorted(files)
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES
        ]
    if not found:
        raise NoImages(
            f"{folder} holds no picture (looked in all its folders for {' '.join(sorted(IMAGE_SUFFIXES))}): "
            "give a folder of pictures."
        )
    return found


def label_of(path: Path, root: Path) -> str | None:
    """A picture's label: its immediate parent folder below the root or split; None for one that lies in neither."""
    parents = Path(path).relative_to(root).parts[:-1]
    if parents and parents[0] in SPLITS:
        parents = parents[1:]
    return parents[-1] if parents else None
