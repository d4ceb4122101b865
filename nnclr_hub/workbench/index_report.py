"""The result of indexing a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class IndexReport:
    """The result of indexing a folder; `broken` holds (path, reason).

    kept: items that pruning kept, because their files may exist in a folder that cannot be read, or in another folder
        of the same source; the log names it.
    left_out: number of files that are not read as images, by suffix.
    empty: number of tiles without content that were left out.
    """

    added: int
    updated: int
    unchanged: int
    removed: int
    kept: int
    broken: tuple[tuple[str, str], ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    empty: int = 0


def why_hidden(folder: Path) -> str | None:
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
