"""SourceFolders: the folders of this machine that a server's operator lets it read.

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
        roots = [folder.resolve() for folder in folders]
        names = [root.name or "/" for root in roots]
        unlike = [name if names.count(name) == 1 else f"{i + 1}: {name}" for i, name in enumerate(names)]
        self._roots = dict(zip(unlike, roots, strict=True))

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
        place = self._below(root, folder.strip())
        if place is None or not place.path.is_dir():
            raise InvalidRequest(
                f"There is no folder {folder.strip()!r:.100} below {root.name!r}: name one, or nothing for all of it."
            )
        return place

    def again(self, root: str, folder: str) -> Place:
        """What `find` found before the server was started with other folders, perhaps.

        Args:
            root: its path.

        Raises:
            InvalidRequest: it is not to be read any more.
        """
        if Path(root) not in self._roots.values():
            raise InvalidRequest(
                "The folder is no longer one that this server reads: name it in NNCLR_SOURCE_FOLDERS again."
            )
        place = self._below(Path(root), folder)
        if place is None:
            raise InvalidRequest(f"The folder {folder!r:.150} lies elsewhere: name one below the server's.")
        return place

    def _root(self, source: str | None) -> Path:
        if source is None and len(self._roots) == 1:
            return next(iter(self._roots.values()))
        if source not in self._roots:
            choice = f"name one of {', '.join(map(repr, self._roots))}." if self._roots else "it reads none."
            raise InvalidRequest(f"There is no such folder of pictures on this server: {choice}")
        return self._roots[source]

    @staticmethod
    def _below(root: Path, folder: str) -> Place | None:
        try:
            path = (root / folder).resolve()
        except (OSError, ValueError):  # no name that a file could have
            return None
        return Place(root, path.relative_to(root).as_posix()) if path.is_relative_to(root) else None
