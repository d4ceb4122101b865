"""What of a folder of images a collection lacks, told from what it keeps of those it holds.

An indexed image's id is a hash of its path below the folder, and its metadata says where it came from
(`root`, `path`) and how its file was (`size`, `mtime`): what differs from the file of today is taken up again.
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
    """What indexing a folder did; `broken` holds (path, reason).

    kept: items that pruning did not remove, as their files may be there unseen: the log says in which folder, and why.
    """

    added: int
    updated: int
    unchanged: int
    removed: int
    kept: int
    broken: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class FolderImage:
    """A file to take up, under its id and with what is kept of it."""

    id: str
    path: Path
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class FolderChanges:
    """What is to do.

    wanted: files that are new or changed.
    broken: (path, reason) of files that cannot be opened.
    unchanged: how many are held as they are.
    gone: ids of this folder's items whose file is no more, as far as that can be told.
    kept: how many more are not to be pruned, as that cannot be told.
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
        """How many are new, changed and gone."""
        changed = sum(one.id in self.known for one in self.wanted)
        return {"new": len(self.wanted) - changed, "changed": changed, "gone": len(self.gone)}

    def report(self, failed: Sequence[tuple[FolderImage, str]], removed: int) -> IndexReport:
        """What was done, when all that is wanted has been tried.

        Args:
            failed: those that could not be read, with the reason.
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
    """The id of an indexed file: 32 hex digits of the SHA-256 of its path relative to the indexed folder."""
    relative = Path(path).relative_to(root).as_posix()
    return hashlib.sha256(relative.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def images_by_id(root: Path, *, prune: bool = False) -> dict[str, Path]:
    """Every image below the folder, as `listed` finds them."""
    return {item_id(path, root): path for path in listed(root, prune=prune)}


def listed(root: Path, *, prune: bool = False) -> list[Path]:
    """Every image below the folder.

    Args:
        prune: what is gone is to be deleted, so that the folder may have lost its last image. But where nothing at
            all is left a disk may not be mounted, which is no reason to delete anything.

    Raises:
        NoImages: there is none.
    """
    try:
        return list_images(root)
    except NoImages:
        if not prune or not root.is_dir():
            raise
    if not any(root.iterdir()):
        raise NoImages(
            f"{root} is empty, as is the place of a disk that is not mounted, so nothing is deleted: mount it. If its "
            "images are gone for good, put any other file into it and prune again."
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
    """Compares a folder's files with the metadata of the items that a collection holds.

    Args:
        root: the folder.
        found: its images, from `images_by_id`.
        known: metadata of indexed items by id.
        origin: what is kept as `root`, the folder's name in the collection.
        prune: what is gone is going to be deleted; the log says what is not, for it may be there unseen.

    Raises:
        NoImages: the folder holds no image, and the collection none of it.
    """
    gone, kept = _gone(root, found, known, origin, prune=prune)
    if not (found or gone or kept):
        raise NoImages(f"{root} holds no image, and the collection none of it: give a folder of images.")
    wanted, broken = [], []
    for id, path in found.items():
        try:
            stat = path.stat()
        except OSError as error:  # a dangling link, or gone since the folder was listed
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
    """Items of the folder that are not in it; and how many more, whose files may be there and not be seen."""
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
            "%s %s, so its items are kept (%d): if they are gone for good, remove it and prune again",
            place,
            hidden(place),
            count,
        )
    return tuple(gone), sum(kept.values())


def _why_hidden(folder: Path) -> str | None:
    """Why there may be more in a folder than can be seen; None if there is not."""
    link = "is a link, and those to folders are not followed"
    try:
        with os.scandir(folder) as entries:
            if folder.is_symlink():
                return link
            return "is empty, as is the place of a disk that is not mounted" if next(entries, None) is None else None
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return link if folder.is_symlink() else None
    except OSError as error:
        return f"cannot be listed ({error.strerror})"
