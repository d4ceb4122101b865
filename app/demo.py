"""build_demo(page): the page as gr.Blocks."""

from __future__ import annotations

import gradio as gr

from .page import Page
from .tabs.api import ApiTab
from .tabs.attention import AttentionTab
from .tabs.collections import CollectionsTab
from .tabs.probe import ProbeTab
from .tabs.search import SearchTab
from .tabs.training import TrainingTab

# name on the tab -> its class, in the order in which they stand
TABS = {
    "Search": SearchTab,
    "Attention": AttentionTab,
    "Collections": CollectionsTab,
    "Probe": ProbeTab,
    "Training": TrainingTab,
    "API": ApiTab,
}
HEADER = """
<header><h1>nnclr_hub</h1><p>Find images by what they look like.</p>
<nav aria-label="Elsewhere"><a href="/docs">REST API</a></nav></header>
"""


def build_demo(page: Page) -> gr.Blocks:
    """All tabs over a workbench; everything the page does, REST can do as well."""
    with gr.Blocks(title="nnclr_hub", analytics_enabled=False) as demo:
        page.open(demo)
        gr.HTML(html_template=HEADER, elem_id="header")
        with gr.Tabs(elem_id="tabs"):
            for name, tab in TABS.items():
                with gr.Tab(name, id=name.lower()) as page.tab:
                    tab(page)
    return demo
