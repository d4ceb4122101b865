"""An image input that hands over the file as it was uploaded.

Gradio's own decodes and re-encodes what it gets, and fails before our code when it cannot; ours must
see the bytes, so that a broken picture gets the same sentence here as everywhere else.
"""

from __future__ import annotations

from typing import Any

import gradio as gr


class RawImage(gr.Image):
    """The value is the path of the uploaded file, or None."""

    def __init__(self, value: Any = None, **options: Any) -> None:
        sources = ["upload", "webcam", "clipboard"]
        super().__init__(value, **{**options, "type": "filepath", "sources": sources})

    def preprocess(self, payload: Any) -> str | None:  # type: ignore[override]
        return payload.path if payload else None

    def get_block_name(self) -> str:
        return "image"
