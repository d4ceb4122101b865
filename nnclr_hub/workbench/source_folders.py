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
            name = _called(root)
            names = chain([name], (f"{name} ({i})" for i in count(2)))
            self._roots[next(one for one in names if one not in self._roots)] = root

    @property
    def names(self) -> list[str]:
        """What to call them, which is no path; with a number where two would have the same name."""
        return list(self._roots)

    @property
    def missing(self) -> list[Path]:
        """Those that are not there now."""
        return [root for root in self._roots.values() if not is_folder(root)]

    def find(self, source: str | None, folder: str = "") -> Place:
        """A folder that is there.

        Args:
            source: one of `names`; None: the only one.
            folder: below it; "" for all of it.

        Raises:
            InvalidRequest: there is no such folder below; names those that there are.
        """
        name = self._named(source)
        root = self._roots[name]
        if not is_folder(root):
            raise InvalidRequest(f"The server's folder {name!r} is not there: have its operator look after it.")
        place = self._below(root, folder)
        if place is None or not is_folder(place.path):
            raise InvalidRequest(
                f"There is no folder {folder!r:.100} below {name!r}: name one that does not lead out of it, or "
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
                f"The folder {_called(Path(str(root)))!r} is no longer one that this server reads: name it in "
                "NNCLR_SOURCE_FOLDERS again."
            )
        place = self._below(Path(root), folder)
        if place is None:
            raise InvalidRequest(f"The folder {folder!r:.150} lies elsewhere: name one below the server's.")
        return place

    def _named(self, source: str | None) -> str:
        if source is None and len(self._roots) == 1:
            return self.names[0]
        if source is not None and source in self._roots:
            return source
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


def _called(root: Path) -> str:
    return root.name or "/"


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
