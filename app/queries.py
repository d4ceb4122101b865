"""Query: what the search tab shows, as a value: it is the link, the history's entry and the REST call.

query = Query("photos", more=(Sample(id="a"),), k=12)
query.fragment()                        # "collection=photos&k=12&more=a"
read_fragment("#collection=photos&more=a") == query
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import numpy as np

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.checks import MAX_ASKED_K, check_name

from .actions import Action, original_path

MOST_SAMPLES = 16
FIRST, MOST_AT_A_TIME = 24, 100  # images shown
MOST_FIELDS = MOST_SAMPLES + 8  # of a link
BY_VECTOR = "v:"  # what no id begins with
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Sample:
    """An image to be near to, or away from.

    id: of an item of the collection.
    vector: of an image that is none, or of a box: (D,) little-endian float32 as base64.
    path: of an image on this server's disk, an upload's or an example's; a link does not hold it.
    box: on the image, in pixels.
    name: of the file.
    lent: whether the person has no such file: the photo is one of ours to try, or was pasted or taken by the camera.
    """

    id: str | None = None
    vector: str | None = None
    path: Path | None = None
    box: Box | None = None
    name: str = ""
    lent: bool = False

    @property
    def is_item(self) -> bool:
        """Whether it is a whole item, which a search knows by its id."""
        return self.id is not None and self.box is None

    def array(self) -> np.ndarray:
        """(D,) float32 of its vector."""
        return np.frombuffer(base64.b64decode(self.vector or ""), "<f4").astype(np.float32)


@dataclass(frozen=True)
class Query:
    """See the module.

    more, less: to be near to, and away from; without any the collection is shown as it is.
    k: how many to show at a time.
    pages: how many times as many are shown.
    where: filter, as in REST.
    above: scores that are lower are left out.
    """

    collection: str = ""
    more: tuple[Sample, ...] = ()
    less: tuple[Sample, ...] = ()
    k: int = FIRST
    pages: int = 1
    where: Mapping[str, Any] | None = field(default=None, hash=False)
    above: float | None = None

    def fragment(self) -> str:
        """What stands behind the # of its link: read by the browser alone, and sent to nobody with the link."""
        pairs = [("collection", self.collection)] if self.collection else []
        pairs += [("more", _text(one)) for one in self.more] + [("less", _text(one)) for one in self.less]
        pairs += [("k", str(self.k))] if self.k != FIRST else []
        pairs += [("pages", str(self.pages))] if self.pages != 1 else []
        pairs += [("where", json.dumps(self.where, separators=(",", ":")))] if self.where else []
        pairs += [("above", str(self.above))] if self.above is not None else []
        return urlencode(pairs, safe=":~", quote_via=quote)

    @property
    def number(self) -> int:
        """How many are shown, if there are as many."""
        return min(MAX_ASKED_K, self.k * self.pages)

    @property
    def options(self) -> dict[str, Any]:
        """The search's options as REST has them."""
        given = {"where": self.where or None, "score_threshold": self.above}
        return {name: value for name, value in given.items() if value is not None}


def read_fragment(fragment: str) -> Query:
    """The query of a link.

    Raises:
        InvalidRequest: it cannot be read.
    """
    try:
        text = fragment.removeprefix("#")
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=MOST_FIELDS)
        given = {name: [value for key, value in pairs if key == name] for name, _ in pairs}
        above = [float(value) for value in given.pop("above", [])]
        query = Query(
            collection=given.pop("collection", [""])[-1],
            more=tuple(map(_sample, given.pop("more", []))),
            less=tuple(map(_sample, given.pop("less", []))),
            k=int(given.pop("k", [str(FIRST)])[-1]),
            pages=int(given.pop("pages", ["1"])[-1]),
            where=json.loads(given.pop("where", ["null"])[-1]),
            above=above[-1] if above else None,
        )
    except (ValueError, binascii.Error) as error:
        raise InvalidRequest("This link cannot be read: it was cut short or changed on its way.") from error
    if given or not math.isfinite(query.above or 0) or not isinstance(query.where, dict | None):
        raise InvalidRequest("This link cannot be read: it holds what no search has.")
    return query


def action_of(query: Query) -> Action:
    """The REST call that finds the same."""
    path = f"/api/v1/collections/{quote(query.collection, safe='')}"
    if not query.more:
        page = {"limit": str(query.number)} | ({"where": json.dumps(query.where)} if query.where else {})
        extra = f", where={dict(query.where)!r}" if query.where else ""
        call = f"client.collection({query.collection!r}).scroll(limit={query.number}{extra})"
        return Action("GET", f"{path}/items?{urlencode(page)}", call=call)
    body: dict[str, Any] = {"k": query.number, **query.options}
    [first, *others] = query.more
    if not others and not query.less:
        extra = "".join(f", {name}={value!r}" for name, value in body.items())
        start = f"client.collection({query.collection!r}).search("
        if first.is_item:
            return Action(
                "POST", f"{path}/search", json={"id": first.id, **body}, call=f"{start}id={first.id!r}{extra})"
            )
        if first.id is not None or (first.path is not None and not first.lent):
            name = f"{first.id}.jpg" if first.id is not None else first.name
            fetched = () if first.id is None else ((name, original_path(query.collection, first.id)),)
            box = {"box": list(first.box)} if first.box else {}
            more = f", box={tuple(first.box)!r}" if first.box else ""
            return Action(
                "POST",
                f"{path}/search",
                form={"query": {**box, **body}},
                files=(("image", name),),
                fetched=fetched,
                call=f"{start}image=Path({name!r}){more}{extra})",
            )
    body |= {"positive": [_json(one) for one in query.more]} | (
        {"negative": [_json(one) for one in query.less]} if query.less else {}
    )
    return Action("POST", f"{path}/search", json=body)


def _json(sample: Sample) -> dict[str, Any]:
    return {"id": sample.id} if sample.is_item else {"vector": sample.vector}


def _text(sample: Sample) -> str:
    if sample.is_item:
        return sample.id or ""
    return BY_VECTOR + (sample.vector or "").replace("+", "-").replace("/", "_").rstrip("=")


def _sample(text: str) -> Sample:
    if not text.startswith(BY_VECTOR):
        return Sample(id=check_name(text, "Item id"))
    vector = text.removeprefix(BY_VECTOR)
    data = base64.b64decode(vector + "=" * (-len(vector) % 4), altchars=b"-_", validate=True)
    if not data or len(data) % 4:
        raise ValueError("no whole number of float32")
    return Sample(vector=base64.b64encode(data).decode())
