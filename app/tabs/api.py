"""The API tab: the last action on the page as a shell command and as a Python program."""

from __future__ import annotations

import re
from typing import Any

import gradio as gr

from nnclr_hub.client.call_examples import BASE, KEY_VARIABLE, ApiCall

from ..page import Page
from ..widgets.outputs import Code, code_block

INTRO = (
    "Everything on this page also works **over REST**. This tab shows your last action on another tab as a shell "
    "command and as a Python program."
)
NO_ACTION = "There is no action yet. Search for an image on the Search tab, then come back."
ORIGIN = "() => [null, window.location.origin]"  # behind a proxy, only the browser knows the address
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.\-_\[\]:]{1,253}")


class ApiTab:
    """Build the tab inside an open gr.Tab."""

    def __init__(self, page: Page) -> None:
        self._page = page
        gr.Markdown(INTRO)
        self.status = gr.Markdown(NO_ACTION, elem_id="api-status")
        self.code = Code(elem_id="api-code")
        page.on(
            page.last_call.change, self._show_call, [page.last_call, self.code], [self.status, self.code], js=ORIGIN
        )

    def _show_call(self, last: ApiCall | None, origin: Any) -> tuple[Any, ...]:
        if last is None:
            return NO_ACTION, []
        base = origin if isinstance(origin, str) and _ADDRESS.fullmatch(origin) else BASE
        key = self._page.settings.keys
        own_files = {file for _, file in last.files} - {file for file, _ in last.downloads}
        status = last.note or ("Run it in the folder that contains the image." if own_files else "")
        status += f" Set the environment variable {KEY_VARIABLE} to your key first." if key else ""
        shell = [code_block("Shell", last.curl(base, key=key))] if last.path else []
        return status.strip(), [*shell, code_block("Python", last.python(base, key=key))]
