"""Bench: what a user can do with encoders and a store, wherever they are.

bench = open_bench("./nnclr-store" | "milvus://..." | "http://host:8000")
bench.search_each("photos", [SearchQuery.of(image="query.jpg", k=5)])
bench.run("verify", CollectionRequest("photos"), progress=bar)

`Workbench` is a bench with a store that this process opened, and `Client` one of a server. Tasks run on the first, in
this process or in that of the server: it is a `LocalBench`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nnclr_hub.errors import ImageError, NNCLRHubError, ServerUnreachable
from nnclr_hub.store.base import ById, Collection, Item, Progress, VectorStore
from nnclr_hub.workbench.folder_changes import FolderChanges, IndexReport
from nnclr_hub.workbench.requests import AddRequest, FolderRequest, NewCollection, NewImage, Request
from nnclr_hub.workbench.search_query import Answer, SearchQuery

if TYPE_CHECKING:
    from nnclr_hub.encoder.embedder import Embedder, ImageLike
    from nnclr_hub.workbench.models import Models
    from nnclr_hub.workbench.originals import Originals

log = logging.getLogger(__name__)
Report = Callable[[str], Progress]  # the title of a step -> its progress


@dataclass(frozen=True)
class Inspected:
    """An inspection of a folder or a collection.

    findings: the content of findings.json.
    paths: paths of the items, by id.
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

    def inspect(
        self, request: Request, folder: Path, report: Report = lambda title: lambda done, total: None
    ) -> Inspected:
        """Inspect a collection; write the tables, and the report unless it is a page of a server, to the folder.

        Args:
            request: an InspectionRequest.
        """
        ...

    def run(self, task: str, request: Request, progress: Progress = lambda done, total: None) -> Mapping[str, Any]:
        """Run a task of `workbench.tasks`, and return its result as JSON.

        Args:
            progress: called with (done, total), in units of the task.
        """
        ...


class LocalBench(Bench, Protocol):
    """A bench with a store that this process opened, as tasks see it."""

    @property
    def models(self) -> Models:
        """The encoders."""
        ...

    @property
    def originals(self) -> Originals | None:
        """The original files of added images; None if the store keeps none."""
        ...

    @property
    def source_folders(self) -> Sequence[Path] | None:
        """The only folders whose files a task may read; None: any folder."""
        ...

    @property
    def backup_to(self) -> str | None:
        """Destination of backups whose request names none."""
        ...

    @property
    def reembedding(self) -> Lock:
        """Held during a re-embedding: one at a time."""
        ...

    def embedder_of(self, collection: Collection, model: str | None = None) -> Embedder:
        """Return the embedder whose vectors the collection holds, or raise FingerprintMismatch."""
        ...

    def upsert(self, name: str, items: Sequence[Item], *, fingerprint: str | None = None) -> int:
        """Add or replace items by vectors of the encoder with this fingerprint; return the number of the change."""
        ...

    def update_each(self, name: str, metadata: ById) -> int:
        """Change the metadata of items, each by its own patch; return how many were found."""
        ...

    def index_folder(
        self,
        name: str,
        folder: FolderRequest | str | Path,
        *,
        begin: Callable[[FolderChanges], None] = lambda changes: None,
        progress: Progress = lambda done, total: None,
    ) -> IndexReport:
        """Do what every bench does; call `begin` with the changes before the work starts."""
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
