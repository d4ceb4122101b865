"""The bodies of searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field, PrivateAttr

from .fields import FIRST_WRONG, Box, ImageText, ItemError, Metadata, MetadataKey, Strict, Vector, Where


class Example(Strict):
    """Exactly one of id, image and vector. A box needs an image."""

    id: str | None = Field(None, description="id of an item of the collection")
    image: ImageText | None = None
    vector: Vector | None = None
    box: Box | None = None
    _file: bytes | None = PrivateAttr(None)

    def attach(self, file: bytes) -> None:
        """Set an image that was sent as a file part of a form."""
        self._file = file

    @property
    def has_image(self) -> bool:
        return self.image is not None or self._file is not None

    def body(self) -> dict[str, Any]:
        """Return the fields for `SearchQuery.from_json`; the image is text, or bytes if it was sent as a file."""
        return {**dict(self), "image": self.image if self._file is None else self._file}


class SearchRequest(Example):
    """Exactly one of id, image, vector and positive."""

    positive: Annotated[list[Example], FIRST_WRONG] | None = Field(None, description="examples to be near")
    negative: Annotated[list[Example], FIRST_WRONG] = Field([], description="examples to be far from")
    group_by: MetadataKey | None = Field(
        None, description="metadata key; return the nearest item of each of its values"
    )
    k: int = Field(10, description="number of matches, 1 to 1000")
    offset: int = Field(0, description="number of the best matches to skip; k + offset is at most 1000")
    where: Where | None = None
    exact: bool = Field(False, description="compare with every item instead of using the index")
    score_threshold: float | None = Field(None, description="lowest score of a match; leave out the others")
    with_vector: bool = Field(False, description="return the vectors of the matches")
    effort: int | None = Field(
        None, description="efSearch or nprobe of an approximate index, 1 to 10,000; null: the tuned value"
    )

    @property
    def examples(self) -> Sequence[Example]:
        """All examples, positive and negative."""
        return [*([self] if self.positive is None else self.positive), *self.negative]

    def body(self) -> dict[str, Any]:
        """Return the fields for `SearchQuery.from_json`."""
        positive = None if self.positive is None else [one.body() for one in self.positive]
        return {**super().body(), "positive": positive, "negative": [one.body() for one in self.negative]}


class SearchBatchRequest(Strict):
    queries: Annotated[list[SearchRequest], FIRST_WRONG] = Field(min_length=1)


class MatchResponse(BaseModel):
    id: str
    score: float
    metadata: Metadata
    vector: list[float] | None = None


class SearchResponse(BaseModel):
    matches: list[MatchResponse]


class SearchBatchEntry(BaseModel):
    """Matches or an error."""

    matches: list[MatchResponse] | None = None
    error: ItemError | None = None


class SearchBatchResponse(BaseModel):
    results: list[SearchBatchEntry]
