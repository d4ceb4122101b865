"""Drawing: an image on which the user drags a box or clicks a point, by mouse, touch or typed numbers.

    drawing = Drawing(elem_id="query-image", draws=("box",))
    page.on(drawing.box, handler, [...], [...])         # handler(..., event: gr.EventData); event.box
    return image_value(path_or_bytes)                   # the value that a handler returns

A box is [x0, y0, x1, y1] and a point is [x, y], in pixels of the upright image, whatever size it is shown at. A removed
box is null. Both come from the browser; `checked_box` and `checked_point` validate them.
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

SHOWN_SIDE = 1024  # pixels; larger images are scaled down


class Drawing(Widget):
    """Events: `box`, `point`.

    Args:
        draws: the shapes that can be drawn: "box", "point" or both.
        alt: the alternative text of the image.
    """

    script: ClassVar[str] = "drawing.js"

    def __init__(
        self,
        value: Any = None,
        *,
        draws: Sequence[str] = ("box",),
        alt: str = "Your image",
        **options: Any,
    ) -> None:
        super().__init__(value, **{**options, "settings": {"draws": list(draws), "alt": alt}})


def image_value(
    image: Path | bytes | Image.Image,
    *,
    box: tuple[float, float, float, float] | None = None,
    point: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """Return a Drawing value: the upright image and the shapes on it.

    The value contains the image as a JPEG. Nothing stays on the disk, and formats that browsers lack are visible too.

    Raises:
        ImageError: the image cannot be read.
    """
    upright = decode_image(image)
    return {"src": data_uri(upright), "width": upright.width, "height": upright.height, "box": box, "point": point}


def data_uri(image: Image.Image, side: int = SHOWN_SIDE) -> str:
    """Return the image as a data URI, at most `side` pixels wide and high."""
    small = image.copy()
    small.thumbnail((side, side), reducing_gap=2.0)
    file = io.BytesIO()
    small.save(file, "JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def checked_box(value: Any) -> tuple[float, float, float, float] | None:
    """Return the box of an event; None if it was removed.

    Raises:
        InvalidRequest: it is not a box.
    """
    if value is None:
        return None
    x0, y0, x1, y1 = _numbers(value, 4, "A box must be four numbers x0, y0, x1, y1")
    return x0, y0, x1, y1


def checked_point(value: Any) -> tuple[float, float]:
    """Return the point of an event.

    Raises:
        InvalidRequest: it is not a point.
    """
    x, y = _numbers(value, 2, "A point must be two numbers x, y")
    return x, y


def _numbers(value: Any, count: int, rule: str) -> list[float]:
    numbers = value if isinstance(value, list) and len(value) == count else []
    valid = [n for n in numbers if isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n)]
    if len(valid) != count:
        raise InvalidRequest(f"{rule} in pixels of the upright image, got {value!r:.80}.")
    return [float(n) for n in valid]
