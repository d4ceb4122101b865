"""Page: what every tab gets.

    class CollectionsTab:
        def __init__(self, page: Page) -> None:
            ...                                             # inside an open gr.Tab
            page.on(button.click, self.create, [name], [status], writes=True)

`on` is the only way from an event to a handler: what stands around handlers is told in `handling`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gradio as gr

from nnclr_hub.workbench import Workbench

from . import handling
from .actions import Action
from .kept import Kept

GIVEN_BY = "given_by"  # parameter of a job that REST keeps to itself: the name of the browser it is from
# Gradio's description of the events as an API would be a third of what a browser loads first; ours is REST
EVENT_OPTIONS = {"show_progress": "hidden", "api_visibility": "undocumented"}
Components = gr.components.Component | Sequence[Any] | None


class Jobs(Protocol):
    """The server's background work, as much of it as the page uses; see `serving.jobs`."""

    def submit(self, kind: str, params: Any, input: bytes | None = None) -> Any: ...
    def get(self, id: str) -> Any: ...
    def list(self, limit: int, before: str | None = None, *, kind: Any = None, state: Any = None) -> Any: ...
    def cancel(self, id: str) -> Any: ...


@dataclass(frozen=True)
class Terms:
    """How the server was set up, as far as it concerns the page.

    max_bytes: of an upload.
    max_images: images at once, as REST takes them in a request.
    source_folders: of this machine, from which files may be read.
    local: whether the server listens on this machine alone.
    read_only: nothing is written, by nobody.
    runs: whether there is a folder of pretraining runs.
    keys: whether one needs a key.
    """

    max_bytes: int = 20_000_000
    max_images: int = 64
    source_folders: tuple[Path, ...] = ()
    local: bool = True
    read_only: bool = False
    runs: bool = False
    keys: bool = False


class Page:
    """See the module; made before the gr.Blocks, and opened in it.

    Args:
        bench: where the collections and the encoders are; the only way to them.
        terms: of the server.
        jobs: of the server; None where the page stands without one.
    """

    def __init__(self, bench: Workbench, terms: Terms | None = None, jobs: Jobs | None = None) -> None:
        self.bench = bench
        self.terms = terms or Terms()
        self.jobs = jobs

    def open(self, blocks: gr.Blocks) -> None:
        """Makes what all tabs share; called once, inside the open gr.Blocks and outside of every tab.

        blocks: for `page.on(page.blocks.load, ...)`.
        tab: the one that is being built, for `page.on(page.tab.select, ...)`: what another tab did is seen then.
        last: what was done last, for the API tab.
        kept: what the browser keeps over a reload.
        """
        self.blocks = blocks
        self.tab: gr.Tab
        self.last = gr.State(None)
        self.kept = Kept()

    @property
    def writable(self) -> bool:
        """Whether controls that write are to be built at all."""
        return not self.terms.read_only

    @property
    def adds(self) -> bool:
        """Whether images can be added, which takes jobs."""
        return self.writable and self.jobs is not None

    def did(self, action: Action) -> None:
        """Notes what the handler at work does, for the API tab."""
        handling.did(action)

    def on(
        self,
        event: Callable[..., Any],
        handler: handling.Handler,
        inputs: Components = None,
        outputs: Components = None,
        *,
        writes: bool = False,
        **options: Any,
    ) -> Any:
        """Calls the handler at an event of a component; returns what Gradio does, for `.then` and the like.

        Args:
            event: `button.click`, `page.blocks.load`, ...
            handler: a plain function or method, never a generator; see `handling.handled`.
            writes: whether it changes anything that is kept: then it is refused to keys that may only read, and on a
                read-only server it must not be built.
            options: of Gradio's, such as `show_progress`.
        """
        if writes and not self.writable:
            raise ValueError(f"{handler.__name__} writes: build it only where the page is writable")
        shown = [] if outputs is None else list(outputs) if isinstance(outputs, Sequence) else [outputs]
        shielded = handling.handled(handler, len(shown), writes=writes)
        return event(shielded, inputs, [*shown, self.last], **EVENT_OPTIONS | options)

    def clear_on_failure(self, event: Any, *components: gr.components.Component) -> None:
        """Empties components when a handler has failed: an image that it refused would stand there as if it were used.

        Args:
            event: what `on` returned for the handler.
        """
        self.on(event.failure, _nothing, None, components)


def _nothing() -> None:
    """The value of what is empty."""
