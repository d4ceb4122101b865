"""Workbench: encoders and a store, and what people do with both.

    bench = Workbench(Encoders(), open_store("./nnclr-store"))
    bench.index_folder("photos", Path("~/photos").expanduser())
    bench.search("photos", SearchQuery.of(image="query.jpg", k=5))

The command line, REST and the page all work through it, so they cannot differ.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.errors import CollectionNotFound, ImageError, InvalidRequest, ModelError, NNCLRHubError
from nnclr_hub.probe.labeling import Labeling
from nnclr_hub.store.base import Collection, CollectionSpec, Item, Match, Progress, VectorStore
from nnclr_hub.store.succession import drop_with_successor, written_together
from nnclr_hub.workbench.adding import Adding, NewImage
from nnclr_hub.workbench.choosing import Choosing
from nnclr_hub.workbench.folder_changes import FolderChanges, IndexReport, listed
from nnclr_hub.workbench.indexing import add_images, index_folder
from nnclr_hub.workbench.labeling import label_images, label_items
from nnclr_hub.workbench.models import Models, embedder_for
from nnclr_hub.workbench.probe_fitting import NO_OPTIONS, FitOptions
from nnclr_hub.workbench.probe_sources import fit_on_collection
from nnclr_hub.workbench.probes import KeptProbe, get_probe, keep_probe, label_rows, refuse_taken_probe
from nnclr_hub.workbench.search_batch import Answer, answer_each, attempt
from nnclr_hub.workbench.search_query import SearchQuery
from nnclr_hub.workbench.writing import Gate, Target


class Workbench(Choosing):
    """See the module.

    Args:
        models: hands out embedders.
        store: holds the collections; opened for reading, it makes all that writes raise OpenedForReading.
    """

    def __init__(self, models: Models, store: VectorStore) -> None:
        self.models = models
        self.store = store
        self.read_only = store.read_only
        self.gate = Gate(shut=self.read_only)
        self.reembedding = threading.Lock()  # one at a time
        self.built_here: set[str] = set()  # names of collections that are to take another's place

    # ---- collections

    def ensure_collection(self, name: str, model: str | None = None) -> tuple[Collection, Embedder]:
        """The collection, created for the model if it is not there, with the embedder that fills it.

        Args:
            model: source; None: the collection's own model, or the default for a new one.

        Raises:
            FingerprintMismatch: the collection was made with another encoder.
        """
        try:
            collection = self.store.get(name)
        except CollectionNotFound:
            embedder = self.models.get(model)
            return self.store.create(name, CollectionSpec.of(embedder)), embedder
        embedder = self.embedder_of(collection, model)
        return collection, embedder

    def drop(self, name: str) -> tuple[str, ...]:
        """Deletes a collection, with what was to take its place; returns the names of both.

        Raises:
            CollectionNotFound: names those that exist.
            InvalidRequest: it is an alias.
        """
        with self.gate.alone():
            return drop_with_successor(self.store, name)

    # ---- vectors in

    @contextmanager
    def writing(self, name: str, embedder: Embedder | None = None) -> Iterator[list[Target]]:
        """What a write goes to: the collection and, while it is re-embedded, the one that takes its place.

        Args:
            embedder: for the collection, if it fits; None: by the collection's own model.

        Raises:
            CollectionMoving: another process re-embeds it, or did so meanwhile: nothing counts as written.
        """
        with self._written_together(name) as (collection, *following):
            if embedder is None or collection.spec.fingerprint not in ("", embedder.fingerprint):
                embedder = self.embedder_of(collection)
            yield [
                Target(collection, embedder),
                *(Target(one, self._embedder_of_successor(name, one)) for one in following),
            ]

    def index_folder(
        self,
        name: str,
        folder: Path,
        *,
        model: str | None = None,
        prune: bool = False,
        begin: Callable[[FolderChanges], None] = lambda changes: None,
        progress: Progress = lambda done, total: None,
    ) -> IndexReport:
        """Makes the collection hold the folder's images; see `workbench.indexing.index_folder`."""
        self.gate.refuse_if_shut()
        try:
            self.collection(name)
        except CollectionNotFound:
            listed(folder)  # a wrong folder must not leave an empty collection behind
        _, embedder = self.ensure_collection(name, model)
        options: dict[str, Any] = {"prune": prune, "begin": begin, "progress": progress}
        return index_folder(partial(self.writing, name, embedder), folder, **options)

    def add_images(self, name: str, images: Sequence[NewImage]) -> list[ImageError | None]:
        """Embeds images into an existing collection; one entry an image: None or its error."""
        self.collection(name)  # a wrong name is told before anything is decoded
        return add_images(partial(self.writing, name), images)

    def adding(self, name: str, images: Sequence[NewImage]) -> Adding:
        """`add_images` in its steps, for who must not wait for them in one thread."""
        self.collection(name)
        return Adding(partial(self.writing, name), images)

    def upsert(self, name: str, items: Sequence[Item]) -> int:
        """Adds or replaces items by their vectors; returns the number of the change when durable.

        Raises:
            InvalidRequest: an item is not possible, or the collection is being re-embedded: vectors of the one encoder
                cannot be turned into those of the other.
            CollectionMoving: see `writing`.
        """
        with self._written_together(name) as (collection, *following):
            if following:
                raise InvalidRequest(
                    f"Collection {name!r} is being re-embedded with {following[0].spec.model}, which no vector can be: "
                    f"send images instead, wait until that is done, or give it up with `nnclr store reembed {name} "
                    "--abandon`."
                )
            return collection.upsert(items)

    def delete(self, name: str, ids: Sequence[str]) -> int:
        """Deletes items; returns how many there were; CollectionMoving: see `writing`."""
        with self._written_together(name) as collections:
            deleted = [collection.delete(ids) for collection in collections]
        return deleted[0]

    # ---- neighbors out

    def search(self, name: str, query: SearchQuery) -> list[Match]:
        """Return the matches of a query, best first.

        Raises:
            InvalidRequest, ImageError, CollectionNotFound, ItemNotFound, FingerprintMismatch.
        """
        [answer] = self.search_each(name, [query])
        if isinstance(answer, NNCLRHubError):
            raise answer
        return answer

    def search_each(self, name: str, queries: Sequence[SearchQuery]) -> list[Answer]:
        """Return the matches of each query, or the error that concerns it alone. Embeds all images together.

        Raises:
            CollectionNotFound, FingerprintMismatch.
        """
        collection = self.collection(name)
        images = [attempt(query.images) for query in queries]
        together = [image for own in images if not isinstance(own, NNCLRHubError) for image in own]
        vectors = self.embedder_of(collection).embed_each(together) if together else []
        return answer_each(collection, queries, images, vectors)

    # ---- labels

    def fit_probe(
        self,
        name: str,
        collection: str,
        field: str,
        *,
        where: Mapping[str, Any] | None = None,
        options: FitOptions = NO_OPTIONS,
        replace: bool = False,
        progress: Progress = lambda done, total: None,
    ) -> KeptProbe:
        """Fits a probe on the labels that a collection's items have in a field, and keeps it by name.

        Args:
            where: fit only on items that pass.
            replace: whether it may take the place of a probe of the same name.
            progress: called with (done, total).

        Raises:
            ProbeExists, CollectionNotFound, InvalidRequest, OpenedForReading.
        """
        self.gate.refuse_if_shut()
        if not replace:
            refuse_taken_probe(self.store.records, name)
        kept = fit_on_collection(self.collection(collection), name, field, where, options, progress=progress)
        keep_probe(self.store.records, kept, replace=replace)
        return kept

    def predict(
        self,
        probe: str,
        *,
        images: Sequence[Path | bytes | Image.Image] | None = None,
        vectors: np.ndarray | None = None,
        collection: str | None = None,
        ids: Sequence[str] | None = None,
        fingerprint: str = "",
        k: int = 5,
    ) -> list[Labeling | NNCLRHubError]:
        """What a probe says of images, of vectors (N, D), or of items of a collection: one entry each, or its error.

        Args:
            fingerprint: of the encoder that the vectors come from; "" leaves it unchecked.
            k: how many classes to give the probabilities of.

        Raises:
            InvalidRequest: not exactly one of images, vectors and ids.
            FingerprintMismatch: they come from another encoder than the probe's.
            ProbeNotFound, CollectionNotFound.
        """
        if sum(query is not None for query in (images, vectors, ids)) != 1 or (ids is None) != (collection is None):
            raise InvalidRequest("A prediction takes exactly one of images, vectors, and ids with their collection.")
        kept = get_probe(self.store.records, probe)
        if ids is not None and collection is not None:
            return label_items(kept.probe, self.collection(collection), ids, k)
        if images is not None:
            return label_images(kept.probe, self.embedder_of_probe(probe), images, k)
        return list(label_rows(kept.probe, np.asarray(vectors, np.float32), k, fingerprint=fingerprint))

    # ---- inside

    @contextmanager
    def _written_together(self, name: str) -> Iterator[list[Collection]]:
        with self.gate.shared(), written_together(self.store, name, self.built_here) as collections:
            yield collections

    def _embedder_of_successor(self, name: str, successor: Collection) -> Embedder:
        try:
            embedder = embedder_for(self.models, successor.spec)
        except ModelError as error:
            raise ModelError(
                f"Collection {name!r} is being re-embedded with {successor.spec.model}, which cannot be had ({error}) "
                f"Bring it back, or give up with `nnclr store reembed {name} --abandon`."
            ) from error
        successor.check(embedder)
        return embedder
