"""Pictures, vectors and items to their neighbours in a collection."""

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
from nnclr_hub.store.queries import search_like

MAX_K = 1000
MAX_EFFORT = 10_000


def crop_to_box(image: Image.Image, box: tuple[float, float, float, float]) -> Image.Image:
    """The part of an upright picture inside a box.

    Args:
        box: x0, y0, x1, y1 in pixels; must overlap the picture by at least one pixel each way.

    Raises:
        InvalidRequest: it does not.
    """
    x0, y0, x1, y1 = box
    left, top = max(0, int(np.floor(x0))), max(0, int(np.floor(y0)))
    right, bottom = min(image.width, int(np.ceil(x1))), min(image.height, int(np.ceil(y1)))
    if not (x0 < x1 and y0 < y1 and left < right and top < bottom):
        raise InvalidRequest(
            f"The box {list(box)} does not lie on the picture of {image.width} x {image.height} pixels: "
            "give x0 < x1 and y0 < y1 within it."
        )
    return image.crop((left, top, right, bottom))


def embed_query(
    embedder: Embedder,
    image: Path | bytes | Image.Image,
    box: tuple[float, float, float, float] | None = None,
) -> np.ndarray:
    """The vector of a picture or of a box on it: (D,) float32, unit.

    Raises:
        ImageError: the picture cannot be read.
        InvalidRequest: the box is not on the picture.
    """
    decoded = decode_image(image)
    return embedder.embed([decoded if box is None else crop_to_box(decoded, box)])[0]


def check_k(k: int) -> int:
    """Returns the number of neighbours if it may be asked for: fewer than a store allows, for all that is shown.

    Raises:
        InvalidRequest: it may not.
    """
    if not 1 <= k <= MAX_K:
        raise InvalidRequest(f"k={k} is not possible: ask for 1 to {MAX_K} neighbours.")
    return k


def check_effort(effort: int | None) -> int | None:
    """Returns how far an approximate index is to look, if it may be asked for.

    Raises:
        InvalidRequest: it may not.
    """
    if effort is not None and not 1 <= effort <= MAX_EFFORT:
        raise InvalidRequest(
            f"effort={effort} is not possible: give 1 to {MAX_EFFORT}, or none to leave it to the index."
        )
    return effort


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
    return collection.search(
        vector,
        check_k(k),
        where=where,
        exact=exact,
        score_threshold=score_threshold,
        with_vector=with_vector,
        effort=check_effort(effort),
    )


def search_by_id(
    collection: Collection, id: str, k: int = 10, *, effort: int | None = None, **options: Any
) -> list[Match]:
    """The k nearest items of one that is in the collection, without itself.

    Raises:
        ItemNotFound: no item has that id.
        InvalidRequest: k outside 1 ... 1000, effort outside 1 ... 10,000.
    """
    return search_like(collection, [id], k=check_k(k), effort=check_effort(effort), **options)
