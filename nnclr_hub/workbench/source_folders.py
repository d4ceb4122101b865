"""SourceFolders: the folders of this machine that a server's operator lets it read.

folders = SourceFolders(settings.source_folders)
place = folders.find("photos", "2024/summer")       # .root, .relative, .path
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from nnclr_hub.errors import InvalidRequest


@dataclass(frozen=True)
class Place:
    """A folder below a source folder.

    root: the source folder, resolved.
    relative: the way from there, with slashes; "." for the root itself.
    """

    root: Path
    relative: str

    @property
    def path(self) -> Path:
        return self.root / self.relative


class SourceFolders:
    """See the module.

    Args:
        folders: as they were named; they need not be there.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._roots: dict[str, Path] = {}
        for folder in folders:
            root = _resolved(folder) or folder.absolute()
            name = root.name or "/"
            names = chain([name], (f"{name} ({i})" for i in count(2)))
            self._roots[next(one for one in names if one not in self._roots)] = root

    @property
    def names(self) -> list[str]:
        """What to call them, which is no path; with a number where two would have the same name."""
        return list(self._roots)

    def find(self, source: str | None, folder: str = "") -> Place:
        """A folder that is there.

        Args:
            source: one of `names`; None: the only one.
            folder: below it; "" for all of it.

        Raises:
            InvalidRequest: there is no such folder below; names those that there are.
        """
        root = self._root(source)
        if not is_folder(root):
            raise InvalidRequest(f"The server's folder {root.name!r} is not there: have its operator look after it.")
        place = self._below(root, folder)
        if place is None or not is_folder(place.path):
            raise InvalidRequest(
                f"There is no folder {folder!r:.100} below {root.name!r}: name one that does not lead out of it, or "
                "nothing for all of it."
            )
        return place

    def again(self, root: str, folder: str) -> Place:
        """What `find` found once; the server may have been started with other folders since.

        Args:
            root: its path.

        Raises:
            InvalidRequest: it is not to be read any more.
        """
        if root not in map(str, self._roots.values()):
            raise InvalidRequest(
                f"The folder {Path(str(root)).name!r} is no longer one that this server reads: name it in "
                "NNCLR_SOURCE_FOLDERS again."
            )
        place = self._below(Path(root), folder)
        if place is None:
            raise InvalidRequest(f"The folder {folder!r:.150} lies elsewhere: name one below the server's.")
        return place

    def _root(self, source: str | None) -> Path:
        if source is None and len(self._roots) == 1:
            return next(iter(self._roots.values()))
        if source in self._roots:
            return self._roots[source]
        if not self._roots:
            raise InvalidRequest(
                'This server reads no folders: have NNCLR_SOURCE_FOLDERS name some, as JSON like ["/photos"].'
            )
        known = ", ".join(map(repr, self._roots))
        if source is None:
            raise InvalidRequest(f"This server reads several folders: say by `source` in which, one of {known}.")
        raise InvalidRequest(f"This server reads no folder that is called {source!r:.100}: name one of {known}.")

    @staticmethod
    def _below(root: Path, folder: str) -> Place | None:
        path = _resolved(root / folder)
        return Place(root, path.relative_to(root).as_posix()) if path and path.is_relative_to(root) else None


def is_folder(path: Path) -> bool:
    """Also of a path that no file could have."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _resolved(path: Path) -> Path | None:
    """Without links; None if they lead in a circle, or no file could have such a path."""
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError):
        return None
