"""Additions: images that a person gives, handed to jobs of the server.

Each job notes which browser it is from, under a name that only that browser knows: so a browser sees its own jobs,
in whatever order their answers reach it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.workbench.source_folders import SourceFolders
from nnclr_hub.workbench.staged_images import root_of
from nnclr_hub.workbench.staging import Staged, stage, staged, unstage
from nnclr_hub.workbench.zips import SUFFIX, ImageZip

from .adding_actions import Given, add_action, add_folder_action
from .page import GIVEN_BY, Page
from .widgets.intake import chosen_files

LOOKED_AT = 1000  # of the server's jobs
_NAME = re.compile(r"[0-9a-f]{32}")


class Additions:
    """See the module.

    Args:
        page: whose jobs they are.
    """

    def __init__(self, page: Page) -> None:
        self._page = page

    def jobs(self, browser: str | None) -> list[str]:
        """Those of a browser, the oldest first."""
        if browser is None or self._page.jobs is None:
            return []
        jobs, _ = self._page.jobs.list(LOOKED_AT)
        return [job.id for job in jobs if job.params.get(GIVEN_BY) == browser][::-1]

    def add(self, collection: Any, files: Any, browser: str | None) -> None:
        """What was uploaded becomes a job.

        Raises:
            InvalidRequest: a zip that is none, or holds what it must not; files that are no uploads.
            FingerprintMismatch, CollectionNotFound, Overloaded.
        """
        name = self._fitting(collection)
        ticket = stage(chosen_files(files))
        try:
            given = [self._looked_through(file) for file in staged(ticket)]
            params = {"collection": name, "upload": ticket, "max_bytes": self._page.terms.max_bytes}
            self._submit("add", params, browser)
        except BaseException:
            unstage(ticket)
            raise
        self._page.did(add_action(name, given, self._page.terms.max_images, self._page.terms.max_bytes))

    def add_folder(self, collection: Any, source: Any, folder: Any, browser: str | None) -> None:
        """A folder of this machine becomes a job.

        Args:
            source: the name of one of the server's folders, as `sources` gives it.
            folder: below that; "" for all of it.

        Raises:
            InvalidRequest: there is no such folder below.
        """
        name, source = self._fitting(collection), str(source) if source else None
        place = SourceFolders(self._sources()).find(source, str(folder or "").strip())
        self._submit("index", {"collection": name, "root": str(place.root), "folder": place.relative}, browser)
        self._page.did(add_folder_action(name, source, place.relative))

    def sources(self) -> list[str]:
        """The server's folders of images by their names, where its own machine alone can ask."""
        return SourceFolders(self._sources()).names

    # ---- inside

    def _looked_through(self, file: Staged) -> Given:
        """A file that waits; a zip is refused now rather than when nobody looks."""
        size = file.path.stat().st_size
        if not file.name.lower().endswith(SUFFIX):
            return Given(file.name, size)
        with ImageZip(file.path, file.name, self._page.terms.max_bytes) as zip:
            return Given(file.name, size, root_of(zip.names).as_posix())

    def _submit(self, kind: str, params: dict[str, Any], browser: str | None) -> None:
        assert self._page.jobs is not None  # or the events are not built
        self._page.jobs.submit(kind, {**params, GIVEN_BY: browser})

    def _fitting(self, name: Any) -> str:
        if not isinstance(name, str) or not name:
            raise InvalidRequest("There is no collection to add to: make or choose one before.")
        self._page.bench.fillable(name)
        return name

    def _sources(self) -> Sequence[Path]:
        return self._page.terms.source_folders if self._page.terms.local else ()


def new_name() -> str:
    """A name for a browser that has none yet."""
    return secrets.token_hex(16)


def name_of(kept: Any) -> str | None:
    """The name that a browser remembers."""
    return kept if isinstance(kept, str) and _NAME.fullmatch(kept) else None
