"""Choosing: the part of a Workbench that knows which encoder answers, and asks it what it looks at.

bench.embedder()                            # the default
bench.embedder(collection="photos")         # the one whose vectors the collection holds, by its fingerprint
[found] = bench.look(AttentionSettings(Point(120, 80)), "cat.jpg", collection="photos")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nnclr_hub.encoder.embedder import Embedder, ImageLike
from nnclr_hub.errors import FingerprintMismatch, InvalidRequest, ModelFilesMissing, UnknownModel
from nnclr_hub.store.base import Collection, CollectionSpec, VectorStore
from nnclr_hub.workbench.models import Models, embedder_for
from nnclr_hub.workbench.probes import get_probe

if TYPE_CHECKING:  # it builds on timm, which takes a second to import
    from nnclr_hub.encoder.attention import AttentionMap, AttentionSettings


class Choosing:
    """What has models and a store."""

    models: Models
    store: VectorStore

    def collection(self, name: str) -> Collection:
        """An existing collection.

        Raises:
            CollectionNotFound: names those that exist.
        """
        return self.store.get(name)

    def embedder(self, model: str | None = None, collection: str | None = None) -> Embedder:
        """The embedder of a source, or that of a collection; of neither, the default.

        Raises:
            FingerprintMismatch: the model is not the one the collection was made with.
            CollectionNotFound, ModelError.
        """
        return self.models.get(model) if collection is None else self.embedder_of(self.collection(collection), model)

    def embedder_of(self, collection: Collection, model: str | None = None) -> Embedder:
        """The embedder whose vectors the collection holds.

        Raises:
            FingerprintMismatch: the model is not the one the collection was made with, or that one is not to be had.
        """
        spec = collection.spec
        try:
            embedder = self.models.get(model) if model else embedder_for(self.models, spec)
        except (UnknownModel, ModelFilesMissing) as error:  # what cannot be reached may come back: that is no conflict
            if model or not spec.fingerprint:
                raise
            raise FingerprintMismatch(
                f"Collection {collection.name!r} holds vectors of {spec.model or 'an encoder'} "
                f"({spec.fingerprint[:8]}), which cannot be had here. {error} Or move the collection to another "
                f"encoder with `nnclr store reembed {collection.name} --model NAME`."
            ) from error
        collection.check(embedder)
        return embedder

    def fillable(self, name: str) -> Collection:
        """An existing collection that images can be added to: its encoder is to be had, and gives such vectors.

        Raises:
            FingerprintMismatch, CollectionNotFound.
            InvalidRequest: it holds vectors that were made elsewhere.
        """
        collection = self.collection(name)
        dim = self.embedder_of(collection).embed_dim
        if collection.spec.dim != dim:
            raise InvalidRequest(
                f"Collection {name!r} holds vectors of {collection.spec.dim} numbers that were made elsewhere, and the "
                f"encoder here gives {dim}: make a collection of its own for these images."
            )
        return collection

    def embedder_of_probe(self, probe: str) -> Embedder:
        """The embedder whose vectors a probe was fitted on.

        Raises:
            FingerprintMismatch: what its source gives now is another one.
            ProbeNotFound, ModelError.
        """
        kept = get_probe(self.store.records, probe)
        own = CollectionSpec(kept.about["dim"], fingerprint=kept.probe.fingerprint, model=kept.probe.model)
        embedder = embedder_for(self.models, own)
        kept.probe.require(embedder.fingerprint)
        return embedder

    def look(
        self,
        settings: AttentionSettings,
        image: ImageLike,
        targets: Sequence[ImageLike] = (),
        *,
        model: str | None = None,
        collection: str | None = None,
    ) -> list[AttentionMap]:
        """What an encoder looks at: the map of an image, or one for each target, on one scale.

        Args:
            settings: the question.
            model: source; None: the collection's own model, or the default.
            collection: whose encoder is to answer.

        Raises:
            ImageError, InvalidRequest, FingerprintMismatch, CollectionNotFound.
        """
        return self.embedder(model, collection).look(settings, image, targets)
