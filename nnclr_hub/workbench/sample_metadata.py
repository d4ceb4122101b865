"""What an archive says about an image: the texts of its sample in WebDataset, in a form that a store keeps."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.images.source import ImageSource, ListedImage, PackedImage
from nnclr_hub.store.base import Item
from nnclr_hub.store.checks import metadata_json

log = logging.getLogger(__name__)
NO_VECTOR = np.zeros(0, np.float32)


def metadata_of(
    source: ImageSource, image: ListedImage, texts: Sequence[tuple[str, str]] | None = None
) -> dict[str, Any]:
    """Return what the texts of an image's sample say: the fields of its JSON, `cls`, `txt`, and its key as `__key__`.

    Invalid JSON is kept as text. What a collection cannot store is left out and logged.

    Args:
        texts: what `PackedImage.read_texts` returned; None: read them.

    Raises:
        OSError, NNCLRHubError: a text cannot be read.
    """
    key = {"__key__": image.key} if image.key else {}
    metadata: dict[str, Any] = key
    for kind, text in PackedImage(source, image).read_texts() if texts is None else texts:
        try:
            value = text if kind == "txt" else json.loads(text)
        except (ValueError, RecursionError):
            value = text
        fields = value if kind == "json" and isinstance(value, dict) else {kind: value}
        for candidate in (metadata | fields | key, metadata | {kind: text}):
            if error := _store_error(source, image, candidate):
                log.warning("%s: its %s is not kept as it is: %s", PackedImage(source, image), kind, error)
                continue
            metadata = candidate
            break
    return metadata


def _store_error(source: ImageSource, image: ListedImage, metadata: dict[str, Any]) -> str:
    """Return why no collection can store the metadata with what an import adds to it; "" if one can."""
    added = {"path": image.path, "root": source.absolute, "size": image.size, "mtime": image.mtime}
    label = {"label": str(metadata["cls"])} if "cls" in metadata else {}
    try:
        metadata_json(Item(image.path, NO_VECTOR, metadata | added | label))
    except InvalidRequest as error:
        return str(error)
    return ""
