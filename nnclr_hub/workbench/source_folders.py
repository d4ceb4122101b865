"""SourceFolders: the folders of this machine that a server may read, as its operator configured.

folders = SourceFolders(settings.source_folders)
place = folders.find("photos", "2024/summer")       # .root, .relative, .path
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nnclr_hub.errors import InvalidRequest


@dataclass(frozen=True)
class Place:
    """A folder below a source folder, which is resolved; `relative` is the path from there, "." for the root itself."""

    root: Path
    relative: str

    @property
    def path(self) -> Path:
        return self.root / self.relative


class SourceFolders:
    """The folders that a server may read, by name. They need not exist."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._roots: dict[str, Path] = {}
        for folder in folders:
            root = _resolved(folder) or folder.absolute()
            name, number = root.name or "/", 2
            while name in self._roots:
                name, number = f"{root.name or '/'} ({number})", number + 1
            self._roots[name] = root

    @property
    def names(self) -> list[str]:
        """Their names, which are not paths; with a number if two would have the same name."""
        return list(self._roots)

    @property
    def missing(self) -> list[Path]:
        """The folders that do not exist now."""
        return [root for root in self._roots.values() if not is_folder(root)]

    def find(self, source: str | None, folder: str = "") -> Place:
        """Return an existing folder.

        Args:
            source: one of `names`; None: the only one.
            folder: below it; "" for all of it.
        """
        if not self._roots:
            raise InvalidRequest(
                'This server reads no folders; set NNCLR_SOURCE_FOLDERS to a JSON list like ["/photos"].'
            )
        known = ", ".join(map(repr, self._roots))
        if source is None and len(self._roots) > 1:
            raise InvalidRequest(f"This server reads several folders; set `source` to one of {known}.")
        name = next(iter(self._roots)) if source is None else source
        if name not in self._roots:
            raise InvalidRequest(f"This server reads no folder named {name!r:.100}; use one of {known}.")
        if not is_folder(self._roots[name]):
            raise InvalidRequest(f"The server's folder {name!r} does not exist; ask its operator to restore it.")
        place = _below(self._roots[name], folder)
        if place is None or not is_folder(place.path):
            raise InvalidRequest(
                f"There is no folder {folder!r:.100} in {name!r}; name one inside it, or nothing for all of it."
            )
        return place

    def again(self, root: str, folder: str) -> Place:
        """Return a folder that `find` returned earlier, unless a restart with other folders forbids to read it."""
        if root not in map(str, self._roots.values()):
            raise InvalidRequest(
                f"This server no longer reads the folder {(Path(root).name or '/')!r}; add it to NNCLR_SOURCE_FOLDERS."
            )
        place = _below(Path(root), folder)
        if place is None:
            raise InvalidRequest(f"The folder {folder!r:.150} is outside of the server's folder; name one inside it.")
        return place


def _below(root: Path, folder: str) -> Place | None:
    path = _resolved(root / folder)
    return Place(root, path.relative_to(root).as_posix()) if path and path.is_relative_to(root) else None


def is_folder(path: Path) -> bool:
    """Return whether it is a folder; False for paths that the system does not accept."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _resolved(path: Path) -> Path | None:
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):
        return None
