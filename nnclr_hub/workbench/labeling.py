"""What a probe says of images, and of a collection's items: one entry each, its labeling or its error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.errors import ItemNotFound, NNCLRHubError
from nnclr_hub.probe.labeling import Labeling
from nnclr_hub.probe.linear_probe import LinearProbe
from nnclr_hub.store.base import Collection
from nnclr_hub.workbench.probes import label_rows


def label_items(
    probe: LinearProbe, collection: Collection, ids: Sequence[str], k: int
) -> list[Labeling | NNCLRHubError]:
    """Of each item of a collection; an ItemNotFound for one that is not there.

    Raises:
        FingerprintMismatch: the collection's vectors are of another encoder.
    """
    probe.require(collection.spec.fingerprint)
    there = {item.id: item.vector for item in collection.get(list(dict.fromkeys(ids)))}
    missing = {id: ItemNotFound(f"Collection {collection.name!r} has no item {id!r}.") for id in ids if id not in there}
    return _with_errors(probe, [missing.get(id, there.get(id)) for id in ids], k, collection.spec.fingerprint)


def label_images(
    probe: LinearProbe, embedder: Embedder, images: Sequence[Path | bytes | Image.Image], k: int
) -> list[Labeling | NNCLRHubError]:
    """Of each image; an ImageError for one that cannot be read.

    Raises:
        FingerprintMismatch: the embedder is not the probe's.
    """
    probe.require(embedder.fingerprint)
    return _with_errors(probe, embedder.embed_each(images), k, embedder.fingerprint)


def _with_errors(probe: LinearProbe, rows: Sequence[Any], k: int, fingerprint: str) -> list[Labeling | NNCLRHubError]:
    vectors = [row for row in rows if not isinstance(row, NNCLRHubError)]
    said = iter(label_rows(probe, np.stack(vectors), k, fingerprint=fingerprint) if vectors else [])
    return [row if isinstance(row, NNCLRHubError) else next(said) for row in rows]
