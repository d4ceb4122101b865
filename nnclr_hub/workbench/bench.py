"""Bench: what a user can do with encoders and a store, wherever they are.

bench = open_bench("./nnclr-store" | "milvus://..." | "http://host:8000")
bench.search_each("photos", [SearchQuery.of(image="query.jpg", k=5)])
bench.run("verify", CollectionRequest("photos"), progress=bar)

`Workbench` is a bench with a store that this process opened, and `Client` one of a server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nnclr_hub.errors import ImageError, NNCLRHubError, ServerUnreachable
from nnclr_hub.store.base import Collection, Progress, VectorStore
from nnclr_hub.workbench.folder_changes import IndexReport
from nnclr_hub.workbench.requests import AddRequest, FolderRequest, NewCollection, NewImage
from nnclr_hub.workbench.search_query import Answer, SearchQuery
from nnclr_hub.workbench.tasks import Request

if TYPE_CHECKING:
    from nnclr_hub.encoder.embedder import ImageLike

log = logging.getLogger(__name__)
Report = Callable[[str], Progress]  # the title of a step -> its progress


@dataclass(frozen=True)
class Inspected:
    """An inspection of a folder or a collection.

    findings: the content of findings.json.
    paths: of the items, by id.
    page: the report: a file, or an address of the web app.
    files: findings.json and the tables.
    """

    findings: Mapping[str, Any]
    paths: Mapping[str, str]
    page: str
    files: Sequence[Path]


class Bench(Protocol):
    """Encoders and a store."""

    @property
    def store(self) -> VectorStore:
        """The collections."""
        ...

    @property
    def default_model(self) -> str:
        """The encoder that is used if none is named."""
        ...

    def collection(self, name: str) -> Collection:
        """Return an existing collection; CollectionNotFound, perhaps at its first use, names the existing ones."""
        ...

    def create_collection(self, name: str, request: NewCollection = NewCollection()) -> Collection:
        """Create a collection. Raises CollectionExists, or an error of its model."""
        ...

    def rename(self, name: str, to: str) -> None:
        """Rename a collection; its aliases, inspections and labels of keys follow."""
        ...

    def drop(self, name: str) -> None:
        """Delete a collection with everything in it, and its aliases."""
        ...

    def search_each(self, name: str, queries: Sequence[SearchQuery]) -> list[Answer]:
        """Return the matches of each query, or the error that concerns it alone.

        Raises:
            CollectionNotFound: the collection does not exist.
            FingerprintMismatch: the encoder that the collection is bound to is unavailable.
        """
        ...

    def add_images(self, name: str, images: AddRequest | Sequence[NewImage]) -> list[ImageError | None]:
        """Add images to an existing collection; return one entry per image: None or its error."""
        ...

    def index_folder(
        self, name: str, folder: FolderRequest | str | Path, *, progress: Progress = lambda done, total: None
    ) -> IndexReport:
        """Make a collection hold a folder's images; create it if necessary, and drop it again if it stays empty.

        Call it again to continue, or to update changed files.

        Args:
            progress: called with (done, total), counted in images to embed.

        Raises:
            NoImages: the folder holds no image; with `prune`, it never held one or is empty.
            InvalidRequest: the collection holds images of another folder under the same relative paths.
        """
        ...

    def embed_each(self, images: Sequence[ImageLike], model: str | None = None) -> list[np.ndarray | ImageError]:
        """Return one entry per image: its (D,) float32 unit vector, or its ImageError.

        Args:
            model: None: the default.
        """
        ...

    def inspect(self, request: Any, folder: Path, report: Report = lambda title: lambda done, total: None) -> Inspected:
        """Inspect a collection; write the tables, and the report unless it is a page of a server, to the folder.

        Args:
            request: an InspectionRequest.
        """
        ...

    def abandon_reembed(self, name: str) -> None:
        """Delete the copies of a collection that failed re-embeddings left behind, if there are any."""
        ...

    def run(self, task: str, request: Request, progress: Progress = lambda done, total: None) -> Mapping[str, Any]:
        """Run a task of `workbench.tasks`, and return its result as JSON.

        Args:
            progress: called with (done, total), in units of the task.
        """
        ...


@contextmanager
def dropped_if_empty(store: VectorStore, created: str | None) -> Iterator[None]:
    """Drop a collection that was created here if it has no items at the end, such as that of a damaged archive.

    It stays if the user ends the command, who does not wait, or if the server is unreachable. The first error is the
    one to report.

    Args:
        created: its name; None: do nothing.
    """
    try:
        yield
    except (KeyboardInterrupt, ServerUnreachable):
        created = None
        raise
    finally:
        try:
            if created is not None and not store.get(created).count():
                store.drop(created)
        except NNCLRHubError as error:
            log.warning("the empty collection %s was not dropped (%s)", created, error)
