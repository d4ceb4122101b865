"""Compare a folder of images with a collection: new, changed and removed files.

The id of an indexed image is a hash of its path relative to the folder. Its metadata records where it came from
(`root`, `path`) and the state of its file (`size`, `mtime`); a file whose state differs is embedded again.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from nnclr_hub.encoder.image_folder import label_of, list_images
from nnclr_hub.errors import NoImages

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexReport:
    """The result of indexing a folder; `broken` holds (path, reason).

    kept: items that pruning kept, because their files may exist in a folder that cannot be read; the log names it.
    """

    added: int
    updated: int
    unchanged: int
    removed: int
    kept: int
    broken: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class FolderImage:
    """A file to embed, with its id and the metadata to store."""

    id: str
    path: Path
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class FolderChanges:
    """The difference between a folder and a collection.

    wanted: files that are new or changed.
    broken: (path, reason) of files that cannot be opened.
    unchanged: number of files that the collection holds in their present state.
    gone: ids of this folder's items whose file was removed.
    kept: number of items whose file is missing but may exist in a folder that cannot be read.
    known: ids that the collection holds already.
    """

    wanted: tuple[FolderImage, ...]
    broken: tuple[tuple[str, str], ...]
    unchanged: int
    gone: tuple[str, ...]
    kept: int
    known: frozenset[str]

    @property
    def counts(self) -> dict[str, int]:
        """The number of new, changed and removed files."""
        changed = sum(one.id in self.known for one in self.wanted)
        return {"new": len(self.wanted) - changed, "changed": changed, "gone": len(self.gone)}

    def report(self, failed: Sequence[tuple[FolderImage, str]], removed: int) -> IndexReport:
        """Return the report, once all wanted files have been tried.

        Args:
            failed: files that could not be read, with the reason.
            removed: how many items were deleted.
        """
        updated = self.counts["changed"] - sum(one.id in self.known for one, _ in failed)
        return IndexReport(
            added=len(self.wanted) - len(failed) - updated,
            updated=updated,
            unchanged=self.unchanged,
            removed=removed,
            kept=self.kept,
            broken=(*self.broken, *((str(one.path), reason) for one, reason in failed)),
        )


def item_id(path: Path, root: Path) -> str:
    """Return the id of an indexed file: 32 hex digits of the SHA-256 of its path relative to the indexed folder."""
    relative = Path(path).relative_to(root).as_posix()
    return hashlib.sha256(relative.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def images_by_id(root: Path, *, prune: bool = False) -> dict[str, Path]:
    """Return the paths of `listed` by item id."""
    return {item_id(path, root): path for path in listed(root, prune=prune)}


def listed(root: Path, *, prune: bool = False) -> list[Path]:
    """Return the paths of all images below the folder.

    Args:
        prune: accept a folder without images, since its last image may have been removed. A folder that is completely
            empty is refused all the same: its disk may not be mounted, and then nothing must be deleted.

    Raises:
        NoImages: if there are none.
    """
    try:
        return list_images(root)
    except NoImages:
        if not prune or not root.is_dir():
            raise
    if not any(root.iterdir()):
        raise NoImages(
            f"{root} is empty, which may mean that its disk is not mounted, so nothing was deleted. Mount the disk; if "
            "the images were removed on purpose, put any other file into the folder and prune again."
        )
    return []


def find_changes(
    root: Path,
    found: Mapping[str, Path],
    known: Mapping[str, Mapping[str, Any]],
    *,
    origin: str,
    prune: bool = False,
) -> FolderChanges:
    """Compare a folder's files with the metadata of the items that a collection holds.

    Args:
        found: its images, from `images_by_id`.
        known: metadata of indexed items by id.
        origin: stored as `root`, the folder's name in the collection.
        prune: removed files will be deleted from the collection; log the folders whose items are kept.

    Raises:
        NoImages: if the folder holds no image, and the collection none of its items.
    """
    gone, kept = _gone(root, found, known, origin, prune=prune)
    if not (found or gone or kept):
        raise NoImages(f"{root} holds no images, and the collection holds none of its images; give a folder of images.")
    wanted, broken = [], []
    for id, path in found.items():
        try:
            stat = path.stat()
        except OSError as error:  # a dangling link, or removed since the folder was listed
            broken.append((str(path), f"The file cannot be opened ({error.strerror})."))
            continue
        state = {"root": origin, "size": stat.st_size, "mtime": stat.st_mtime}
        if id in known and all(known[id].get(name) == value for name, value in state.items()):
            continue
        label = label_of(path, root)
        metadata = {"path": path.relative_to(root).as_posix(), **state} | ({"label": label} if label else {})
        wanted.append(FolderImage(id, path, metadata))
    return FolderChanges(
        wanted=tuple(wanted),
        broken=tuple(broken),
        unchanged=len(found) - len(wanted) - len(broken),
        gone=gone,
        kept=kept if prune else 0,
        known=frozenset(known),
    )


def _gone(
    root: Path, found: Mapping[str, Path], known: Mapping[str, Mapping[str, Any]], origin: str, *, prune: bool
) -> tuple[tuple[str, ...], int]:
    """Return the items whose file was removed; and how many more have a file that may exist but cannot be seen."""
    hidden = cache(_why_hidden)
    gone: list[str] = []
    kept = Counter[Path]()
    for id, one in known.items():
        if one.get("root") == origin and id not in found:
            above = (root / up for up in PurePosixPath(str(one.get("path", ""))).parents[:-1])
            place = next(filter(hidden, above), None)
            if place is None:
                gone.append(id)
            else:
                kept[place] += 1
    for place, count in kept.items() if prune else ():
        log.warning(
            "%s %s, so its %d items are kept; if they were removed on purpose, remove the folder and prune again",
            place,
            hidden(place),
            count,
        )
    return tuple(gone), sum(kept.values())


def _why_hidden(folder: Path) -> str | None:
    """Return why a folder may hold files that cannot be seen, or None."""
    link = "is a link to a folder, and such links are not followed"
    try:
        with os.scandir(folder) as entries:
            if folder.is_symlink():
                return link
            return "is empty, which may mean that its disk is not mounted" if next(entries, None) is None else None
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return link if folder.is_symlink() else None
    except OSError as error:
        return f"cannot be listed ({error.strerror})"
