"""Page: the state and the event wiring that all tabs share.

    class CollectionsTab:
        def __init__(self, page: Page) -> None:
            ...                                             # inside an open gr.Tab
            page.on(button.click, self.create, [name], [status], writes=True)

`Page.on` is the only way to connect an event to a handler; `handlers.py` describes the checks around each handler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gradio as gr

from nnclr_hub.client.call_examples import ApiCall
from nnclr_hub.workbench import Workbench

from . import handlers

GIVEN_BY = "given_by"  # a job parameter that REST hides: the name of the browser that started the job
# Gradio's description of the events as an API would be a third of the first page load; our API is REST
EVENT_OPTIONS = {"show_progress": "hidden", "api_visibility": "undocumented"}
Components = gr.components.Component | Sequence[Any] | None


class Jobs(Protocol):
    """The part of the server's job queue that the page uses; see `serving.jobs`."""

    def submit(self, kind: str, params: Any, input: bytes | None = None) -> Any: ...
    def get(self, id: str) -> Any: ...
    def list(self, limit: int, before: str | None = None, *, kind: Any = None, state: Any = None) -> Any: ...
    def cancel(self, id: str) -> Any: ...


@dataclass(frozen=True)
class PageSettings:
    """The server settings that the page needs.

    max_bytes: maximum size of an upload.
    max_images: maximum number of images in one REST request.
    source_folders: folders of the server's machine from which files may be read.
    local: whether the server listens only on this machine.
    read_only: whether nobody can write.
    runs: whether a folder of pretraining runs is configured.
    keys: whether an API key is required.
    """

    max_bytes: int = 20_000_000
    max_images: int = 64
    source_folders: tuple[Path, ...] = ()
    local: bool = True
    read_only: bool = False
    runs: bool = False
    keys: bool = False


class BrowserStorage:
    """Values that the browser keeps over a reload. They are not secret, and a client can send anything in them.

    Each value has a separate slot, and an event that changes a slot writes only that slot. Two events that run at the
    same time therefore cannot overwrite each other's change. Create it inside the open gr.Blocks and outside of every
    tab: in a tab that was not opened yet, a slot would be empty.

    browser: the name under which the server's jobs know this browser; see `additions`.
    collection: the collection that was chosen or created last, on any tab; see `Finder.choose_collection`.
    folders: the ticket of the class folders that were uploaded last; see `probe_jobs`.
    fit: the id of the probe job that was started last.
    fit_reported: the id of the probe job whose end was reported last.
    """

    def __init__(self) -> None:
        self.browser = _slot("browser")
        self.collection = _slot("collection")
        self.folders = _slot("folders")
        self.fit = _slot("fit")
        self.fit_reported = _slot("fit_reported")


class Page:
    """The state that all tabs share; made before the gr.Blocks, and opened in it.

    Args:
        bench: the only access to collections and encoders.
        jobs: of the server; None if the page runs without a server.
    """

    def __init__(self, bench: Workbench, settings: PageSettings | None = None, jobs: Jobs | None = None) -> None:
        self.bench = bench
        self.settings = settings or PageSettings()
        self.jobs = jobs

    def open(self, blocks: gr.Blocks) -> None:
        """Create the shared components; call it once, inside the open gr.Blocks and outside of every tab.

        blocks: for `page.on(page.blocks.load, ...)`.
        tab: the tab under construction. Use `page.on(page.tab.select, ...)` to show changes made on other tabs.
        last_call: the REST call of the last action, for the API tab.
        stored: the values that the browser keeps over a reload.
        """
        self.blocks = blocks
        self.tab: gr.Tab
        self.last_call = gr.State(None)
        self.stored = BrowserStorage()

    @property
    def writable(self) -> bool:
        """Whether to build controls that write."""
        return not self.settings.read_only

    @property
    def can_add(self) -> bool:
        """Whether images can be added, which requires jobs."""
        return self.writable and self.jobs is not None

    def note(self, call: ApiCall) -> None:
        """Record what the running handler does, for the API tab."""
        handlers.note_call(call)

    def on(
        self,
        event: Callable[..., Any],
        handler: handlers.Handler,
        inputs: Components = None,
        outputs: Components = None,
        *,
        writes: bool = False,
        **options: Any,
    ) -> Any:
        """Call the handler when an event occurs; return Gradio's dependency, for `.then` and similar.

        Args:
            event: `button.click`, `page.blocks.load`, ...
            handler: a plain function or method, not a generator; see `handlers.guard`.
            writes: whether it changes stored data. Such a handler rejects keys that can only read, and must not be
                built on a read-only server.
        """
        if writes and not self.writable:
            raise ValueError(f"{handler.__name__} writes; build it only if the page is writable")
        shown = [] if outputs is None else list(outputs) if isinstance(outputs, Sequence) else [outputs]
        guarded = handlers.guard(handler, len(shown), writes=writes)
        return event(guarded, inputs, [*shown, self.last_call], **EVENT_OPTIONS | options)

    def clear_on_failure(self, event: Any, *components: gr.components.Component) -> None:
        """Empty components after a handler fails; a rejected image would otherwise look as if it were used.

        Args:
            event: what `on` returned for the handler.
        """
        self.on(event.failure, _empty, None, components)


def _slot(name: str) -> gr.BrowserState:
    return gr.BrowserState(None, storage_key=f"nnclr_hub_{name}", secret="nnclr_hub")


def _empty() -> None:
    """Return the value of an empty component."""
