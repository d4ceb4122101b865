"""Items, matches, and what a search asks for: the nouns below everything else in the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnclr_hub.html_table import html_table

Where = Mapping[str, Any]
ById = Mapping[str, Mapping[str, Any]]  # values by item id and metadata key
Progress = Callable[[int, int], None]
SHORT = 60  # characters of metadata in a __repr__
SHOWN = 0.999  # the highest percentile that differs reliably from others


@dataclass(frozen=True, repr=False)
class Item:
    """One entry of a collection."""

    id: str  # [A-Za-z0-9._~-], 1 to 128 characters
    vector: np.ndarray  # (D,) float32
    metadata: Mapping[str, Any] = field(default_factory=dict)  # JSON values by key, at most 64 KiB as JSON
    thumbnail: bytes | None = None  # JPEG to show, at most 32 KiB

    def __repr__(self) -> str:
        parts = [f"id={self.id!r}", f"vector={_shape(self.vector)}", f"metadata={_shortened(self.metadata)}"]
        if self.thumbnail is not None:
            parts.append(f"thumbnail={len(self.thumbnail)} bytes")
        return f"Item({', '.join(parts)})"


@dataclass(frozen=True, repr=False)
class Match:
    """One neighbor. A higher score is nearer: cosine, dot product, or minus the L2 distance."""

    id: str
    score: float
    metadata: Mapping[str, Any]
    vector: np.ndarray | None = None
    # share of random pairs of items that score lower, 0 to 1, if the search has `with_percentile`; None for collections
    # with fewer than 10 items, or if the pairs could not be sampled
    percentile: float | None = None

    def __repr__(self) -> str:
        parts = [f"id={self.id!r}", f"score={self.score:.4f}", f"metadata={_shortened(self.metadata)}"]
        if self.vector is not None:
            parts.append(f"vector={_shape(self.vector)}")
        if self.percentile is not None:
            parts.append(f"percentile={self.percentile:.4f}")
        return f"Match({', '.join(parts)})"

    def _repr_html_(self) -> str:
        share = {} if self.percentile is None else {"percentile": percent_text(self.percentile)}
        return html_table({"id": self.id, "score": f"{self.score:.4f}", **share, **self.metadata})


@dataclass(frozen=True)
class Page:
    """Part of a listing; cursor is None at the end."""

    items: list[Item]
    cursor: str | None


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search, as `Collection.search` documents them; collections check them."""

    where: Where | None = None
    exact: bool = False
    score_threshold: float | None = None
    with_vector: bool = False
    effort: int | None = None
    with_percentile: bool = False


DEFAULTS = SearchOptions()


def is_same(one: Item, other: Item) -> bool:
    """Return whether two items have the same vector, metadata and thumbnail."""
    return (
        canonical(one.metadata) == canonical(other.metadata)
        and one.thumbnail == other.thumbnail
        and np.array_equal(one.vector, other.vector)
    )


def canonical(metadata: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal JSON; in Python, 1 equals true."""
    return json.dumps(metadata, sort_keys=True)


def percent_text(share: float | None) -> str:
    """Return a percentile for people: 48.2%, >99.9%, or nothing if it is unknown."""
    if share is None:
        return ""
    return f">{100 * SHOWN:.1f}%" if share > SHOWN else f"{100 * share:.1f}%"


def _shape(vector: np.ndarray) -> str:
    if hasattr(vector, "shape"):
        return f"{tuple(vector.shape)} {getattr(vector, 'dtype', type(vector).__name__)}"
    return f"{vector!r:.{SHORT}}"  # not an array, such as a ragged list


def _shortened(metadata: Mapping[str, Any]) -> str:
    text = repr(metadata)
    return text if len(text) <= SHORT else f"{text[: SHORT - 3]}..."
