"""Collections: make one, put pictures into it, look through it, take things away again."""

from __future__ import annotations

from typing import Any

import gradio as gr

from nnclr_hub.errors import InvalidRequest

from ..additions import Additions, with_browser, without_jobs
from ..originals import original_view
from ..page import Page
from ..shelf import FIELDS, Shelf, Shelves, shelf_of, with_shelf
from ..steps import plain
from ..widgets.intake import Intake
from ..widgets.tiles import Tiles
from ..widgets.viewer import Viewer
from ..widgets.works import Works

INTRO = (
    "A **collection** is a set of pictures that are searched together. What you add here stays on this server, and "
    "goes on being added when you close the page."
)
INTRO_READ_ONLY = "A **collection** is a set of pictures that are searched together. This server shows them only."


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
            self.add_folder = gr.Button("Add its pictures", elem_id="source-add")

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
        page.on(page.blocks.load, self._start, page.kept, out)
        choice = [self.picker, page.kept]
        page.on(self.picker.input, self._choose, choice, [*out, page.kept], trigger_mode="always_last")
        page.on(self.previous.click, do.previous, self.shelf, out)
        page.on(self.next.click, do.next, self.shelf, out)
        page.on(self.tiles.open, self._view, self.shelf, self.viewer)

    def _wire_writing(self, page: Page) -> None:
        out = [getattr(self, name) for name in FIELDS]
        for event in (self.create.click, self.name.submit):
            asked, shown = [self.name, page.kept], [*out, page.kept]
            made = page.on(event, self._create, asked, shown, writes=True, show_progress="minimal")
            page.on(made.success, self._blank, None, self.name)
        page.on(self.tiles.delete, self._delete, self.shelf, out, writes=True)
        page.on(self.ask.click, self._ask_sure, self.shelf, [self.sure, self.warning, self.doomed])
        page.on(self.keep.click, self._hide, None, [self.sure])
        dropped = page.on(self.drop.click, self._shelves.drop, self.doomed, out, writes=True)
        page.on(dropped.success, self._hide, None, [self.sure])
        page.on(self.shelf.change, self._offer, self.shelf, [self.ask, self.sure])

    def _wire_adding(self, page: Page) -> None:
        out = [getattr(self, name) for name in FIELDS]
        jobs = [page.kept, self.works]
        page.on(page.blocks.load, self._arrive, page.kept, jobs)
        one_by_one: dict[str, Any] = {"trigger_mode": "multiple", "concurrency_limit": 1}
        given = page.on(self.intake.give, self._add, page.kept, self.works, writes=True, **one_by_one)
        self.intake.answered(given)
        page.on(self.works.cancel, self._cancel, None, None, writes=True)
        page.on(self.works.forget, self._forget, page.kept, jobs, **one_by_one)
        page.on(self.works.ended, self._shelves.refresh, self.shelf, out)
        if self._additions.sources():
            asked = [self.shelf, self.source, self.folder, page.kept]
            page.on(self.add_folder.click, self._add_folder, asked, self.works, writes=True)

    # ---- steps of its own

    def _start(self, kept: dict[str, Any]) -> tuple[Any, ...]:
        """The collection that this browser chose last, or else the first."""
        return self._shelves.start(shelf_of(kept))

    def _choose(self, name: str | None, kept: dict[str, Any]) -> tuple[Any, ...]:
        return *self._shelves.choose(name), with_shelf(kept, name)

    def _create(self, name: str, kept: dict[str, Any]) -> tuple[Any, ...]:
        return *self._shelves.create(name), with_shelf(kept, name.strip())

    def _view(self, shelf: Shelf, event: gr.EventData) -> dict[str, Any]:
        """The original of a picture, or its thumbnail, and says which."""
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
        what = f"**{plain(shelf.collection)}** with its {count:,} pictures"
        return (
            gr.update(visible=True),
            f"{what} will be gone for good. The files that they came from stay.",
            shelf.collection,
        )

    def _arrive(self, kept: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The jobs that this browser began before."""
        kept = with_browser(kept)
        return kept, self._additions.jobs(kept)

    def _add(self, kept: dict[str, Any], event: gr.EventData) -> list[str]:
        self._additions.add(event.to, event.files, kept)
        return self._additions.jobs(kept)

    def _add_folder(self, shelf: Shelf, source: str, folder: str, kept: dict[str, Any]) -> list[str]:
        self._additions.add_folder(shelf.collection, source, folder, kept)
        return self._additions.jobs(kept)

    def _cancel(self, event: gr.EventData) -> None:
        """Ends a job that adds pictures; others are no affair of this tab."""
        assert self._page.jobs is not None
        if self._page.jobs.get(str(event.id)).kind not in ("add", "index"):
            raise InvalidRequest("This job adds no pictures: it is not ended here.")
        self._page.jobs.cancel(str(event.id))

    def _forget(self, kept: dict[str, Any], event: gr.EventData) -> tuple[dict[str, Any], list[str]]:
        kept = without_jobs(kept, event.ids)
        return kept, self._additions.jobs(kept)
