"""Tiles: a wall of images, loaded by the browser from the REST thumbnails as it scrolls to them.

    wall = Tiles(elem_id="hits", actions=("more", "less", "why", "view"), selection=("export", "delete"))
    page.on(wall.open, self.search_on, [...], [...])        # a click on the image: event.id
    page.on(wall.why, self.why, [...], [...])               # a click on an action: event.id
    page.on(wall.export, self.export, [...], [...])         # what is selected: event.ids
    return shown([tile("photos", item.id, item.metadata)])  # what a handler gives it to show

Gradio's own gallery copies every image into its cache and sends it; these are links, so a wall of a hundred costs
the server nothing until somebody looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar
from urllib.parse import quote

from .widget import Widget

MOST_SELECTED = 10_000


@dataclass(frozen=True)
class Tile:
    """An image of a collection and what stands below it."""

    id: str
    src: str
    caption: str
    score: str = ""


class Tiles(Widget):
    """Events: `open`, and each of the actions with the id of a tile; each of the selections with all ids selected.

    Args:
        actions: of each tile, some of those that tiles.js knows: "more", "less", "why", "view", "remove".
        selection: what can be done with several tiles at once: "export", "delete"; none: nothing can be selected.
    """

    script: ClassVar[str] = "tiles.js"

    def __init__(
        self, value: Any = (), *, actions: Sequence[str] = (), selection: Sequence[str] = (), **options: Any
    ) -> None:
        settings = {"actions": list(actions), "selection": list(selection)}
        super().__init__(list(value or ()), **{**options, "settings": settings})


def tile(collection: str, id: str, metadata: Mapping[str, Any], score: float | None = None) -> Tile:
    """The tile of an item: its score, if it was found, and its label or else its file's name."""
    name = str(metadata.get("label") or metadata.get("path") or metadata.get("name") or id)
    return Tile(id, thumbnail_path(collection, id), name, "" if score is None else f"{score:.3f}")


def thumbnail_path(collection: str, id: str) -> str:
    """Where REST has the thumbnail of an item."""
    return f"/api/v1/collections/{quote(collection, safe='')}/items/{quote(id, safe='')}/thumbnail"


def shown(tiles: Sequence[Tile]) -> list[dict[str, Any]]:
    """Tiles as the component's value."""
    return [asdict(one) for one in tiles]
