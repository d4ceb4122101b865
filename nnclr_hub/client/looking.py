"""What a server's encoder looks at."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.client.pictures import read_image
from nnclr_hub.client.steps import Call, File, Steps, aside, ask, to_json
from nnclr_hub.errors import InvalidRequest

if TYPE_CHECKING:
    from nnclr_hub.client.pictures import ImageLike
    from nnclr_hub.encoder.attention import AttentionMap, Query


def attention(
    image: ImageLike,
    query: Query | None = None,
    target: ImageLike | list[Any] | tuple[Any, ...] | None = None,
    similarity: str = "dot",
    head: int | None = None,
    threshold: float | None = None,
    max_side: int | None = None,
    *,
    model: str | None = None,
    collection: str | None = None,
) -> Steps[AttentionMap | list[AttentionMap]]:
    """What an encoder looks at in an image, as `Encoder.attention`, whose arguments and results it has.

    Args:
        max_side: the long side of the network's input at most, in pixels; None: 1024, or what the server allows.
        model: a name of `list_models`; None: the server's default, or the collection's own.
        collection: whose encoder is to answer.

    Returns:
        The map of the image, or of the one target; a list for a list of targets.

    Raises:
        ImageError: an image that cannot be read.
        InvalidRequest: a question that the network, or the image, has no answer to.
        UnknownModel, CollectionNotFound, FingerprintMismatch.
    """
    several = isinstance(target, list | tuple)
    targets: list[Any] = [] if target is None else list(target) if several else [target]
    if several and not targets:
        raise InvalidRequest("The list of target images is empty: leave target out, or name one.")
    about = {"similarity": similarity, "head": head, "threshold": threshold, "max_side": max_side}
    about |= {"model": model, "collection": collection, **_asked(query)}
    files = yield from aside(lambda: [read_image(one) for one in (image, *targets)])
    parts: list[File] = [("target" if i else "image", file) for i, file in enumerate(files)]
    fields = {"query": to_json({name: value for name, value in about.items() if value is not None})}
    call = Call("POST", "/api/v1/attention", lambda answer: answer.json()["maps"], files=parts, fields=fields)
    told = yield from ask(call)
    shown = [data for _, data in files[1:] or files]
    maps = yield from aside(lambda: [_map(one, data) for one, data in zip(told, shown, strict=True)])
    return maps if several else maps[0]


def _asked(query: Query | None) -> dict[str, Any]:
    """The query as the server takes it."""
    if query is None:
        return {}
    from nnclr_hub.encoder.attention import Box, Point

    if not isinstance(query, Point | Box):
        raise InvalidRequest(f"A query is Point(x, y), Box(x0, y0, x1, y1) or None; this one is {query!r}.")
    return {"point" if isinstance(query, Point) else "box": [float(value) for value in astuple(query)]}


def _map(told: dict[str, Any], data: bytes) -> AttentionMap:
    """What the server told of an image, with the image itself, which is here."""
    from nnclr_hub.encoder.attention.geometry import Axis, Grid
    from nnclr_hub.encoder.attention.maps import AttentionMap
    from nnclr_hub.encoder.decoding import decode_image

    values = np.array(told["values"], np.float32)
    across, down = (
        Axis(values.shape[1 - i], told["first"][i], told["stride"][i], told["input_size"][i], told["size"][i])
        for i in (0, 1)
    )
    low, high = told["limits"]
    return AttentionMap(values, told["kind"], Grid(down, across), (low, high), decode_image(data))
