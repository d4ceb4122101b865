"""Gradio inputs that return uploaded files unchanged, and a slider that clamps its value.

Gradio's own image input decodes and re-encodes the file, and fails before our code if it cannot. These inputs return
the bytes, so that a broken image produces the same message as in REST.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import gradio as gr
from gradio.data_classes import FileData

MAX_NAME = 255  # characters
# Unicode categories that a file name cannot contain: controls, surrogates, line and paragraph separators
BREAKING = {"Cc", "Cs", "Zl", "Zp"}


def is_one_line(name: str) -> bool:
    """Return whether a name is not empty and contains nothing that ends a line.

    `str.isprintable` would reject spaces of other scripts and joined letters, which are common in file names.
    """
    return bool(name) and not any(unicodedata.category(letter) in BREAKING for letter in name)


@dataclass(frozen=True)
class Uploaded:
    """An uploaded file.

    path: on the server. Gradio removes characters such as `$` and quotes from its name.
    name: the user's own file name without folders, so that commands on the API tab find the file.
    """

    path: Path
    name: str

    @classmethod
    def of(cls, file: FileData) -> Self:
        """Convert Gradio's record of an upload; the original name comes from the browser and can be anything."""
        path, name = Path(file.path), file.orig_name or ""
        valid = len(name) <= MAX_NAME and is_one_line(name) and "/" not in name
        return cls(path, name if valid else path.name)


class RawImage(gr.Image):
    """An image input whose value is an `Uploaded`, or None."""

    def preprocess(self, payload: Any) -> Uploaded | None:  # type: ignore[override]
        return Uploaded.of(payload) if payload else None

    def get_block_name(self) -> str:
        return "image"


def raw_image(label: str, *, elem_id: str) -> RawImage:
    """Return an input for a file, a pasted image or a photo from the camera."""
    return RawImage(
        type="filepath", label=label, sources=["upload", "webcam", "clipboard"], elem_id=elem_id, height=230
    )


class RawFiles(gr.File):
    """A file input whose value is a list of `Uploaded`."""

    def preprocess(self, payload: Any) -> list[Uploaded]:  # type: ignore[override]
        files: Iterable[Any] = payload or ()
        return [Uploaded.of(one) for one in files]

    def get_block_name(self) -> str:
        return "file"


class BoundedSlider(gr.Slider):
    """A slider that clamps a typed number to its range, as the browser then shows it.

    Gradio's own slider rejects such a number but shows the end of the range.
    """

    def preprocess(self, payload: float | None) -> float:  # type: ignore[override]
        return super().preprocess(min(max(self.minimum if payload is None else payload, self.minimum), self.maximum))

    def get_block_name(self) -> str:
        return "slider"
