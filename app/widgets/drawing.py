"""Drawing: an image on which a person drags a box or clicks a point, by mouse, by touch or in numbers.

    drawing = Drawing(elem_id="query-image", draws=("box",))
    page.on(drawing.box, handler, [...], [...])         # handler(..., event: gr.EventData); event.box
    return image_value(path_or_bytes)                 # what a handler gives it to show

A box is [x0, y0, x1, y1] and a point [x, y], in pixels of the upright image, whatever size it is shown at; the box
is null when it was taken away. Both come from the browser: `checked_box` and `checked_point` make sure of them.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from nnclr_hub.encoder.decoding import decode_image
from nnclr_hub.errors import InvalidRequest

from .widget import Widget

SHOWN_SIDE = 1024  # pixels; larger images are shown smaller


class Drawing(Widget):
    """Events: `box`, `point`.

    Args:
        draws: what may be drawn: "box", "point" or both.
        says: what the image is, for those who do not see it.
        hint: what to do, if it is not what the kinds say.
    """

    script: ClassVar[str] = "drawing.js"

    def __init__(
        self,
        value: Any = None,
        *,
        draws: Sequence[str] = ("box",),
        says: str = "Your image",
        hint: str = "",
        **options: Any,
    ) -> None:
        super().__init__(value, **{**options, "settings": {"draws": list(draws), "says": says, "hint": hint}})


def image_value(
    image: Path | bytes | Image.Image,
    *,
    box: tuple[float, float, float, float] | None = None,
    point: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """What a Drawing shows: the image upright, with what is drawn on it.

    A JPEG within the value itself: nothing is left on the disk, and formats that browsers lack are seen as well.

    Raises:
        ImageError: it cannot be read.
    """
    upright = decode_image(image)
    return {"src": data_uri(upright), "width": upright.width, "height": upright.height, "box": box, "point": point}


def data_uri(image: Image.Image, side: int = SHOWN_SIDE) -> str:
    """The image as text for an <img>, at most `side` pixels a side."""
    small = image.copy()
    small.thumbnail((side, side), reducing_gap=2.0)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def checked_box(given: Any) -> tuple[float, float, float, float] | None:
    """The box of an event; None if it was taken away.

    Raises:
        InvalidRequest: it is no box.
    """
    if given is None:
        return None
    x0, y0, x1, y1 = _numbers(given, 4, "A box is four numbers x0, y0, x1, y1")
    return x0, y0, x1, y1


def checked_point(given: Any) -> tuple[float, float]:
    """The point of an event.

    Raises:
        InvalidRequest: it is no point.
    """
    x, y = _numbers(given, 2, "A point is two numbers x, y")
    return x, y


def _numbers(given: Any, count: int, what: str) -> list[float]:
    numbers = given if isinstance(given, list) and len(given) == count else []
    good = [n for n in numbers if isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n)]
    if len(good) != count:
        raise InvalidRequest(f"{what} in pixels of the upright image; got {given!r:.80}.")
    return [float(n) for n in good]
