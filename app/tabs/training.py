"""Training: how encoders learn, by the reports that `nnclr pretrain` writes."""

from __future__ import annotations

import gradio as gr

from ..page import Page
from ..widgets.runs import Runs

INTRO = (
    "How an encoder **learns to see from images without labels**: its loss, whether near images find each other, "
    "and accuracies where some are labeled. A run shows here while `nnclr pretrain` goes on."
)


class TrainingTab:
    """Builds the tab inside an open gr.Tab; its widget asks REST for the rest."""

    def __init__(self, page: Page) -> None:
        gr.Markdown(INTRO)
        self.runs = Runs(elem_id="runs", given=page.terms.runs)
