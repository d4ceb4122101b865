"""The Collections tab: create, fill, browse and delete collections."""

from __future__ import annotations

from typing import Any

import gradio as gr

from nnclr_hub.errors import InvalidRequest

from ..additions import Additions, new_browser_name, read_browser_name
from ..collection_handlers import FIELDS, CollectionHandlers, CollectionPage
from ..handlers import escape_markdown
from ..item_views import original_view
from ..page import Page
from ..widgets.outputs import JobList, Viewer
from ..widgets.tiles import Tiles
from ..widgets.uploader import Uploader

INTRO = (
    "A **collection** is a set of images that you can search. Images that you add are stored on this server. Adding "
    "continues when you close the page."
)
INTRO_READ_ONLY = "A **collection** is a set of images that you can search. This server is read-only."
GO_TO_SEARCH = "() => document.querySelector('#tabs button[role=tab]').click()"  # the first tab
SHOW_WARNING = "() => requestAnimationFrame(() => document.querySelector('#drop-box')?.scrollIntoView({block: 'end'}))"
ADDING = ("add", "index")  # kinds of jobs that add images


class CollectionsTab:
    """Build the tab inside an open gr.Tab."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._handlers, self._additions = CollectionHandlers(page), Additions(page)
        self.shown, self.to_drop = gr.State(CollectionPage()), gr.State("")
        gr.Markdown(INTRO if page.writable else INTRO_READ_ONLY)
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                self._build_controls()
            with gr.Column(scale=3, min_width=300):
                self._build_items()
        self.viewer = Viewer(elem_id="items-viewer")
        self._wire(page)
        if page.writable:
            self._wire_writing(page)
        if page.can_add:
            self._wire_adding(page)

    def _build_controls(self) -> None:
        self.picker = gr.Dropdown([], label="Collection", elem_id="items-collection", interactive=True, visible=False)
        self.uploader: Any = gr.State()  # a placeholder where images cannot be added
        if self._page.can_add:
            self.uploader = Uploader(elem_id="uploader", max_bytes=self._page.settings.max_bytes, visible=False)
            self.jobs = JobList(elem_id="jobs")
            self._build_folder()
        if self._page.writable:
            with gr.Group():
                self.name = gr.Textbox(label="New collection", placeholder="holidays", max_lines=1, elem_id="new-name")
                self.create = gr.Button("Create", elem_id="create", variant="primary")

    def _build_folder(self) -> None:
        sources = self._additions.sources()
        if not sources:
            return
        with gr.Accordion("Add a folder of this machine", open=False, elem_id="server-folder"):
            self.source = gr.Dropdown(
                sources, value=sources[0], label="Source folder", elem_id="source", interactive=True
            )
            self.folder = gr.Textbox(label="Subfolder", placeholder="all", max_lines=1, elem_id="source-folder")
            self.add_folder = gr.Button("Add its images", elem_id="source-add")

    def _build_items(self) -> None:
        self.status = gr.Markdown(elem_id="items-status")
        selection = ("delete",) if self._page.writable else ()
        self.tiles = Tiles(elem_id="items", selection=selection)
        with gr.Row(elem_classes="bar"):
            self.previous = gr.Button("Previous page", elem_id="items-previous", size="sm", visible=False)
            self.next = gr.Button("Next page", elem_id="items-next", size="sm", visible=False)
            if self._page.writable:
                self.ask_drop = gr.Button("Delete this collection ...", elem_id="drop-ask", size="sm", visible=False)
        if self._page.writable:
            with gr.Group(visible=False, elem_id="drop-box") as self.drop_box:
                self.warning = gr.Markdown(elem_id="drop-warning", padding=True)
                with gr.Row():
                    self.drop = gr.Button("Delete permanently", elem_id="drop", variant="stop")
                    self.cancel_drop = gr.Button("Cancel", elem_id="drop-cancel")

    def _wire(self, page: Page) -> None:
        do, out = self._handlers, [getattr(self, name) for name in FIELDS]
        stored = page.stored.collection
        page.on(page.blocks.load, do.load, stored, out)
        page.on(page.tab.select, do.refresh, [self.shown, stored], out)
        page.on(self.picker.input, self._choose, self.picker, [*out, stored], trigger_mode="always_last")
        page.on(self.previous.click, do.previous, self.shown, out)
        page.on(self.next.click, do.next, self.shown, out)
        page.on(self.tiles.open, self._view, self.shown, self.viewer)

    def _wire_writing(self, page: Page) -> None:
        out = [getattr(self, name) for name in FIELDS]
        for event in (self.create.click, self.name.submit):
            outputs = [*out, page.stored.collection]
            created = page.on(event, self._create, self.name, outputs, writes=True, show_progress="minimal")
            page.on(created.success, self._clear_name, None, self.name)
        page.on(self.tiles.delete, self._delete, self.shown, out, writes=True)
        warned = page.on(self.ask_drop.click, self._warn, self.shown, [self.drop_box, self.warning, self.to_drop])
        warned.success(fn=None, js=SHOW_WARNING)  # it opens under the images, outside of most screens
        page.on(self.cancel_drop.click, self._hide, None, [self.drop_box])
        dropped = page.on(self.drop.click, self._handlers.drop, self.to_drop, out, writes=True)
        page.on(dropped.success, self._hide, None, [self.drop_box])
        page.on(self.shown.change, self._offer_drop, self.shown, [self.ask_drop, self.drop_box])

    def _wire_adding(self, page: Page) -> None:
        out = [getattr(self, name) for name in FIELDS]
        browser = page.stored.browser
        page.on(page.blocks.load, self._load_jobs, browser, [browser, self.jobs])
        in_order: dict[str, Any] = {"trigger_mode": "multiple", "concurrency_limit": 1}
        added = page.on(self.uploader.submit, self._add, browser, self.jobs, writes=True, **in_order)
        self.uploader.continue_after(added)
        page.on(self.jobs.cancel, self._cancel, None, None, writes=True)
        chosen = page.on(self.jobs.search, self._search, None, page.stored.collection)
        chosen.success(fn=None, js=GO_TO_SEARCH)
        page.on(self.jobs.ended, self._handlers.refresh, [self.shown, page.stored.collection], out)
        if self._additions.sources():
            inputs = [self.shown, self.source, self.folder, browser]
            page.on(self.add_folder.click, self._add_folder, inputs, self.jobs, writes=True)

    # ---- handlers

    def _choose(self, name: str | None) -> tuple[Any, ...]:
        return *self._handlers.choose(name), name

    def _create(self, name: str) -> tuple[Any, ...]:
        return *self._handlers.create(name), name.strip()

    def _view(self, shown: CollectionPage, event: gr.EventData) -> dict[str, Any]:
        return original_view(self._handlers.finder, shown.collection, str(event.id))

    def _clear_name(self) -> str:
        return ""

    def _hide(self) -> Any:
        return gr.update(visible=False)

    def _offer_drop(self, shown: CollectionPage) -> tuple[Any, Any]:
        return gr.update(visible=bool(shown.collection)), gr.update(visible=False)

    def _delete(self, shown: CollectionPage, event: gr.EventData) -> tuple[Any, ...]:
        return self._handlers.delete(shown, event.ids)

    def _warn(self, shown: CollectionPage) -> tuple[Any, str, str]:
        """Ask for confirmation, and store the name: the user may select another collection before confirming."""
        count = self._page.bench.collection(shown.collection).count()
        warning = (
            f"This permanently deletes **{escape_markdown(shown.collection)}** and its {count:,} images. The original "
            "files are not deleted."
        )
        return gr.update(visible=True), warning, shown.collection

    def _load_jobs(self, stored_browser: Any) -> tuple[str, list[str]]:
        """Return the browser's name and the jobs that it started earlier."""
        browser = read_browser_name(stored_browser) or new_browser_name()
        return browser, self._additions.jobs(browser)

    def _add(self, stored_browser: Any, event: gr.EventData) -> list[str]:
        browser = read_browser_name(stored_browser)
        self._additions.add(event.to, event.files, browser)
        return self._additions.jobs(browser)

    def _search(self, event: gr.EventData) -> str:
        """Return the collection of a finished job, which the Search tab then shows."""
        return str(event.collection)

    def _add_folder(self, shown: CollectionPage, source: str, folder: str, stored_browser: Any) -> list[str]:
        browser = read_browser_name(stored_browser)
        self._additions.add_folder(shown.collection, source, folder, browser)
        return self._additions.jobs(browser)

    def _cancel(self, event: gr.EventData) -> None:
        """Cancel a job that adds images; this tab does not cancel other jobs."""
        assert self._page.jobs is not None
        if self._page.jobs.get(str(event.id)).kind not in ADDING:
            raise InvalidRequest("Only jobs that add images can be cancelled here.")
        self._page.jobs.cancel(str(event.id))
