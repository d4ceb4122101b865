"""build_demo(page): the page as gr.Blocks."""

from __future__ import annotations

import gradio as gr

from .page import Page
from .tabs.search import SearchTab

# name on the tab -> its class, in the order in which they stand
TABS = {"Search": SearchTab}


def build_demo(page: Page) -> gr.Blocks:
    """All tabs over a workbench; everything the page does, REST can do as well."""
    with gr.Blocks(title="nnclr_hub", analytics_enabled=False) as demo:
        page.open(demo)
        with gr.Tabs(elem_id="tabs"):
            for name, tab in TABS.items():
                with gr.Tab(name, id=name.lower()):
                    tab(page)
    return demo
