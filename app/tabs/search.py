"""Search: an image of one's own, or one of the collection, to the images that are most like it."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ..filters import IS, RELATIONS
from ..finding import Found, csv_of
from ..gallery import examples
from ..looking import why
from ..originals import original_view
from ..page import Page
from ..queries import FIRST, MOST_AT_A_TIME, Query
from ..steps import FIELDS, Steps
from ..widgets.address import Address
from ..widgets.bounded_slider import BoundedSlider
from ..widgets.download import Download, file_value
from ..widgets.drawing import Drawing, data_uri
from ..widgets.raw_image import raw_image
from ..widgets.tiles import Tile, Tiles, shown
from ..widgets.viewer import Viewer

INTRO = (
    "Give an image, or click one: you get those that **look most like it**. The encoder learned to see from images "
    "without labels and knows no words, so one asks it with an image; the names below are only shown, and *Narrow it "
    "down* can filter by them."
)
ONE_AT_A_TIME: dict[str, Any] = {"trigger_mode": "always_last"}  # of several quick actions the last one counts


class SearchTab:
    """Builds the tab inside an open gr.Tab."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._steps = Steps(page)
        self.query, self.past, self.hits = gr.State(Query()), gr.State({}), gr.State(Found([], False, False))
        gr.Markdown(INTRO, elem_id="intro")
        with gr.Row(elem_classes="search-row"):
            with gr.Column(scale=1, min_width=280):
                self._ask()
            with gr.Column(scale=3, min_width=300):
                self._show()
        self.viewer, self.save = Viewer(elem_id="viewer"), Download(elem_id="save")
        self._wire(page)

    # ---- what stands there

    def _ask(self) -> None:
        self.collection = gr.Dropdown([], label="Collection", elem_id="collection", interactive=True)
        self.picker = raw_image("Your image", elem_id="query")
        self.drawing = Drawing(elem_id="query-picture", says="The image that is searched by", visible=False)
        self.another = gr.Button("Another image", elem_id="another", size="sm", visible=False)
        self.samples = Tiles(elem_id="samples", actions=("remove",))
        photos = examples()
        if photos:
            gr.Markdown("Or try one of these:", elem_classes="small")
        self.tries = Tiles(shown([Tile(name, _small(path), name) for name, path in photos.items()]), elem_id="tries")
        with gr.Accordion("Narrow it down", open=False, elem_id="narrow"):
            self.k = BoundedSlider(
                1,
                MOST_AT_A_TIME,
                value=FIRST,
                step=1,
                label="How many at a time",
                elem_id="k",
                interactive=True,
                buttons=[],
            )
            self.above = gr.Textbox(
                "", label="Least score", placeholder="all", max_lines=1, elem_id="above", interactive=True
            )
            gr.Markdown("Only images whose ...", elem_classes="small")
            self.key = gr.Dropdown(
                [], label="Field", elem_id="filter-key", interactive=True, allow_custom_value=True, value=None
            )
            self.relation = gr.Dropdown(list(RELATIONS), value=IS, label="Relation", elem_id="filter-relation")
            self.value = gr.Textbox("", label="Value", elem_id="filter-value", max_lines=1)
            with gr.Row():
                self.add = gr.Button("Add filter", elem_id="filter-add", size="sm", min_width=90)
                self.clear = gr.Button("Clear filter", elem_id="filter-clear", size="sm", min_width=90)
            self.where = gr.Textbox(
                "",
                label="The filter as JSON, as REST takes it",
                lines=2,
                max_lines=8,
                elem_id="where",
                interactive=True,
            )

    def _show(self) -> None:
        self.status = gr.Markdown(elem_id="status")
        with gr.Row(elem_classes="bar"):
            self.browse = gr.Button(
                "The whole collection", elem_id="browse", size="sm", min_width=190, scale=0, visible=False
            )
            self.address = Address(elem_id="address")
        selection = ("export", "delete") if self._page.writable else ("export",)
        self.tiles = Tiles(elem_id="tiles", actions=("more", "less", "why", "view"), selection=selection)
        self.next = gr.Button("Show more", elem_id="next", visible=False)

    def _wire(self, page: Page) -> None:
        do, now = self._steps, [self.query, self.past]
        out = [getattr(self, name) for name in FIELDS]
        chosen, pickers = page.kept.collection, [self.collection, self.key]
        page.on(page.blocks.load, do.start, [self.address, self.past, chosen], [*pickers, chosen, *out], js=HASH)
        page.on(page.tab.select, do.refresh, [*now, self.hits, chosen], [*pickers, *out])
        choice = [self.collection, self.past, self.k]
        page.on(self.collection.input, do.choose, choice, [self.key, chosen, *out], **ONE_AT_A_TIME)
        page.on(self.address.back, do.reopen, [self.past, chosen], [self.collection, chosen, *out], **ONE_AT_A_TIME)
        given = page.on(self.picker.input, do.upload, [self.picker, *now, self.k], out)
        page.clear_on_failure(given, self.picker)
        page.on(self.tries.open, do.try_example, [*now, self.k], out, **ONE_AT_A_TIME)
        page.on(self.drawing.box, do.box, now, out, **ONE_AT_A_TIME)
        page.on(self.tiles.open, do.open, [*now, self.k], out, **ONE_AT_A_TIME)
        page.on(self.tiles.more, do.more, now, out)
        page.on(self.tiles.less, do.less, now, out)
        page.on(self.samples.remove, do.remove, now, out)
        page.on(self.another.click, do.browse, now, out)
        page.on(self.browse.click, do.browse, now, out)
        page.on(self.next.click, do.next, [*now, self.k], out)
        for event in (self.k.release, self.above.submit, self.above.blur, self.where.blur):
            page.on(event, do.change, [*now, self.k, self.above, self.where], out, **ONE_AT_A_TIME)
        page.on(self.add.click, do.add_filter, [*now, self.key, self.relation, self.value], out)
        page.on(self.clear.click, do.clear_filter, now, out)
        page.on(self.tiles.view, self._view, self.query, self.viewer)
        page.on(self.tiles.why, self._why, self.query, self.viewer, show_progress="minimal")
        page.on(self.tiles.export, self._export, [self.query, self.hits], self.save)
        if page.writable:
            page.on(self.tiles.delete, do.delete, now, out, writes=True)

    # ---- what leaves the query as it is

    def _view(self, query: Query, event: gr.EventData) -> dict[str, Any]:
        """The original of an image, or its thumbnail, and says which."""
        return original_view(self._steps.finder, query.collection, str(event.id))

    def _why(self, query: Query, event: gr.EventData) -> dict[str, Any]:
        """What of the query was found on a hit."""
        value, action = why(self._page.bench, self._steps.finder, query, str(event.id))
        self._page.did(action)
        return value

    def _export(self, query: Query, found: Found, event: gr.EventData) -> dict[str, Any]:
        """What is selected, as a file."""
        ids = [id for id in event.ids if isinstance(id, str)]
        return file_value(f"{query.collection}.csv", csv_of(found.hits, ids, scored=found.scored))


# the link; a reload goes on with the collection that was chosen last, though a search in another one stood there
HASH = """(address, past, kept) => {
  const there = new URLSearchParams(location.hash.slice(1)).get('collection');
  const again = performance.getEntriesByType('navigation')[0]?.type === 'reload';
  return [again && kept && there !== kept ? '' : location.hash, {}, kept];
}"""


def _small(path: Any) -> str:
    from nnclr_hub.encoder.decoding import decode_image

    return data_uri(decode_image(path), 160)
