"""Images of the query's label among its neighbors: test images search the training images.

In a folder without parts each image searches all others. Other parts or folders can be named as queries and gallery,
for example product images that search photographs.
"""

from __future__ import annotations

from collections.abc import Iterator

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.metrics import retrieval as rank

from .features import Features


def retrieval(features: Features) -> Iterator[tuple[str, float]]:
    """Yield ("retrieval/NAME", mean average precision), ("retrieval/NAME/recall@1", ...) at 1, 5 and 10, and the number
    of queries that have any right answer; the others are left out.

    Args:
        features: test is the queries, train the gallery; if they are one object, each searches the others.

    Raises:
        InvalidRequest: several labels per image, or no query has a right answer in the gallery.
    """
    gallery, queries = features.train, features.test
    if queries.labels.ndim == 2:
        raise InvalidRequest(f"retrieval needs one label per image, and images of {features.name} have several.")
    if gallery is queries:
        found = rank(queries.raw, queries.labels)
    else:
        found = rank(queries.raw, queries.labels, gallery.raw, gallery.labels)
    yield f"retrieval/{features.name}", found.mean_average_precision
    for k, value in found.recall.items():
        yield f"retrieval/{features.name}/recall@{k}", value
    yield f"retrieval/{features.name}/queries", float(found.queries)
