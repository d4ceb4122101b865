"""A file input that hands over files by their own names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gradio as gr

from .uploaded import Uploaded


class RawFiles(gr.File):
    """The value is a list of `Uploaded`."""

    def preprocess(self, payload: Any) -> list[Uploaded]:  # type: ignore[override]
        files: Iterable[Any] = payload or ()
        return [Uploaded.of(one) for one in files]

    def get_block_name(self) -> str:
        return "file"
