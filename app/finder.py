"""Finder: runs the queries of the search tab on the workbench; independent of Gradio."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image

from nnclr_hub.encoder.decoding import decode_image
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.store.base import Match
from nnclr_hub.store.checks import MAX_SEARCH_K
from nnclr_hub.workbench import Example, Workbench
from nnclr_hub.workbench.payload import encode_vector
from nnclr_hub.workbench.privacy import public_metadata, public_where
from nnclr_hub.workbench.sources import Original, read_original, read_source

from .page import Page
from .query import MAX_PER_PAGE, MAX_SAMPLES, Query, Sample

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # text that a spreadsheet would run
INTERNAL = {"root", "pixel_sha256"}  # metadata that indexing writes, not useful as a filter
UPLOAD_EXPIRED = "The uploaded image has expired; uploads are deleted after an hour. Upload it again."


@dataclass(frozen=True)
class Results:
    """The results of a query.

    matches: the nearest items, or, for a query without examples, the first items.
    scored: whether the query had examples.
    has_more: whether further results exist.
    count: number of items in the collection.
    passing: number of items that pass the filter; None without a filter.
    """

    matches: list[Match]
    scored: bool
    has_more: bool
    count: int = 0
    passing: int | None = None


class Finder:
    """Run queries.

    Args:
        page: provides the workbench and the source folders.
    """

    def __init__(self, page: Page) -> None:
        self._bench: Workbench = page.bench
        self._folders = page.settings.source_folders

    def names(self) -> list[str]:
        """Return the names of the collections, those with items first."""
        infos = self._bench.store.list()
        return [info.name for info in infos if info.count] + [info.name for info in infos if not info.count]

    def choose_collection(self, *wanted: Any) -> str:
        """Return the first wanted collection that exists, else the first collection, else ""."""
        names = self.names()
        return next((name for name in [*wanted, *names] if name in names), "")

    def find(self, query: Query) -> Results:
        """Search by the query's examples; without examples, list the collection.

        Raises:
            InvalidRequest: the filter, k or the number of examples is not valid.
        """
        check(query)
        collection = self._bench.collection(query.collection)
        count, passing = collection.count(), collection.count(query.where) if query.where else None
        if not query.positive:
            if query.negative:
                raise InvalidRequest("The search has only negative examples. Add an image with + first.")
            page = collection.scroll(limit=query.number, where=query.where, with_vector=False)
            items = [Match(item.id, 0.0, public_metadata(item.metadata)) for item in page.items]
            has_more = page.cursor is not None and query.number < MAX_SEARCH_K
            return Results(items, scored=False, has_more=has_more, count=count, passing=passing)
        found = self._bench.search(query.collection, query.to_search())
        matches = [replace(match, metadata=public_metadata(match.metadata)) for match in found]
        has_more = len(matches) == query.number < MAX_SEARCH_K
        return Results(matches, scored=True, has_more=has_more, count=count, passing=passing)

    def embed(self, collection: str, sample: Sample) -> Sample:
        """Return the sample with its vector; a whole item needs none and is returned unchanged.

        Raises:
            ImageError, FingerprintMismatch.
            InvalidRequest: the box is outside the image.
        """
        if sample.is_item:
            return sample
        example = Example(image=self.image(collection, sample), box=sample.box)
        [vector] = self._bench.embedder(collection=collection).embed_each([example.embeddable()])
        if isinstance(vector, ImageError):
            raise vector
        return replace(sample, vector=encode_vector(vector))

    def image(self, collection: str, sample: Sample) -> Image.Image:
        """Return the whole, upright image of a sample.

        Raises:
            ImageError, ItemNotFound.
            InvalidRequest: the server no longer has the image.
        """
        if sample.path is not None:
            if not sample.path.is_file():
                raise InvalidRequest(UPLOAD_EXPIRED)
            return decode_image(sample.path)
        if sample.id is None:
            raise InvalidRequest("A link contains only the vector of an image, not the image. Upload the image again.")
        return decode_image(self.original(collection, sample.id).data)

    def has_image(self, collection: str, sample: Sample) -> bool:
        """Return whether `image` can return an image; an item that was stored only as a vector has none."""
        if sample.id is None:
            return sample.path is not None and sample.path.is_file()
        [item] = self._bench.collection(collection).get([sample.id]) or [None]
        if item is None:
            return False
        return item.thumbnail is not None or not isinstance(read_source(item.metadata, self._folders), str)

    def original(self, collection: str, id: str) -> Original:
        """Return the source file of an item, or its thumbnail."""
        return read_original(self._bench.collection(collection), id, self._folders)

    def metadata(self, collection: str, id: str) -> dict[str, Any]:
        """Return the public metadata of an item."""
        [item] = self._bench.collection(collection).get([id]) or [None]
        return {} if item is None else public_metadata(item.metadata)

    def keys(self, collection: str) -> list[str]:
        """Return the metadata keys of the collection's first items, as suggestions for filters."""
        items = self._bench.collection(collection).scroll(limit=50, with_vector=False).items
        return sorted({key for item in items for key in public_metadata(item.metadata)} - INTERNAL)


def check(query: Query) -> None:
    """Reject a query of a link that the page's controls cannot express, or that REST would reject.

    Raises:
        InvalidRequest.
    """
    for name, value, limit in (("k", query.k, MAX_PER_PAGE), ("pages", query.pages, MAX_SEARCH_K)):
        if not 1 <= value <= limit:
            raise InvalidRequest(f"{name} must be between 1 and {limit} on this page, got {value}.")
    if len(query.positive) + len(query.negative) > MAX_SAMPLES:
        raise InvalidRequest(f"A search can have at most {MAX_SAMPLES} examples. Remove one first.")
    try:
        public_where(query.where or {})
    except ValueError as error:
        raise InvalidRequest(f"Invalid filter: {error}.") from error


def to_csv(matches: Sequence[Match], ids: Sequence[str], *, scored: bool) -> str:
    """Return the selected matches as CSV: id, score, and one column per metadata key.

    Text that a spreadsheet would run as a formula starts with an apostrophe.
    """
    selected = [match for match in matches if match.id in set(ids)]
    keys = sorted({key for match in selected for key in match.metadata})
    file = io.StringIO()
    rows = csv.writer(file)
    rows.writerow(["id", *(["score"] if scored else []), *map(_cell, keys)])
    for match in selected:
        score = [f"{match.score:.6f}"] if scored else []
        rows.writerow([_cell(match.id), *score, *(_cell(match.metadata.get(key, "")) for key in keys)])
    return file.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value if value.startswith(FORMULA) else value
    return json.dumps(value)
