"""The Training tab: the reports that `nnclr pretrain` writes."""

from __future__ import annotations

import gradio as gr

from ..page import Page
from ..widgets.outputs import Runs

INTRO = (
    "Runs of `nnclr pretrain`, which **trains an encoder without labels**. The report of a run shows its loss, the "
    "neighbors of example images, and accuracies on labeled images. It is updated while the run continues."
)


class TrainingTab:
    """Build the tab inside an open gr.Tab; its widget loads everything else from REST."""

    def __init__(self, page: Page) -> None:
        gr.Markdown(INTRO)
        self.runs = Runs(elem_id="runs", configured=page.settings.runs)
