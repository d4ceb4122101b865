"""Tiles: a grid of images, whose thumbnails the browser loads from REST while it scrolls.

    grid = Tiles(elem_id="tiles", actions=("more", "less", "why", "view"), selection=("export", "delete"))
    page.on(grid.open, self.open, [...], [...])             # a click on an image: event.id
    page.on(grid.why, self.explain, [...], [...])           # a click on an action: event.id
    page.on(grid.export, self.export, [...], [...])         # the selected images: event.ids
    return tiles_value([tile("photos", item.id, item.metadata)])    # the value that a handler returns

Gradio's own gallery copies each image into its cache and sends it. These tiles are links, so the server sends only the
thumbnails that are visible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from ..api_calls import item_path
from .widget import Widget

MAX_SELECTED = 10_000


@dataclass(frozen=True)
class Tile:
    """An image of a collection, its caption and its score."""

    id: str
    src: str
    caption: str
    score: str = ""


class Tiles(Widget):
    """Events: `open` and each action, with event.id; each selection command, with event.ids.

    Args:
        actions: buttons of each tile, out of those in tiles.js: "more", "less", "why", "view", "remove".
        selection: commands for several tiles: "export", "delete"; without any, tiles cannot be selected.
    """

    script: ClassVar[str] = "tiles.js"

    def __init__(
        self, value: Any = (), *, actions: Sequence[str] = (), selection: Sequence[str] = (), **options: Any
    ) -> None:
        settings = {"actions": list(actions), "selection": list(selection)}
        super().__init__(list(value or ()), **{**options, "settings": settings})


def tile(collection: str, id: str, metadata: Mapping[str, Any], score: float | None = None) -> Tile:
    """Return the tile of an item; the caption is its label, else its file name, else its id."""
    caption = str(metadata.get("label") or metadata.get("path") or metadata.get("name") or id)
    return Tile(id, thumbnail_path(collection, id), caption, "" if score is None else f"{score:.3f}")


def thumbnail_path(collection: str, id: str) -> str:
    """Return the REST path of an item's thumbnail."""
    return item_path(collection, id, "/thumbnail")


def tiles_value(tiles: Sequence[Tile]) -> list[dict[str, Any]]:
    """Return a Tiles value."""
    return [asdict(one) for one in tiles]
