"""Viewer: images in a window over the page, with a sentence on what they show.

viewer = Viewer(elem_id="viewer")
return view("Why this?", [Shown(src, "your image")], "Bright is where ...")
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from .widget import Widget


@dataclass(frozen=True)
class Shown:
    """An image, what it is, and where a click on it leads."""

    src: str
    caption: str
    href: str = ""


class Viewer(Widget):
    """A dialog: Escape and its button close it."""

    script: ClassVar[str] = "viewer.js"


def view(
    title: str, pictures: Sequence[Shown], note: str = "", facts: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a Viewer opens with.

    Args:
        facts: shown as a table of names and values.
    """
    rows = [[str(name), str(value)] for name, value in (facts or {}).items()]
    mark = secrets.token_hex(4)  # the same again opens it again
    return {"title": title, "pictures": [asdict(one) for one in pictures], "note": note, "facts": rows, "mark": mark}
