"""The Search tab: find the images that are most similar to an uploaded image or to items of the collection."""

from __future__ import annotations

from typing import Any

import gradio as gr

from nnclr_hub.encoder.decoding import decode_image

from ..filters import IS, RELATIONS
from ..finder import Results, to_csv
from ..gallery import examples
from ..item_views import explain_match, original_view
from ..page import Page
from ..query import DEFAULT_PER_PAGE, MAX_PER_PAGE, Query
from ..search_handlers import FIELDS, SearchHandlers
from ..widgets.drawing import Drawing, data_uri
from ..widgets.inputs import BoundedSlider, raw_image
from ..widgets.outputs import Address, Download, Viewer, file_value
from ..widgets.tiles import Tile, Tiles, tiles_value

INTRO = (
    "Upload an image or click one to find the **most similar images**. The search compares images only, since the "
    "encoder was trained without labels and does not understand text. You can filter by labels and other metadata."
)
LAST_WINS: dict[str, Any] = {"trigger_mode": "always_last"}  # of several quick events, run the last one


class SearchTab:
    """Build the tab inside an open gr.Tab."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._handlers = SearchHandlers(page)
        self.query, self.history = gr.State(Query()), gr.State({})
        self.results = gr.State(Results([], False, False))
        gr.Markdown(INTRO, elem_id="intro")
        with gr.Row(elem_classes="search-row"):
            with gr.Column(scale=1, min_width=280):
                self._build_controls()
            with gr.Column(scale=3, min_width=300):
                self._build_results()
        self.viewer, self.save = Viewer(elem_id="viewer"), Download(elem_id="save")
        self._wire(page)

    def _build_controls(self) -> None:
        self.collection = gr.Dropdown([], label="Collection", elem_id="collection", interactive=True)
        self.picker = raw_image("Your image", elem_id="query")
        self.drawing = Drawing(elem_id="query-image", alt="The image to search by", visible=False)
        self.another = gr.Button("Another image", elem_id="another", size="sm", visible=False)
        self.samples = Tiles(elem_id="samples", actions=("remove",))
        photos = {name: data_uri(decode_image(path), 160) for name, path in examples().items()}
        if photos:
            gr.Markdown("Or try an example:", elem_classes="small")
        self.tries = Tiles(tiles_value([Tile(name, src, name) for name, src in photos.items()]), elem_id="tries")
        with gr.Accordion("Filter and options", open=False, elem_id="options"):
            self.k = BoundedSlider(
                1,
                MAX_PER_PAGE,
                value=DEFAULT_PER_PAGE,
                step=1,
                label="Images per page",
                elem_id="k",
                interactive=True,
                buttons=[],
            )
            self.score_threshold = gr.Textbox(
                "", label="Minimum score", placeholder="none", max_lines=1, elem_id="score-threshold", interactive=True
            )
            gr.Markdown("Filter by metadata", elem_classes="small")
            self.key = gr.Dropdown(
                [], label="Field", elem_id="filter-key", interactive=True, allow_custom_value=True, value=None
            )
            self.relation = gr.Dropdown(list(RELATIONS), value=IS, label="Condition", elem_id="filter-relation")
            self.value = gr.Textbox("", label="Value", elem_id="filter-value", max_lines=1)
            with gr.Row():
                self.add = gr.Button("Add filter", elem_id="filter-add", size="sm", min_width=90)
                self.clear = gr.Button("Clear filter", elem_id="filter-clear", size="sm", min_width=90)
            self.where = gr.Textbox(
                "", label="Filter as JSON, as in REST", lines=2, max_lines=8, elem_id="where", interactive=True
            )

    def _build_results(self) -> None:
        self.status = gr.Markdown(elem_id="status")
        with gr.Row(elem_classes="bar"):
            self.browse = gr.Button(
                "Show the whole collection", elem_id="browse", size="sm", min_width=190, scale=0, visible=False
            )
            self.address = Address(elem_id="address")
        selection = ("export", "delete") if self._page.writable else ("export",)
        self.tiles = Tiles(elem_id="tiles", actions=("more", "less", "why", "view"), selection=selection)
        self.next = gr.Button("Show more", elem_id="next", visible=False)

    def _wire(self, page: Page) -> None:
        do, now = self._handlers, [self.query, self.history]
        out = [getattr(self, name) for name in FIELDS]
        stored, pickers = page.stored.collection, [self.collection, self.key]
        page.on(page.blocks.load, do.start, [self.address, self.history, stored], [*pickers, stored, *out], js=HASH)
        page.on(page.tab.select, do.refresh, [*now, self.results, stored], [*pickers, *out])
        choice = [self.collection, self.history, self.k]
        page.on(self.collection.input, do.choose, choice, [self.key, stored, *out], **LAST_WINS)
        page.on(self.address.back, do.reopen, [self.history, stored], [self.collection, stored, *out], **LAST_WINS)
        uploaded = page.on(self.picker.input, do.upload, [self.picker, *now, self.k], out)
        page.clear_on_failure(uploaded, self.picker)
        page.on(self.tries.open, do.try_example, [*now, self.k], out, **LAST_WINS)
        page.on(self.drawing.box, do.box, now, out, **LAST_WINS)
        page.on(self.tiles.open, do.open, [*now, self.k], out, **LAST_WINS)
        page.on(self.tiles.more, do.more, now, out)
        page.on(self.tiles.less, do.less, now, out)
        page.on(self.samples.remove, do.remove, now, out)
        page.on(self.another.click, do.browse, now, out)
        page.on(self.browse.click, do.browse, now, out)
        page.on(self.next.click, do.next, [*now, self.k], out)
        for event in (self.k.release, self.score_threshold.submit, self.score_threshold.blur, self.where.blur):
            page.on(event, do.change, [*now, self.k, self.score_threshold, self.where], out, **LAST_WINS)
        page.on(self.add.click, do.add_filter, [*now, self.key, self.relation, self.value], out)
        page.on(self.clear.click, do.clear_filter, now, out)
        page.on(self.tiles.view, self._view, self.query, self.viewer)
        page.on(self.tiles.why, self._explain, self.query, self.viewer, show_progress="minimal")
        page.on(self.tiles.export, self._export, [self.query, self.results], self.save)
        if page.writable:
            page.on(self.tiles.delete, do.delete, now, out, writes=True)

    # ---- handlers that do not change the query

    def _view(self, query: Query, event: gr.EventData) -> dict[str, Any]:
        return original_view(self._handlers.finder, query.collection, str(event.id))

    def _explain(self, query: Query, event: gr.EventData) -> dict[str, Any]:
        value, call = explain_match(self._page.bench, self._handlers.finder, query, str(event.id))
        self._page.note(call)
        return value

    def _export(self, query: Query, results: Results, event: gr.EventData) -> dict[str, Any]:
        ids = [id for id in event.ids if isinstance(id, str)]
        return file_value(f"{query.collection}.csv", to_csv(results.matches, ids, scored=results.scored))


# Pass the link to `start`. After a reload, the collection that was chosen last wins over that of the link.
HASH = """(address, history, stored) => {
  const linked = new URLSearchParams(location.hash.slice(1)).get('collection');
  const reloaded = performance.getEntriesByType('navigation')[0]?.type === 'reload';
  return [reloaded && stored && linked !== stored ? '' : location.hash, {}, stored];
}"""
