"""Additions: images that a user adds, passed to jobs of the server.

Each job stores the name of the browser that started it. Only that browser knows the name, so it sees its own jobs and
no others, in whatever order the answers arrive.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.workbench.image_zip import SUFFIX, ImageZip
from nnclr_hub.workbench.source_folders import SourceFolders
from nnclr_hub.workbench.staging import Staged, root_of, stage, staged, unstage

from .api_calls import AddedFile, add_call, add_folder_call
from .page import GIVEN_BY, Page
from .widgets.uploader import uploaded_files

MAX_JOBS = 1000  # jobs of the server to search for those of a browser
_NAME = re.compile(r"[0-9a-f]{32}")


class Additions:
    """Start jobs that add images.

    Args:
        page: provides the workbench, the settings and the jobs.
    """

    def __init__(self, page: Page) -> None:
        self._page = page

    def jobs(self, browser: str | None) -> list[str]:
        """Return the ids of a browser's jobs, oldest first."""
        if browser is None or self._page.jobs is None:
            return []
        jobs, _ = self._page.jobs.list(MAX_JOBS)
        return [job.id for job in jobs if job.params.get(GIVEN_BY) == browser][::-1]

    def add(self, collection: Any, files: Any, browser: str | None) -> None:
        """Start a job that adds uploaded files.

        Raises:
            InvalidRequest: a zip is not valid or has forbidden content, or a file is not an upload.
            FingerprintMismatch, CollectionNotFound, Overloaded.
        """
        name = self._check_collection(collection)
        settings = self._page.settings
        ticket = stage(uploaded_files(files))
        try:
            added = [self._inspect(file) for file in staged(ticket)]
            self._submit("add", {"collection": name, "upload": ticket, "max_bytes": settings.max_bytes}, browser)
        except BaseException:
            unstage(ticket)
            raise
        self._page.note(add_call(name, added, settings.max_images, settings.max_bytes))

    def add_folder(self, collection: Any, source: Any, folder: Any, browser: str | None) -> None:
        """Start a job that adds a folder of this machine.

        Args:
            source: the name of a source folder, as `sources` returns it.
            folder: a path relative to it; "" for the whole folder.

        Raises:
            InvalidRequest: the folder does not exist.
        """
        name, source = self._check_collection(collection), str(source) if source else None
        place = SourceFolders(self._sources()).find(source, str(folder or "").strip())
        self._submit("index", {"collection": name, "root": str(place.root), "folder": place.relative}, browser)
        self._page.note(add_folder_call(name, source, place.relative))

    def sources(self) -> list[str]:
        """Return the names of the source folders; none unless the server listens only on this machine."""
        return SourceFolders(self._sources()).names

    def _inspect(self, file: Staged) -> AddedFile:
        """Describe a staged file; reject an invalid zip now, while the user is still present."""
        size = file.path.stat().st_size
        if not file.name.lower().endswith(SUFFIX):
            return AddedFile(file.name, size)
        with ImageZip(file.path, file.name, self._page.settings.max_bytes) as zip:
            return AddedFile(file.name, size, root_of(zip.names).as_posix())

    def _submit(self, kind: str, params: dict[str, Any], browser: str | None) -> None:
        assert self._page.jobs is not None  # else the events are not built
        self._page.jobs.submit(kind, {**params, GIVEN_BY: browser})

    def _check_collection(self, name: Any) -> str:
        if not isinstance(name, str) or not name:
            raise InvalidRequest("No collection is selected. Create or select one first.")
        self._page.bench.fillable(name)
        return name

    def _sources(self) -> Sequence[Path]:
        return self._page.settings.source_folders if self._page.settings.local else ()


def new_browser_name() -> str:
    """Return a name for a browser that has none yet."""
    return secrets.token_hex(16)


def read_browser_name(stored: Any) -> str | None:
    """Return the name that a browser stored, or None if it is not valid."""
    return stored if isinstance(stored, str) and _NAME.fullmatch(stored) else None
