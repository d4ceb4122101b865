"""Questions of REST about attention: what the library is asked, and how its maps are sent.

maps = await model.look_async(settings_of(question, 1024), image, targets)
response = rendered(maps, PNG, question, "default")      # in a thread: of a large image it takes seconds
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi.responses import Response

from nnclr_hub.encoder.attention import MAX_SIDE, AttentionMap, AttentionSettings, Box, Point, check_opacity
from nnclr_hub.encoder.decoding import MAX_PIXELS
from nnclr_hub.errors import InvalidRequest, RequestTooLarge

from .responses import JSON, NPY, PNG, VectorResponse, array_response
from .schemas import AttentionQuestion

AT_ONCE = 3  # questions in work: one is decoded, one on the device, one rendered, each with all its images in memory
WAITING = 64
MOST_DRAWN = MAX_PIXELS  # pixels of all PNGs in one JSON


def settings_of(question: AttentionQuestion, most_side: int) -> AttentionSettings:
    """What the library is asked.

    Raises:
        InvalidRequest: a point and a box, a side above `most_side`, or what the library refuses.
    """
    if question.point is not None and question.box is not None:
        raise InvalidRequest("A question has a point or a box, not both: leave one of them out.")
    query = None if question.point is None else Point(*question.point)
    if question.box is not None:
        query = Box(*question.box)
    side = min(MAX_SIDE, most_side) if question.max_side is None else question.max_side
    if side > most_side:
        raise InvalidRequest(f"max_side={side} is more than this server gives an image: ask for {most_side} at most.")
    return AttentionSettings(query, question.similarity, question.head, question.threshold, side)


def check_kind(question: AttentionQuestion, kind: str, targets: int) -> None:
    """Refuses what cannot be sent in that form, before anything is computed.

    Raises:
        InvalidRequest: one sentence.
    """
    check_opacity(question.opacity)
    if kind == PNG and targets > 1:
        raise InvalidRequest(
            f"A PNG shows one map, and there are {targets} targets: send one, or take JSON with with_png."
        )
    if kind != JSON and question.with_png:
        raise InvalidRequest("with_png goes with JSON: leave it out, or ask for application/json.")


def rendered(
    maps: Sequence[AttentionMap], kind: str, question: AttentionQuestion, model: str, targets: int
) -> Response:
    """The maps as JSON, NPY or PNG.

    Raises:
        InvalidRequest: maps of several shapes, which make no one array.
        RequestTooLarge: JSON with more of PNG than is kept in memory for one answer.
    """
    if kind == PNG:
        return Response(maps[0].png(question.opacity), media_type=PNG, headers={"Vary": "Accept"})
    if kind == NPY:
        return array_response(_stacked(maps) if targets else maps[0].values, NPY)
    pixels = sum(width * height for width, height in (one.size for one in maps))
    if question.with_png and pixels > MOST_DRAWN:
        raise RequestTooLarge(
            f"with_png would draw {pixels / 1e6:.0f} megapixels into one answer, and {MOST_DRAWN / 1e6:g} go: ask for "
            "image/png, one target at a time."
        )
    return VectorResponse({"model": model, "maps": [_entry(one, question) for one in maps]}, headers={"Vary": "Accept"})


def _stacked(maps: Sequence[AttentionMap]) -> np.ndarray:
    """(n, h, w) float32."""
    shapes = dict.fromkeys(one.values.shape for one in maps)
    if len(shapes) > 1:
        told = ", ".join(f"{height} x {width}" for height, width in shapes)
        raise InvalidRequest(f"The maps have the shapes {told}, which make no one array: take JSON.")
    return np.stack([one.values for one in maps])


def _entry(one: AttentionMap, question: AttentionQuestion) -> dict[str, Any]:
    # the array itself is written with the digits that float32 has
    entry = {**one.describe(), "values": one.values, "shape": one.values.shape}
    if question.with_png:
        entry["png"] = base64.b64encode(one.png(question.opacity)).decode()
    return entry
