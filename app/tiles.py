"""Tiles: a wall of pictures to click, loaded by the browser from the REST thumbnails.

Gradio's own gallery copies every picture into its cache and sends it; these are links, so a wall of
a hundred costs the server nothing until the browser scrolls to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

import gradio as gr

# {{ }} escapes; ${ } would not
_TEMPLATE = """
<div class="tiles">{{#each value}}<button type="button" class="tile" data-id="{{id}}">
<img loading="lazy" src="{{src}}" alt=""><span class="caption">{{caption}}</span></button>{{/each}}</div>
"""
_CLICK = """
element.addEventListener('click', event => {
  const tile = event.target.closest('button[data-id]');
  if (tile) trigger('click', {id: tile.dataset.id});
});
"""
CSS = """
.tiles {display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: .75rem}
.tile {border: 1px solid var(--border-color-primary); border-radius: .5rem; overflow: hidden; padding: 0;
  background: var(--block-background-fill); cursor: pointer; text-align: left; color: var(--body-text-color);
  display: flex; flex-direction: column; justify-content: flex-start}
.tile:hover, .tile:focus-visible {outline: 3px solid var(--primary-500)}
.tile img {width: 100%; aspect-ratio: 1; object-fit: cover; display: block; background: var(--border-color-primary)}
.tile .caption {display: block; padding: .35rem .5rem; font-size: .85rem; overflow-wrap: anywhere}
"""


@dataclass(frozen=True)
class Tile:
    """A picture of a collection and what stands below it."""

    id: str
    src: str
    caption: str


def tile(collection: str, id: str, metadata: Mapping[str, Any], score: float | None = None) -> Tile:
    """The tile of an item: its score, if it was found, and its label or else its file's name."""
    name = str(metadata.get("label") or metadata.get("path") or metadata.get("name") or id)
    caption = name if score is None else f"{score:.3f} · {name}"
    return Tile(id, f"/api/v1/collections/{quote(collection)}/items/{quote(id)}/thumbnail", caption)


def tile_wall(elem_id: str) -> gr.HTML:
    """Shows a list of tiles; its `click` carries the id of the one that was clicked."""
    return gr.HTML(value=[], html_template=_TEMPLATE, js_on_load=_CLICK, elem_id=elem_id)


def shown(tiles: list[Tile]) -> list[dict[str, Any]]:
    """Tiles as the component's value."""
    return [asdict(one) for one in tiles]
