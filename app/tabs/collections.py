"""Collections: make one, put images into it, look through it, take things away again."""

from __future__ import annotations

from typing import Any

import gradio as gr

from nnclr_hub.errors import InvalidRequest

from ..additions import Additions, name_of, new_name
from ..originals import original_view
from ..page import Page
from ..shelf import FIELDS, Shelf, Shelves
from ..steps import plain
from ..widgets.intake import Intake
from ..widgets.tiles import Tiles
from ..widgets.viewer import Viewer
from ..widgets.works import Works

INTRO = (
    "A **collection** is a set of images that are searched together. What you add here stays on this server, and "
    "goes on being added when you close the page."
)
INTRO_READ_ONLY = "A **collection** is a set of images that are searched together. This server shows them only."
GO_SEARCH = "() => document.querySelector('#tabs button[role=tab]').click()"  # it is the first
SHOW_SURE = "() => requestAnimationFrame(() => document.querySelector('#drop-sure')?.scrollIntoView({block: 'end'}))"


class CollectionsTab:
    """Builds the tab inside an open gr.Tab."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._shelves, self._additions = Shelves(page), Additions(page)
        self.shelf, self.doomed = gr.State(Shelf()), gr.State("")
        gr.Markdown(INTRO if page.writable else INTRO_READ_ONLY)
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                self._ask()
            with gr.Column(scale=3, min_width=300):
                self._show()
        self.viewer = Viewer(elem_id="shelf-viewer")
        self._wire(page)
        if page.writable:
            self._wire_writing(page)
        if page.adds:
            self._wire_adding(page)

    # ---- what stands there

    def _ask(self) -> None:
        self.picker = gr.Dropdown([], label="Collection", elem_id="shelf-collection", interactive=True, visible=False)
        self.intake: Any = gr.State()  # in its place where nothing is added
        if self._page.adds:
            self.intake = Intake(elem_id="intake", most_bytes=self._page.terms.max_bytes, visible=False)
            self.works = Works(elem_id="works")
            self._ask_for_folder()
        if self._page.writable:
            with gr.Group():
                self.name = gr.Textbox(
                    label="A new collection", placeholder="holidays", max_lines=1, elem_id="new-name"
                )
                self.create = gr.Button("Create", elem_id="create", variant="primary")

    def _ask_for_folder(self) -> None:
        sources = self._additions.sources()
        if not sources:
            return
        with gr.Accordion("Or a folder of this machine", open=False, elem_id="server-folder"):
            self.source = gr.Dropdown(sources, value=sources[0], label="In", elem_id="source", interactive=True)
            self.folder = gr.Textbox(
                label="Folder below it", placeholder="all of it", max_lines=1, elem_id="source-folder"
            )
            self.add_folder = gr.Button("Add its images", elem_id="source-add")

    def _show(self) -> None:
        self.status = gr.Markdown(elem_id="shelf-status")
        selection = ("delete",) if self._page.writable else ()
        self.tiles = Tiles(elem_id="shelf", selection=selection)
        with gr.Row(elem_classes="bar"):
            self.previous = gr.Button("Previous page", elem_id="shelf-previous", size="sm", visible=False)
            self.next = gr.Button("Next page", elem_id="shelf-next", size="sm", visible=False)
            if self._page.writable:
                self.ask = gr.Button("Delete this collection ...", elem_id="drop-ask", size="sm", visible=False)
        if self._page.writable:
            with gr.Group(visible=False, elem_id="drop-sure") as self.sure:
                self.warning = gr.Markdown(elem_id="drop-warning", padding=True)
                with gr.Row():
                    self.drop = gr.Button("Delete for good", elem_id="drop", variant="stop")
                    self.keep = gr.Button("Keep it", elem_id="drop-keep")

    # ---- what leads where

    def _wire(self, page: Page) -> None:
        do, out = self._shelves, [getattr(self, name) for name in FIELDS]
        chosen = page.kept.collection
        page.on(page.blocks.load, do.begin, chosen, out)
        page.on(page.tab.select, do.refresh, [self.shelf, chosen], out)
        page.on(self.picker.input, self._choose, self.picker, [*out, chosen], trigger_mode="always_last")
        page.on(self.previous.click, do.previous, self.shelf, out)
        page.on(self.next.click, do.next, self.shelf, out)
        page.on(self.tiles.open, self._view, self.shelf, self.viewer)

    def _wire_writing(self, page: Page) -> None:
        out = [getattr(self, name) for name in FIELDS]
        for event in (self.create.click, self.name.submit):
            shown = [*out, page.kept.collection]
            made = page.on(event, self._create, self.name, shown, writes=True, show_progress="minimal")
            page.on(made.success, self._blank, None, self.name)
        page.on(self.tiles.delete, self._delete, self.shelf, out, writes=True)
        asked = page.on(self.ask.click, self._ask_sure, self.shelf, [self.sure, self.warning, self.doomed])
        asked.success(fn=None, js=SHOW_SURE)  # it opens below the wall, and so below most screens
        page.on(self.keep.click, self._hide, None, [self.sure])
        dropped = page.on(self.drop.click, self._shelves.drop, self.doomed, out, writes=True)
        page.on(dropped.success, self._hide, None, [self.sure])
        page.on(self.shelf.change, self._offer, self.shelf, [self.ask, self.sure])

    def _wire_adding(self, page: Page) -> None:
        out = [getattr(self, name) for name in FIELDS]
        browser = page.kept.browser
        page.on(page.blocks.load, self._arrive, browser, [browser, self.works])
        one_by_one: dict[str, Any] = {"trigger_mode": "multiple", "concurrency_limit": 1}
        given = page.on(self.intake.give, self._add, browser, self.works, writes=True, **one_by_one)
        self.intake.answered(given)
        page.on(self.works.cancel, self._cancel, None, None, writes=True)
        wanted = page.on(self.works.search, self._search, None, page.kept.collection)
        wanted.success(fn=None, js=GO_SEARCH)
        page.on(self.works.ended, self._shelves.refresh, [self.shelf, page.kept.collection], out)
        if self._additions.sources():
            asked = [self.shelf, self.source, self.folder, browser]
            page.on(self.add_folder.click, self._add_folder, asked, self.works, writes=True)

    # ---- steps of its own

    def _choose(self, name: str | None) -> tuple[Any, ...]:
        return *self._shelves.choose(name), name

    def _create(self, name: str) -> tuple[Any, ...]:
        return *self._shelves.create(name), name.strip()

    def _view(self, shelf: Shelf, event: gr.EventData) -> dict[str, Any]:
        """The original of an image, or its thumbnail, and says which."""
        return original_view(self._shelves.finder, shelf.collection, str(event.id))

    def _blank(self) -> str:
        return ""

    def _hide(self) -> Any:
        return gr.update(visible=False)

    def _offer(self, shelf: Shelf) -> tuple[Any, Any]:
        return gr.update(visible=bool(shelf.collection)), gr.update(visible=False)

    def _delete(self, shelf: Shelf, event: gr.EventData) -> tuple[Any, ...]:
        return self._shelves.delete(shelf, event.ids)

    def _ask_sure(self, shelf: Shelf) -> tuple[Any, str, str]:
        """Asks before a collection goes; what is meant stays meant, whatever is chosen meanwhile."""
        count = self._page.bench.collection(shelf.collection).count()
        what = f"**{plain(shelf.collection)}** with its {count:,} images"
        return (
            gr.update(visible=True),
            f"{what} will be gone for good. The files that they came from stay.",
            shelf.collection,
        )

    def _arrive(self, kept_browser: Any) -> tuple[str, list[str]]:
        """The jobs that this browser began before."""
        browser = name_of(kept_browser) or new_name()
        return browser, self._additions.jobs(browser)

    def _add(self, kept_browser: Any, event: gr.EventData) -> list[str]:
        browser = name_of(kept_browser)
        self._additions.add(event.to, event.files, browser)
        return self._additions.jobs(browser)

    def _search(self, event: gr.EventData) -> str:
        """The collection that a job added to is the one that the tab Search shows."""
        return str(event.collection)

    def _add_folder(self, shelf: Shelf, source: str, folder: str, kept_browser: Any) -> list[str]:
        browser = name_of(kept_browser)
        self._additions.add_folder(shelf.collection, source, folder, browser)
        return self._additions.jobs(browser)

    def _cancel(self, event: gr.EventData) -> None:
        """Ends a job that adds images; others are no affair of this tab."""
        assert self._page.jobs is not None
        if self._page.jobs.get(str(event.id)).kind not in ("add", "index"):
            raise InvalidRequest("This job adds no images: it is not ended here.")
        self._page.jobs.cancel(str(event.id))
