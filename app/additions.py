"""Additions: pictures that a person gives, handed to jobs of the server."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.workbench.staging import stage, staged, unstage
from nnclr_hub.workbench.zips import SUFFIX, PictureZip

from .actions import Action
from .page import Page
from .widgets.intake import chosen_files

MOST_SHOWN = 100  # jobs that a browser remembers
JOBS = "adding"  # their place in what it keeps


class Additions:
    """See the module.

    Args:
        page: whose jobs they are.
    """

    def __init__(self, page: Page) -> None:
        self._page = page

    def add(self, collection: Any, files: Any, kept: dict[str, Any]) -> dict[str, Any]:
        """What was uploaded becomes a job; gives what the browser is to keep.

        Raises:
            InvalidRequest: a zip that is none, or holds what it must not; files that are no uploads.
            FingerprintMismatch, CollectionNotFound, Overloaded.
        """
        name = self._fitting(collection)
        given = chosen_files(files)
        ticket = stage(given)
        try:
            for file in staged(ticket):
                if file.name.lower().endswith(SUFFIX):  # refused now rather than when nobody looks
                    PictureZip(file.path, file.name, self._page.terms.max_bytes).close()
            params = {"collection": name, "upload": ticket, "max_bytes": self._page.terms.max_bytes}
            job = self._submit("add", params)
        except BaseException:
            unstage(ticket)
            raise
        sent = tuple(("files", PurePosixPath(one).name) for one, _ in given[:3])
        self._page.did(Action("POST", f"/api/v1/collections/{quote(name, safe='')}/items", files=sent))
        return with_job(kept, job)

    def add_folder(self, collection: Any, source: Any, folder: Any, kept: dict[str, Any]) -> dict[str, Any]:
        """A folder of this machine becomes a job.

        Args:
            source: the name of one of the server's folders, as `sources` gives it.
            folder: below that; "" for all of it.

        Raises:
            InvalidRequest: there is no such folder below.
        """
        name = self._fitting(collection)
        names = self.sources()
        if source not in names:
            raise InvalidRequest("There is no such folder of pictures: choose one of those that are offered.")
        root = self._page.terms.source_folders[names.index(source)].resolve()
        path = self._below(root, folder)
        relative = path.relative_to(root).as_posix()
        job = self._submit("index", {"collection": name, "root": names.index(source), "folder": relative})
        call = f"client.collection({name!r}).index_folder({path.name!r})"
        self._page.did(Action("POST", f"/api/v1/collections/{quote(name, safe='')}/items", call=call))
        return with_job(kept, job)

    def sources(self) -> list[str]:
        """The server's folders of pictures by their names, where its own machine alone can ask."""
        folders = self._page.terms.source_folders if self._page.terms.local else ()
        names = [folder.resolve().name or "/" for folder in folders]
        return [name if names.count(name) == 1 else f"{i + 1}: {name}" for i, name in enumerate(names)]

    # ---- inside

    def _submit(self, kind: str, params: dict[str, Any]) -> str:
        assert self._page.jobs is not None  # or the events are not built
        return self._page.jobs.submit(kind, params).id

    def _fitting(self, name: Any) -> str:
        """The collection, if its encoder is to be had."""
        if not isinstance(name, str) or not name:
            raise InvalidRequest("There is no collection to add to: make or choose one before.")
        collection = self._page.bench.collection(name)
        embedder = self._page.bench.embedder_of(collection)
        if collection.spec.dim != embedder.embed_dim:
            raise InvalidRequest(
                f"Collection {name!r} holds vectors of {collection.spec.dim} numbers that were made elsewhere, and the "
                f"encoder here gives {embedder.embed_dim}: make a collection of its own for these pictures."
            )
        return name

    @staticmethod
    def _below(root: Path, folder: Any) -> Path:
        text = folder.strip() if isinstance(folder, str) else ""
        try:
            path = (root / text).resolve()
            if path.is_relative_to(root) and path.is_dir():
                return path
        except (OSError, ValueError):  # no name that a file could have
            pass
        raise InvalidRequest(
            f"There is no folder {text!r:.100} below {root.name!r}: name one, or nothing for all of it."
        )


def jobs_of(kept: Any) -> list[str]:
    """The jobs that a browser remembers."""
    ids = kept.get(JOBS) if isinstance(kept, dict) else None
    return [id for id in ids if isinstance(id, str)][-MOST_SHOWN:] if isinstance(ids, list) else []


def with_job(kept: Any, id: str) -> dict[str, Any]:
    """One more to remember."""
    return {**(kept if isinstance(kept, dict) else {}), JOBS: [*jobs_of(kept), id][-MOST_SHOWN:]}


def without_jobs(kept: Any, ids: Any) -> dict[str, Any]:
    """Some to forget."""
    gone = ids if isinstance(ids, list) else []
    return {**(kept if isinstance(kept, dict) else {}), JOBS: [id for id in jobs_of(kept) if id not in gone]}
