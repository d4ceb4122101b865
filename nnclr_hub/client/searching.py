"""Searches in a server's collection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.client.answers import make_error
from nnclr_hub.client.collections import ROOT
from nnclr_hub.client.pictures import MOST, MOST_BYTES, read_image
from nnclr_hub.client.steps import Answer, Call, Steps, aside, ask, spread, to_json
from nnclr_hub.client.vectors import read_matches, vector_text
from nnclr_hub.read_ahead import batches
from nnclr_hub.store.base import Match, Where
from nnclr_hub.store.checks import check_name

if TYPE_CHECKING:
    from nnclr_hub.client.pictures import ImageLike

AT_ONCE = 2  # requests of one call


def search(
    name: str,
    vector: np.ndarray | None = None,
    k: int = 10,
    where: Where | None = None,
    *,
    image: ImageLike | None = None,
    box: tuple[float, float, float, float] | None = None,
    id: str | None = None,
    exact: bool = False,
    score_threshold: float | None = None,
    with_vector: bool = False,
    effort: int | None = None,
) -> Steps[list[Match]]:
    """The k nearest items of exactly one of a vector, an image (or a box on it) and an item, best first.

    Args:
        vector: (D,) float.
        image: path, bytes, PIL image or (H, W, 3) uint8.
        box: x0, y0, x1, y1 on the upright image, in pixels.
        id: of an item, which is not among the matches.
        k, where, exact, score_threshold, with_vector, effort: see `store.base.Collection.search`.

    Raises:
        InvalidRequest, ImageError, CollectionNotFound, ItemNotFound, FingerprintMismatch.
    """
    query: dict[str, Any] = {"k": k, "exact": exact, "with_vector": with_vector}
    optional = {"where": where, "box": box, "id": id, "score_threshold": score_threshold, "effort": effort}
    query |= {key: value for key, value in optional.items() if value is not None}
    if vector is not None:
        query["vector"] = vector_text(vector)
    path = f"{ROOT}/{check_name(name, 'Collection name')}/search"
    if image is None:
        return (yield from ask(Call("POST", path, _found, json=query)))
    picture = yield from aside(lambda: read_image(image))
    parts = [("image", picture)]
    return (yield from ask(Call("POST", path, _found, files=parts, fields={"query": to_json(query)})))


def search_batch(
    name: str,
    vectors: np.ndarray,
    k: int = 10,
    where: Where | None = None,
    *,
    exact: bool = False,
    score_threshold: float | None = None,
    with_vector: bool = False,
    effort: int | None = None,
) -> Steps[list[list[Match]]]:
    """`search` for each row of vectors (n, D), many a request.

    Raises:
        InvalidRequest, CollectionNotFound, FingerprintMismatch.
    """
    path = f"{ROOT}/{check_name(name, 'Collection name')}/search/batch"
    about: dict[str, Any] = {"k": k, "exact": exact, "with_vector": with_vector}
    optional = {"where": where, "score_threshold": score_threshold, "effort": effort}
    about |= {key: value for key, value in optional.items() if value is not None}
    queries = [(i, {"vector": vector_text(row), **about}) for i, row in enumerate(np.asarray(vectors))]
    found: list[list[Match]] = [[] for _ in queries]

    def send(batch: list[tuple[int, dict[str, Any]]]) -> Steps[None]:
        asked = {"queries": [query for _, query in batch]}
        answers = yield from ask(Call("POST", path, lambda answer: answer.json()["results"], json=asked))
        for (i, _), answer in zip(batch, answers, strict=True):
            if answer.get("error") is not None:
                raise make_error(answer["error"]["code"], answer["error"]["detail"])
            found[i] = read_matches(answer["matches"])

    yield from spread(batches(queries, MOST, lambda one: len(to_json(one[1])) + 2, MOST_BYTES), send, AT_ONCE)
    return found


def _found(answer: Answer) -> list[Match]:
    return read_matches(answer.json()["matches"])
