"""Figures: images beside one another, each with a second one over it that a slider fades.

figures = Figures(elem_id="maps")
return [figure(src, over, caption), ...]
"""

from __future__ import annotations

from typing import Any, ClassVar

from .widget import Widget


class Figures(Widget):
    """The slider is the browser's own affair: it moves without a request."""

    script: ClassVar[str] = "figures.js"


def figure(src: str, over: str, caption: str) -> dict[str, Any]:
    """An image, what lies over it, and what stands below."""
    return {"src": src, "over": over, "caption": caption}
