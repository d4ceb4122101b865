"""A search by several examples, of which each may be an item, a vector, or an image with a box on it.

search_by_examples(bench, "photos", [Example(image=Path("cat.jpg")), Example(id="a")], [Example(id="b")], k=5)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from nnclr_hub.encoder.decoding import decode_image
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.base import Match
from nnclr_hub.store.checks import check_asked
from nnclr_hub.store.queries import search_like
from nnclr_hub.workbench.searching import crop_to_box

if TYPE_CHECKING:
    from nnclr_hub.workbench.workbench import Workbench


@dataclass(frozen=True)
class Example:
    """Exactly one of an item's id, a vector (D,) float32, and an image; a box goes with an image."""

    id: str | None = None
    vector: np.ndarray | None = None
    image: Path | bytes | Image.Image | None = None
    box: tuple[float, float, float, float] | None = None

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.id, self.vector, self.image)) != 1:
            raise InvalidRequest("An example is exactly one of id, image and vector.")
        if self.box is not None and self.image is None:
            raise InvalidRequest("A box goes with an image: give the image that it lies on.")


def embed_examples(bench: Workbench, name: str, examples: Sequence[Example]) -> list[str | np.ndarray]:
    """Ids as they are, and a vector (D,) float32 for each of the others; the images are embedded together.

    Raises:
        ImageError, CollectionNotFound, FingerprintMismatch.
        InvalidRequest: a box is not on its image.
    """
    pictures = [_picture(one) for one in examples if one.image is not None]
    vectors = iter(bench.embedder_of(bench.collection(name)).embed(pictures) if pictures else ())
    return [next(vectors) if one.image is not None else one.id or np.asarray(one.vector) for one in examples]


def search_by_examples(
    bench: Workbench,
    name: str,
    positive: Sequence[Example],
    negative: Sequence[Example] = (),
    k: int = 10,
    *,
    effort: int | None = None,
    **options: Any,
) -> list[Match]:
    """The k items nearest to the positive and away from the negative examples; see `store.queries.search_like`.

    Args:
        options: where, exact, score_threshold, with_vector.

    Raises:
        InvalidRequest: no positive example, or a k that may not be asked for.
        ImageError, CollectionNotFound, ItemNotFound, FingerprintMismatch.
    """
    check_asked(k, effort)
    resolved = embed_examples(bench, name, [*positive, *negative])
    near, away = resolved[: len(positive)], resolved[len(positive) :]
    return search_like(bench.collection(name), near, away, k, effort=effort, **options)


def _picture(example: Example) -> Image.Image:
    assert example.image is not None
    upright = decode_image(example.image)
    return upright if example.box is None else crop_to_box(upright, example.box)
