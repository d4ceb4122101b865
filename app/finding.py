"""Finding: a query to what the search tab shows of it. All through the workbench; nothing of Gradio."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from nnclr_hub.encoder.decoding import decode_image
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.store.base import Match
from nnclr_hub.store.checks import MAX_ASKED_K
from nnclr_hub.workbench import Example, SearchQuery, Workbench
from nnclr_hub.workbench.privacy import public_metadata, public_where
from nnclr_hub.workbench.sources import Original, read_original, read_source

from .page import Page
from .queries import MOST_AT_A_TIME, MOST_SAMPLES, Query, Sample

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what spreadsheets run


@dataclass(frozen=True)
class Found:
    """What a query came to.

    hits: its matches, or without examples items.
    scored: whether there were examples.
    has_more: whether there are more of them.
    count: of all items in the collection.
    passing: of them, how many pass the filter; None without one.
    """

    hits: list[Match]
    scored: bool
    has_more: bool
    count: int = 0
    passing: int | None = None


class Finder:
    """Answers queries.

    Args:
        page: whose workbench it is, and whose source folders.
    """

    def __init__(self, page: Page) -> None:
        self._bench: Workbench = page.bench
        self._folders = page.terms.source_folders

    def names(self) -> list[str]:
        """The collections, those that hold something first."""
        infos = self._bench.store.list()
        return [info.name for info in infos if info.count] + [info.name for info in infos if not info.count]

    def chosen(self, *wanted: Any) -> str:
        """The collection to show: the first of these that there is, or else of all; "" where there is none."""
        names = self.names()
        return next((name for name in [*wanted, *names] if name in names), "")

    def find(self, query: Query) -> Found:
        """Searches, or lists where there is nothing to search by.

        Raises:
            InvalidRequest: a filter, a k or a number of examples that cannot be.
        """
        check(query)
        there = self._bench.collection(query.collection)
        count, passing = there.count(), there.count(query.where) if query.where else None
        if not query.more:
            if query.less:
                raise InvalidRequest("There is nothing to be near to: mark an image with + before, or beside, the -.")
            page = there.scroll(limit=query.number, where=query.where, with_vector=False)
            hits = [Match(item.id, 0.0, public_metadata(item.metadata)) for item in page.items]
            has_more = page.cursor is not None and query.number < MAX_ASKED_K
            return Found(hits, scored=False, has_more=has_more, count=count, passing=passing)
        more, less = ([_example(one) for one in side] for side in (query.more, query.less))
        matches = self._bench.search(query.collection, SearchQuery(more, less, query.number, **query.options))
        hits = [replace(match, metadata=public_metadata(match.metadata)) for match in matches]
        has_more = len(hits) == query.number < MAX_ASKED_K
        return Found(hits, scored=True, has_more=has_more, count=count, passing=passing)

    def embedded(self, collection: str, sample: Sample) -> Sample:
        """The sample with its vector, unless it is an item.

        Raises:
            ImageError, FingerprintMismatch.
            InvalidRequest: the box is not on the image.
        """
        if sample.is_item:
            return sample
        example = Example(image=self.picture(collection, sample), box=sample.box)
        embedder = self._bench.embedder(collection=collection)
        [vector] = embedder.embed_each([example.embeddable()])
        if isinstance(vector, ImageError):
            raise vector
        return replace(sample, vector=base64.b64encode(np.asarray(vector).astype("<f4").tobytes()).decode())

    def picture(self, collection: str, sample: Sample) -> Image.Image:
        """The sample's image, whole and upright.

        Raises:
            ImageError, ItemNotFound.
            InvalidRequest: nobody has it any more.
        """
        if sample.path is not None:
            if not sample.path.is_file():
                raise InvalidRequest("Your image was forgotten, as uploads are after an hour: give it again.")
            return decode_image(sample.path)
        if sample.id is None:
            raise InvalidRequest("A link holds what was computed of an image, not the image: give it again.")
        return decode_image(self.original(collection, sample.id).data)

    def has_image(self, collection: str, sample: Sample) -> bool:
        """Whether `image` has something to give: an item that was stored by its vector alone has no image."""
        if sample.id is None:
            return sample.path is not None and sample.path.is_file()
        [item] = self._bench.collection(collection).get([sample.id]) or [None]
        if item is None:
            return False
        return item.thumbnail is not None or not isinstance(read_source(item.metadata, self._folders), str)

    def original(self, collection: str, id: str) -> Original:
        """The item's image: its source file, or its thumbnail."""
        return read_original(self._bench.collection(collection), id, self._folders)

    def metadata(self, collection: str, id: str) -> dict[str, Any]:
        """The item's metadata, as may be shown."""
        [item] = self._bench.collection(collection).get([id]) or [None]
        return {} if item is None else public_metadata(item.metadata)

    def keys(self, collection: str) -> list[str]:
        """Metadata keys of the collection's first items, to filter by."""
        items = self._bench.collection(collection).scroll(limit=50, with_vector=False).items
        return sorted({key for item in items for key in public_metadata(item.metadata)} - {"root", "pixel_sha256"})


def check(query: Query) -> None:
    """Refuses what REST would, and what the page's controls do not have.

    Raises:
        InvalidRequest: says what.
    """
    if not 1 <= query.k <= MOST_AT_A_TIME or not 1 <= query.pages <= MAX_ASKED_K:
        asked = f"k={query.k}" + (f" and pages={query.pages}" if query.pages != 1 else "")
        raise InvalidRequest(
            f"{asked} is not possible: show 1 to {MOST_AT_A_TIME} images at a time, and at most {MAX_ASKED_K}."
        )
    if len(query.more) + len(query.less) > MOST_SAMPLES:
        raise InvalidRequest(f"A search takes at most {MOST_SAMPLES} examples here: remove one before.")
    try:
        public_where(query.where or {})
    except ValueError as error:
        raise InvalidRequest(f"The filter cannot be: {error}.") from error


def csv_of(hits: Sequence[Match], ids: Sequence[str], *, scored: bool) -> str:
    """The chosen hits as CSV: id, score, and a column for each metadata key.

    Text that a spreadsheet would run as a formula begins with an apostrophe.
    """
    chosen = [hit for hit in hits if hit.id in set(ids)]
    keys = sorted({key for hit in chosen for key in hit.metadata})
    file = io.StringIO()
    rows = csv.writer(file)
    rows.writerow(["id", *(["score"] if scored else []), *map(_cell, keys)])
    for hit in chosen:
        score = [f"{hit.score:.6f}"] if scored else []
        rows.writerow([_cell(hit.id), *score, *(_cell(hit.metadata.get(key, "")) for key in keys)])
    return file.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value if value.startswith(FORMULA) else value
    return json.dumps(value)


def _example(sample: Sample) -> Example:
    return Example(id=sample.id) if sample.is_item else Example(vector=sample.array())
