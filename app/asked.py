"""Asked: what is searched by, as the search tab shows it: an image to draw on, or examples beside one another."""

from __future__ import annotations

from typing import Any

import gradio as gr

from .finding import Finder
from .queries import Query, Sample
from .widgets.drawing import data_uri, image_value
from .widgets.tiles import Tile, thumbnail_path, tile

NO_IMAGE = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 9 9'%3E%3C/svg%3E"
ASKED = ("picker", "drawing", "another", "browse")


def asked(finder: Finder, query: Query) -> dict[str, Any]:
    """The image that is searched by, to draw on; or the place to give one. Updates of ASKED."""
    value = None
    if len(query.more) == 1 and finder.has_image(query.collection, query.more[0]):
        value = image_value(finder.picture(query.collection, query.more[0]), box=query.more[0].box)
    return {
        "picker": gr.update(value=None, visible=not query.more),
        "drawing": gr.update(value=value, visible=value is not None),
        "another": gr.update(visible=bool(query.more)),
        "browse": gr.update(visible=bool(query.more)),
    }


def sample_tiles(finder: Finder, query: Query) -> list[Tile]:
    """The examples, where there are several, or where one has no image to draw on."""
    several = len(query.more) + len(query.less) > 1
    if not several and all(finder.has_image(query.collection, one) for one in query.more):
        return []
    sides = [("more", "+", query.more), ("less", "\N{MINUS SIGN}", query.less)]
    return [
        Tile(f"{side}:{i}", _source(finder, query.collection, one), f"{sign} {_called(finder, query.collection, one)}")
        for side, sign, samples in sides
        for i, one in enumerate(samples)
    ]


def _called(finder: Finder, collection: str, sample: Sample) -> str:
    if sample.id is not None:
        return tile(collection, sample.id, finder.metadata(collection, sample.id)).caption
    return sample.name or "an image"


def _source(finder: Finder, collection: str, sample: Sample) -> str:
    if not finder.has_image(collection, sample):
        return NO_IMAGE
    if sample.id is not None:
        return thumbnail_path(collection, sample.id)
    return data_uri(finder.picture(collection, sample), 128)
