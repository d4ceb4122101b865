"""Workbench: encoders and a store, and what the command line, REST and the apps do with both.

bench = Workbench(Encoders(), open_store("./nnclr-store"))
bench.index_folder("photos", FolderRequest("~/photos"))
bench.search("photos", SearchQuery.of(image="query.jpg", k=5))
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from nnclr_hub.arguments import Checked
from nnclr_hub.encoder.embedder import Embedder, ImageLike
from nnclr_hub.errors import (
    CollectionNotFound,
    FingerprintMismatch,
    ImageError,
    InvalidRequest,
    ModelFilesMissing,
    NNCLRHubError,
    UnknownModel,
)
from nnclr_hub.probe.metrics import Labeling
from nnclr_hub.store.base import ById, Collection, CollectionSpec, Item, Match, Progress, VectorStore, Where
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.checks import check_collection_name
from nnclr_hub.store.spec import next_step
from nnclr_hub.workbench.bench import Inspected, Report, dropped_if_empty
from nnclr_hub.workbench.folder_changes import FolderChanges, IndexReport, check_images
from nnclr_hub.workbench.ingestion import embed_images, store_images
from nnclr_hub.workbench.inspections import rename_inspections
from nnclr_hub.workbench.label_keys import LABEL_KEYS, rename_label_keys
from nnclr_hub.workbench.metadata import FILE_HASH, HASHES, patches_of
from nnclr_hub.workbench.models import Models, embedder_for
from nnclr_hub.workbench.originals import Originals
from nnclr_hub.workbench.requests import AddRequest, FolderRequest, NewCollection, NewImage, Request
from nnclr_hub.workbench.search_query import Answer, SearchQuery, attempt, resolve_each, run_each
from nnclr_hub.workbench.tasks import TaskContext, find_task

T = TypeVar("T")


class Workbench(Checked):
    """A bench with a store that this process opened.

    Args:
        store: holds the collections. If it is read-only, every method that writes raises OpenedForReading.
        originals_bytes: most bytes of original files that are kept next to the store; 0 keeps no new ones.
        source_folders: the only folders whose files a task may read; None: any folder.
        backup_to: destination of backups whose request names none.
    """

    def __init__(
        self,
        models: Models,
        store: VectorStore,
        *,
        originals_bytes: int = 0,
        source_folders: Sequence[Path] | None = None,
        backup_to: str | None = None,
    ) -> None:
        self.models, self.store = models, store
        self.originals = Originals.of(store, originals_bytes)
        self.source_folders, self.backup_to = source_folders, backup_to
        self.read_only = store.read_only
        self.reembedding = threading.Lock()  # one at a time

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- collections

    def collection(self, name: str) -> Collection:
        """Return an existing collection, or raise CollectionNotFound, which names the existing ones."""
        return self.store.get(name)

    def create_collection(self, name: str, request: NewCollection = NewCollection()) -> Collection:
        """Create a collection. Raises CollectionExists, or an error of its model."""
        self.store.refuse_taken(name)  # before a model is loaded
        return self.store.create(name, request.spec(self.models.get))

    def fillable(self, name: str) -> Collection:
        """Return an existing collection to which images can be added; see `embedder_of` for errors."""
        collection = self.collection(name)
        self.embedder_of(collection)
        return collection

    def rename(self, name: str, to: str) -> None:
        """Rename a collection; its aliases, inspections and labels of keys follow."""
        self.store.rename(name, to)
        if not self.store.records.read_only:
            with self.store.records.transaction():
                rename_inspections(self.store.records, name, to)
                rename_label_keys(self.store.records, name, to)

    def drop(self, name: str) -> None:
        """Delete a collection; raise CollectionNotFound, or InvalidRequest if the name is an alias."""
        self.store.drop(name)
        if not self.store.records.read_only:
            self.store.records.delete(LABEL_KEYS, name)
        if self.originals is not None:
            self.originals.sweep()

    # ---- encoders

    @property
    def default_model(self) -> str:
        """The encoder that is used if none is named."""
        return self.models.default

    def embedder(self, model: str | None = None, collection: str | None = None) -> Embedder:
        """Return the embedder of a source, or that of a collection; without either, the default.

        Raises CollectionNotFound, ModelError, or an error of `embedder_of`.
        """
        return self.models.get(model) if collection is None else self.embedder_of(self.collection(collection), model)

    def embedder_of(self, collection: Collection, model: str | None = None) -> Embedder:
        """Return the embedder whose vectors the collection holds.

        Raises:
            FingerprintMismatch: if the collection is bound to another model, or its own is unavailable.
            InvalidRequest: if its vectors were made elsewhere and have another length.
        """
        spec = collection.spec
        try:
            embedder = self.models.get(model) if model else embedder_for(self.models, spec)
        except (UnknownModel, ModelFilesMissing) as error:  # other errors may be temporary
            if model or not spec.fingerprint:
                raise
            raise FingerprintMismatch(
                f"Collection {collection.name!r} holds vectors of {spec.model or 'an encoder'} "
                f"({spec.fingerprint[:8]}), which is unavailable here. {error} To use another encoder, "
                f"{next_step(collection.name, 'NAME', reembeds=collection.keeps_changes)}."
            ) from error
        collection.check(embedder)
        if spec.dim != embedder.embed_dim:
            raise InvalidRequest(
                f"Collection {collection.name!r} holds vectors of length {spec.dim} that were made elsewhere, and the "
                f"encoder here makes vectors of length {embedder.embed_dim}. Search it by id or by vector, and use "
                "another collection for images."
            )
        return embedder

    def embedder_of_probe(self, probe: str) -> Embedder:
        """Return the embedder whose vectors a probe was fitted on.

        Raises:
            FingerprintMismatch: if its source now provides another encoder.
            ProbeNotFound: the probe does not exist.
            ModelError: the encoder cannot be loaded.
        """
        from nnclr_hub.workbench.probes import get_probe

        kept = get_probe(self.store.records, probe)
        spec = CollectionSpec(kept.about["dim"], fingerprint=kept.probe.fingerprint, model=kept.probe.model)
        embedder = embedder_for(self.models, spec)
        kept.probe.require(embedder.fingerprint)
        return embedder

    # ---- writing

    def index_folder(
        self,
        name: str,
        folder: FolderRequest | str | Path,
        *,
        begin: Callable[[FolderChanges], None] = lambda changes: None,
        progress: Progress = lambda done, total: None,
    ) -> IndexReport:
        """Make a collection hold a folder's images; see `Bench.index_folder`.

        Args:
            begin: called with the changes before the work starts.
        """
        from nnclr_hub.workbench.folder_index import index_folder

        request, created = FolderRequest.of(folder), False
        if request.source is not None or request.shrink is not None:
            raise InvalidRequest("A store of this machine reads the files itself; leave out source and shrink.")
        self.store.refuse_if_read_only()  # before long work
        check_collection_name(name)
        try:
            preferred = self.embedder_of(self.collection(name), request.model)
        except CollectionNotFound:
            check_images(request)
            preferred, created = self.models.get(request.model), True
            self.store.create(name, CollectionSpec.of(preferred))

        def write(work: Callable[[Collection, Embedder], T]) -> T:
            def run(collection: Collection) -> T:
                fits = collection.spec.fingerprint in ("", preferred.fingerprint)
                return work(collection, preferred if fits else self.embedder_of(collection))

            return self.store.write(name, run)

        with dropped_if_empty(self.store, name if created else None):
            report = index_folder(write, request, begin, progress)
        if self.originals is not None:
            self.originals.sweep()
        return report

    def add_images(
        self,
        name: str,
        images: AddRequest | Sequence[NewImage],
        *,
        embedded: tuple[Collection, Sequence[Item | ImageError]] | None = None,
    ) -> list[ImageError | None]:
        """Embed images into an existing collection; return one entry per image: None or its error.

        Args:
            embedded: what `embed_images` returns for a collection. It is used unless a re-embedding has replaced that.
        """
        self.store.refuse_if_read_only()
        request = AddRequest.of(images)

        def add(collection: Collection) -> list[ImageError | None]:
            items = embedded[1] if embedded is not None and embedded[0] is collection else None
            if items is None:
                items = embed_images(request.images, self.embedder_of(collection))
            return store_images(collection, items, request.images, self.originals)

        return self.store.write(name, add)

    def upsert(self, name: str, items: Sequence[Item], *, fingerprint: str | None = None) -> int:
        """Add or replace items by their vectors; return the number of the change when it is durable.

        Args:
            fingerprint: fingerprint of the encoder that made the vectors; None: that of the collection now.

        Raises:
            InvalidRequest: an item is invalid.
            FingerprintMismatch: the collection holds vectors of another encoder, or was re-embedded during the call.
        """
        if fingerprint is None:
            fingerprint = self.collection(name).spec.fingerprint

        def upsert(collection: Collection) -> int:
            if collection.spec.fingerprint not in ("", fingerprint):
                raise FingerprintMismatch(
                    f"Collection {name!r} holds vectors of {collection.spec.model or 'an unknown encoder'} "
                    f"({collection.spec.fingerprint[:8]}), and these are of another encoder ({fingerprint[:8]}); embed "
                    "the images with the encoder of the collection."
                )
            replaced = self.originals.of_items(collection, [item.id for item in items]) if self.originals else []
            change = collection.upsert(items)
            if self.originals:
                self.originals.remove_unused(replaced)
            return change

        return self.store.write(name, upsert)

    def delete(self, name: str, ids: Sequence[str] | None = None, *, where: Where | None = None) -> int:
        """Delete items by ids, or those that pass a filter; return how many existed."""
        originals = self.originals

        def delete(collection: Collection) -> int:
            with originals.changing if originals else nullcontext():
                unused = originals.of_items(collection, ids, where) if originals else []
                deleted = collection.delete(ids, where=where)
                if originals:
                    originals.remove_unused(unused)
            return deleted

        return self.store.write(name, delete)

    def copy_items(self, name: str, to: str, ids: Sequence[str], *, move: bool = False) -> int:
        """Copy or move items to another collection of the same encoder; return how many existed.

        An item that is edited while it is moved is copied again before it is deleted.

        Raises:
            FingerprintMismatch: the collections hold vectors of different encoders.
        """
        source = self.collection(name)
        waiting, fingerprint = source.get(ids), source.spec.fingerprint
        copied = len(waiting)
        while waiting and self.collection(to).name != source.name:
            self.upsert(to, waiting, fingerprint=fingerprint)
            if not move:
                break
            sent = waiting

            def delete(now: Collection, sent: Sequence[Item] = sent) -> tuple[list[Item], str]:
                return now.delete_unchanged(sent), now.spec.fingerprint  # perhaps of a collection that was promoted

            waiting, fingerprint = self.store.write(name, delete)
            if self.originals:
                hashes = [item.metadata.get(FILE_HASH) for item in sent]
                self.originals.remove_unused(hash for hash in hashes if isinstance(hash, str))
            check_cancelled()
        return copied

    def update_metadata(
        self,
        name: str,
        metadata: Mapping[str, Any],
        *,
        ids: Sequence[str] | None = None,
        where: Where | None = None,
        replace: bool = False,
    ) -> int:
        """Change the metadata of items, except the hash of their pixels; return how many were found."""
        change = {"ids": ids, "where": where, "replace": replace, "keep": HASHES}
        return self.store.write(name, lambda collection: collection.update_metadata(metadata, **change))

    def update_each(self, name: str, metadata: ById, *, expected: ById | None = None, by_path: bool = False) -> int:
        """Change the metadata of items, each by its own patch; otherwise as `update_metadata`.

        Args:
            expected: see `Collection.update_each`.
            by_path: patches have values by key or path, as filters read them; see `metadata.patch_of`.

        Raises:
            InvalidRequest: with `by_path`, a key holds an object.
            MetadataConflict: an item does not have the expected values; nothing was changed.
        """

        def update(collection: Collection) -> int:
            patches, wanted = patches_of(collection, metadata, expected) if by_path else (metadata, expected)
            return collection.update_each(patches, expected=wanted, keep=HASHES)

        return self.store.write(name, update)

    # ---- search

    def search(self, name: str, query: SearchQuery) -> list[Match]:
        """Return the matches of a query, best first.

        Raises:
            InvalidRequest: the query is invalid for this collection.
            ImageError: an example's image cannot be read.
            ItemNotFound: an example's id is not in the collection.
            CollectionNotFound, FingerprintMismatch: see `search_each`.
        """
        [answer] = self.search_each(name, [query])
        if isinstance(answer, NNCLRHubError):
            raise answer
        return answer

    def search_each(self, name: str, queries: Sequence[SearchQuery]) -> list[Answer]:
        """Return the matches of each query, or the error that concerns it alone. Embeds all images together."""
        collection = self.collection(name)
        boxes = any(example.box is not None for query in queries for example in query.examples)
        reading = self.embedder_of(collection).reading if boxes else None
        images = [attempt(partial(query.images, reading)) for query in queries]
        together = [image for own in images if not isinstance(own, NNCLRHubError) for image in own]
        vectors = self.embedder_of(collection).embed_each(together) if together else []
        return run_each(collection, resolve_each(queries, images, vectors))

    def embed_each(self, images: Sequence[ImageLike], model: str | None = None) -> list[np.ndarray | ImageError]:
        """Return one entry per image: its (D,) float32 unit vector, or its ImageError."""
        return self.models.get(model).embed_each(images)

    # ---- long work

    def inspect(self, request: Any, folder: Path, report: Report = lambda title: lambda done, total: None) -> Inspected:
        """Inspect a collection; write the report and the tables. The inspection is kept if it writes metadata."""
        from nnclr_hub.workbench.inspection.report import inspect_and_report

        return inspect_and_report(self, request, folder, report)

    def run(self, task: str, request: Request, progress: Progress = lambda done, total: None) -> Mapping[str, Any]:
        """Run a task of `workbench.tasks`, and return its result as JSON."""
        context = TaskContext(progress)
        result = find_task(task, request).run(self, request, context)
        if context.writes:
            with self.store.records.transaction():
                for write in context.writes:
                    write(self.store.records)
        return result

    # ---- probes

    def predict(
        self,
        probe: str,
        *,
        vectors: np.ndarray | None = None,
        collection: str | None = None,
        ids: Sequence[str] | None = None,
        fingerprint: str = "",
        k: int = 5,
    ) -> list[Labeling | NNCLRHubError]:
        """Return a probe's labeling of vectors (N, D), or of items of a collection; or an error for each.

        Args:
            fingerprint: fingerprint of the encoder that made the vectors; "" skips the check.
            k: number of classes to report with their probability.

        Raises:
            InvalidRequest: unless either vectors or ids are given.
            FingerprintMismatch: if they come from another encoder than the probe's.
            ProbeNotFound, CollectionNotFound.
        """
        from nnclr_hub.workbench.probes import get_probe, label_items, label_rows

        if (vectors is None) == (ids is None) or (ids is None) != (collection is None):
            raise InvalidRequest("A prediction takes either vectors, or ids with their collection.")
        kept = get_probe(self.store.records, probe)
        if ids is not None and collection is not None:
            return label_items(kept.probe, self.collection(collection), ids, k)
        return list(label_rows(kept.probe, np.asarray(vectors, np.float32), k, fingerprint=fingerprint))
