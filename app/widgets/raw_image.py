"""An image input that hands over the file as it was uploaded.

Gradio's own decodes and re-encodes what it gets, and fails before our code when it cannot; ours must
see the bytes, so that a broken image gets the same sentence here as everywhere else.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from .uploaded import Uploaded


class RawImage(gr.Image):
    """The value is `Uploaded`, or None."""

    def preprocess(self, payload: Any) -> Uploaded | None:  # type: ignore[override]
        return Uploaded.of(payload) if payload else None

    def get_block_name(self) -> str:
        return "image"


def raw_image(label: str, *, elem_id: str) -> RawImage:
    """One to drop a file on, to choose one, to paste or to take an image with the camera."""
    return RawImage(
        type="filepath", label=label, sources=["upload", "webcam", "clipboard"], elem_id=elem_id, height=230
    )
