"""Kept: what a browser keeps over a reload; secret it is not, and a client may have written anything there.

    page.on(self.picker.input, self.choose, self.picker, [*out, page.kept.collection])

Each thing has a slot of its own, and an event that changes one gives the whole of it. So no two events, however near to
each other, can undo what the other kept.
"""

from __future__ import annotations

import gradio as gr


class Kept:
    """Made inside the open gr.Blocks and outside of every tab: in a tab that was not opened yet a slot would be empty.

    browser: the name under which the server's jobs know it; see `additions`.
    collection: the one that was chosen or made last, on whichever tab; see `Finder.chosen`.
    folders: the ticket of the class folders that were given last; see `class_folders`.
    fit: the job of the probe that was begun last.
    fit_told: of these jobs, the one whose end was told.
    """

    def __init__(self) -> None:
        self.browser = _slot("browser")
        self.collection = _slot("collection")
        self.folders = _slot("folders")
        self.fit = _slot("fit")
        self.fit_told = _slot("fit_told")


def _slot(name: str) -> gr.BrowserState:
    return gr.BrowserState(None, storage_key=f"nnclr_hub_{name}", secret="nnclr_hub")
