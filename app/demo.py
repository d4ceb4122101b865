"""build_demo(workbench): the page as gr.Blocks."""

from __future__ import annotations

import gradio as gr

from nnclr_hub.workbench import Workbench

from .tabs.search import SearchTab


def build_demo(workbench: Workbench) -> gr.Blocks:
    """The page over a workbench; everything it does, REST can do as well."""
    with gr.Blocks(title="nnclr_hub", analytics_enabled=False) as demo:
        gr.Markdown("# nnclr_hub")
        with gr.Tab("Search"):
            SearchTab(workbench, demo)
    return demo
