"""Images, vectors and items to their neighbors in a collection."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nnclr_hub.encoder.decoding import decode_image
from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.base import Collection, Match
from nnclr_hub.store.checks import check_asked
from nnclr_hub.store.queries import search_like


def crop_to_box(image: Image.Image, box: tuple[float, float, float, float]) -> Image.Image:
    """The part of an upright image inside a box.

    Args:
        box: x0, y0, x1, y1 in pixels; must overlap the image by at least one pixel each way.

    Raises:
        InvalidRequest: it does not.
    """
    x0, y0, x1, y1 = box
    left, top = max(0, int(np.floor(x0))), max(0, int(np.floor(y0)))
    right, bottom = min(image.width, int(np.ceil(x1))), min(image.height, int(np.ceil(y1)))
    if not (x0 < x1 and y0 < y1 and left < right and top < bottom):
        raise InvalidRequest(
            f"The box {list(box)} does not lie on the image of {image.width} x {image.height} pixels: "
            "give x0 < x1 and y0 < y1 within it."
        )
    return image.crop((left, top, right, bottom))


def embed_query(
    embedder: Embedder,
    image: Path | bytes | Image.Image,
    box: tuple[float, float, float, float] | None = None,
) -> np.ndarray:
    """The vector of an image or of a box on it: (D,) float32, unit.

    Raises:
        ImageError: the image cannot be read.
        InvalidRequest: the box is not on the image.
    """
    decoded = decode_image(image)
    return embedder.embed([decoded if box is None else crop_to_box(decoded, box)])[0]


def search_by_vector(
    collection: Collection,
    vector: np.ndarray,
    k: int = 10,
    *,
    where: Mapping[str, Any] | None = None,
    exact: bool = False,
    score_threshold: float | None = None,
    with_vector: bool = False,
    effort: int | None = None,
) -> list[Match]:
    """The k nearest items, best first.

    Raises:
        InvalidRequest: k outside 1 ... 1000, effort outside 1 ... 10,000, or a vector that does not fit the collection.
    """
    check_asked(k, effort)
    return collection.search(
        vector,
        k,
        where=where,
        exact=exact,
        score_threshold=score_threshold,
        with_vector=with_vector,
        effort=effort,
    )


def search_by_id(
    collection: Collection, id: str, k: int = 10, *, effort: int | None = None, **options: Any
) -> list[Match]:
    """The k nearest items of one that is in the collection, without itself.

    Raises:
        ItemNotFound: no item has that id.
        InvalidRequest: k outside 1 ... 1000, effort outside 1 ... 10,000.
    """
    check_asked(k, effort)
    return search_like(collection, [id], k=k, effort=effort, **options)
