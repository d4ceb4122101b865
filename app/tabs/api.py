"""API: the last thing that was done on the page, as a command and as a program that do the same."""

from __future__ import annotations

import re
from typing import Any

import gradio as gr

from ..actions import Action
from ..page import Page
from ..snippets import curl, python
from ..widgets.code import Code, block

INTRO = (
    "Whatever the page does, **REST can do too**. Here stands the last thing that you did on another tab, as a command "
    "for the shell and as a Python program: copy one and run it."
)
NOTHING = "You have not done anything yet: search for an image on the tab Search, then come back."
ORIGIN = "() => [null, window.location.origin]"  # behind a proxy only the browser knows it
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.\-_\[\]:]{1,253}")


class ApiTab:
    """Builds the tab inside an open gr.Tab."""

    def __init__(self, page: Page) -> None:
        self._page = page
        gr.Markdown(INTRO)
        self.status = gr.Markdown(NOTHING, elem_id="api-status")
        self.code = Code(elem_id="api-code")
        page.on(page.last.change, self._show, [page.last, self.code], [self.status, self.code], js=ORIGIN)

    def _show(self, last: Action | None, origin: Any) -> tuple[Any, ...]:
        if last is None:
            return NOTHING, []
        base = origin if isinstance(origin, str) and _ADDRESS.fullmatch(origin) else "http://127.0.0.1:8000"
        key = self._page.terms.keys
        theirs = {file for _, file in last.files} - {file for file, _ in last.fetched}
        told = "The file stands there by its name: run it in the folder where the file lies." if theirs else ""
        told = "Run it in the folder that holds your class folders." if last.body else told
        told = last.where or told
        told += " Put your key into the variable NNCLR_API_KEY first." if key else ""
        shell = [block("In the shell", curl(last, base, key=key))] if last.path else []
        return told.strip(), [*shell, block("In Python", python(last, base, key=key))]
