"""Search: a picture of one's own, or one of the collection, to its nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from ..page import Page
from ..widgets.raw_image import RawImage
from ..widgets.tiles import Tiles, shown, tile

BROWSED = 24  # tiles shown before anything is searched
EMPTY = (
    "There is nothing to search yet. Index a folder of pictures with `nnclr index PHOTOS --collection photos` "
    "into this server's store while it is stopped, or send pictures to `POST /api/v1/collections/NAME/items`; "
    "then reload this page."
)


@dataclass(frozen=True)
class Query:
    """What was searched last, so that another k can repeat it: an uploaded file, or an item."""

    path: str | None = None
    id: str | None = None


class SearchTab:
    """Builds the tab inside an open gr.Tab."""

    def __init__(self, page: Page) -> None:
        self._bench = page.bench
        gr.Markdown(
            "Drop in a picture, or click one below: the encoder turns it into a vector and shows the pictures "
            "with the most similar vectors. It learned from unlabelled pictures alone; labels are only shown."
        )
        with gr.Row():
            with gr.Column(scale=1, min_width=260):
                self.collection = gr.Dropdown([], label="Collection", elem_id="collection", interactive=True)
                self.image = RawImage(
                    type="filepath", label="Your picture", sources=["upload", "webcam", "clipboard"], elem_id="query"
                )
                self.k = gr.Slider(1, 60, value=12, step=1, label="Neighbours", elem_id="k", interactive=True)
                self.back = gr.Button("Back to the collection", elem_id="back", size="sm")
            with gr.Column(scale=3, min_width=300):
                self.status = gr.Markdown(elem_id="status")
                self.tiles = Tiles(elem_id="tiles")
        self.query = gr.State(Query())
        self._wire(page)

    def _wire(self, page: Page) -> None:
        shown_by = [self.status, self.tiles, self.query]
        page.on(page.blocks.load, self.start, None, [self.collection, *shown_by])
        page.on(self.collection.input, self.browse, self.collection, shown_by)
        page.on(self.back.click, self.browse, self.collection, shown_by)
        page.on(self.image.upload, self.search_picture, [self.image, self.collection, self.k], shown_by)
        page.on(self.image.clear, self.browse, self.collection, shown_by)
        page.on(self.tiles.open, self.search_clicked, [self.collection, self.k], shown_by)
        page.on(self.k.release, self.search_again, [self.query, self.collection, self.k], shown_by)

    # ---- what happens

    def start(self) -> tuple[Any, str, list[dict[str, Any]], Query]:
        """The collections, and the first pictures of one."""
        names = [info.name for info in self._bench.store.list() if info.count] or [
            info.name for info in self._bench.store.list()
        ]
        if not names:
            return gr.Dropdown(choices=[], value=None), EMPTY, [], Query()
        return gr.Dropdown(choices=names, value=names[0]), *self.browse(names[0])

    def browse(self, name: str | None) -> tuple[str, list[dict[str, Any]], Query]:
        """The first pictures of a collection."""
        if not name:
            return EMPTY, [], Query()
        collection = self._bench.collection(name)
        items = collection.scroll(limit=BROWSED).items
        status = (
            f"**{name}** holds {collection.count()} pictures. Click one to find its neighbours, or upload your own."
        )
        return status, shown([tile(name, item.id, item.metadata) for item in items]), Query()

    def search_picture(self, path: str | None, name: str | None, k: float) -> tuple[str, list[dict[str, Any]], Query]:
        """Neighbours of an uploaded file."""
        return self._found(Query(path=path), name, int(k), "your picture")

    def search_clicked(
        self, name: str | None, k: float, event: gr.EventData
    ) -> tuple[str, list[dict[str, Any]], Query]:
        """Neighbours of the tile that was clicked."""
        return self._found(Query(id=str(event.id)), name, int(k), "the picture that you clicked")

    def search_again(self, query: Query, name: str | None, k: float) -> tuple[str, list[dict[str, Any]], Query]:
        """The last search with another number of neighbours."""
        if query == Query():
            return self.browse(name)
        return self._found(query, name, int(k), "your picture" if query.path else "the picture that you clicked")

    def _found(self, query: Query, name: str | None, k: int, what: str) -> tuple[str, list[dict[str, Any]], Query]:
        if not name:
            return EMPTY, [], Query()
        if query.path is None and query.id is None:
            return self.browse(name)
        image = None if query.path is None else Path(query.path)
        matches = self._bench.search(name, image=image, id=query.id, k=k)
        tiles = [tile(name, match.id, match.metadata, match.score) for match in matches]
        if query.id is not None:  # the picture itself stands first, as what the others are compared with
            item = self._bench.collection(name).get([query.id])[0]
            tiles.insert(0, tile(name, item.id, item.metadata, 1.0))
        return f"The {len(matches)} nearest to {what}, in **{name}**; 1 is the same direction.", shown(tiles), query
