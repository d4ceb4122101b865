"""A slider whose number can be typed: one beyond its ends is the end, as the browser then shows it.

Gradio's own refuses it and shows the end nevertheless, so that the page does not show what it was asked for.
"""

from __future__ import annotations

import gradio as gr


class BoundedSlider(gr.Slider):
    """The value is a number from `minimum` to `maximum`."""

    def preprocess(self, payload: float | None) -> float:  # type: ignore[override]
        return super().preprocess(min(max(self.minimum if payload is None else payload, self.minimum), self.maximum))

    def get_block_name(self) -> str:
        return "slider"
