"""Query: what the search tab shows, as a value that is also a link, a history entry and a REST call.

query = Query("photos", positive=(Sample(id="a"),), k=12)
query.fragment()                        # "collection=photos&k=12&more=a"
read_fragment("#collection=photos&more=a") == query
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from nnclr_hub.client.call_examples import ApiCall
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.checks import MAX_SEARCH_K, check_name
from nnclr_hub.workbench import Example, SearchQuery

from .api_calls import collection_path, item_path

MAX_SAMPLES = 16
DEFAULT_PER_PAGE, MAX_PER_PAGE = 24, 100  # images
MAX_FIELDS = MAX_SAMPLES + 8  # of a link
BY_VECTOR = "v:"  # no item id starts with it
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Sample:
    """A positive or negative example.

    id: of an item of the collection.
    vector: of an uploaded image or of a box: (D,) little-endian float32 as base64.
    path: of an uploaded image or an example photo on this server; links do not contain it.
    box: a region of the image, in pixels.
    name: the file name.
    unsaved: whether the user has no such file, since the image is an example photo, was pasted or came from the camera.
    """

    id: str | None = None
    vector: str | None = None
    path: Path | None = None
    box: Box | None = None
    name: str = ""
    unsaved: bool = False

    @property
    def is_item(self) -> bool:
        """Whether it is a whole item, which a search finds by its id."""
        return self.id is not None and self.box is None

    def to_example(self) -> Example:
        """Return the example to search by: the item, or the vector of the image."""
        return Example.from_json({"id": self.id} if self.is_item else {"vector": self.vector})


@dataclass(frozen=True)
class Query:
    """A search, or without examples a list of the collection.

    positive, negative: examples to find similar images to, and to avoid.
    k: number of images per page.
    pages: number of pages that are shown.
    where: a filter, as in REST.
    score_threshold: results with a lower score are left out.
    """

    collection: str = ""
    positive: tuple[Sample, ...] = ()
    negative: tuple[Sample, ...] = ()
    k: int = DEFAULT_PER_PAGE
    pages: int = 1
    where: Mapping[str, Any] | None = field(default=None, hash=False)
    score_threshold: float | None = None

    def fragment(self) -> str:
        """Return the part of the link after the #, which browsers do not send to servers."""
        pairs = [("collection", self.collection)] if self.collection else []
        pairs += [("more", _to_text(one)) for one in self.positive] + [("less", _to_text(one)) for one in self.negative]
        pairs += [("k", str(self.k))] if self.k != DEFAULT_PER_PAGE else []
        pairs += [("pages", str(self.pages))] if self.pages != 1 else []
        pairs += [("where", json.dumps(self.where, separators=(",", ":")))] if self.where else []
        pairs += [("above", str(self.score_threshold))] if self.score_threshold is not None else []
        return urlencode(pairs, safe=":~", quote_via=quote)

    @property
    def number(self) -> int:
        """The maximum number of results."""
        return min(MAX_SEARCH_K, self.k * self.pages)

    def to_search(self, positive: Sequence[Example] | None = None) -> SearchQuery:
        """Return the search.

        Args:
            positive: replaces the positive examples.

        Raises:
            InvalidRequest, InvalidFilter.
        """
        return SearchQuery(
            [one.to_example() for one in self.positive] if positive is None else positive,
            [one.to_example() for one in self.negative],
            k=self.number,
            where=self.where or None,
            score_threshold=self.score_threshold,
        )


def read_fragment(fragment: str) -> Query:
    """Return the query of a link.

    Raises:
        InvalidRequest: the link is not valid.
    """
    try:
        text = fragment.removeprefix("#")
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=MAX_FIELDS)
        fields = {name: [value for key, value in pairs if key == name] for name, _ in pairs}
        above = [float(value) for value in fields.pop("above", [])]
        query = Query(
            collection=fields.pop("collection", [""])[-1],
            positive=tuple(map(_from_text, fields.pop("more", []))),
            negative=tuple(map(_from_text, fields.pop("less", []))),
            k=int(fields.pop("k", [str(DEFAULT_PER_PAGE)])[-1]),
            pages=int(fields.pop("pages", ["1"])[-1]),
            where=json.loads(fields.pop("where", ["null"])[-1]),
            score_threshold=above[-1] if above else None,
        )
    except (ValueError, binascii.Error) as error:
        raise InvalidRequest("This link is not valid. It may have been cut short or changed.") from error
    if fields or not math.isfinite(query.score_threshold or 0) or not isinstance(query.where, dict | None):
        raise InvalidRequest("This link is not valid: it has an unknown or malformed field.")
    return query


def search_call(query: Query) -> ApiCall:
    """Return the REST call with the same results."""
    path, client = collection_path(query.collection), f"client.collection({query.collection!r})"
    if not query.positive:
        params = {"limit": str(query.number)} | ({"where": json.dumps(query.where)} if query.where else {})
        extra = f", where={dict(query.where)!r}" if query.where else ""
        return ApiCall("GET", f"{path}/items", params=params, call=f"{client}.scroll(limit={query.number}{extra})")
    [first, *others] = query.positive
    if others or query.negative or (first.id is None and (first.path is None or first.unsaved)):
        return ApiCall("POST", f"{path}/search", json=query.to_search().to_json())
    if first.is_item:
        body = query.to_search().to_json()
        return ApiCall("POST", f"{path}/search", json=body, call=f"{client}.search({_arguments(body)})")
    # the user has the image, or can download it: upload it instead of sending a long vector
    name = f"{first.id}.jpg" if first.id is not None else first.name
    downloads = () if first.id is None else ((name, item_path(query.collection, first.id, "/original")),)
    body = query.to_search([Example(image=Path(name), box=first.box)]).to_json(lambda _: None)
    return ApiCall(
        "POST",
        f"{path}/search",
        form={"query": body},
        files=(("image", name),),
        downloads=downloads,
        call=f"{client}.search(image=Path({name!r}), {_arguments(body)})",
    )


def _arguments(body: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in body.items())


def _to_text(sample: Sample) -> str:
    if sample.is_item:
        return sample.id or ""
    return BY_VECTOR + (sample.vector or "").replace("+", "-").replace("/", "_").rstrip("=")


def _from_text(text: str) -> Sample:
    if not text.startswith(BY_VECTOR):
        return Sample(id=check_name(text, "Item id"))
    vector = text.removeprefix(BY_VECTOR)
    data = base64.b64decode(vector + "=" * (-len(vector) % 4), altchars=b"-_", validate=True)
    if not data or len(data) % 4:
        raise ValueError("not a whole number of float32 values")
    return Sample(vector=base64.b64encode(data).decode())
