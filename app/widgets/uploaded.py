"""Uploaded: a file that a person gave to an input of Gradio's, by the name that it has at the person's side.

Gradio's path of it lacks what a name should not have by its lights, such as `$` and quotes: a command that names it so
finds no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gradio.data_classes import FileData

from .file_name import is_a_line

MOST_NAME = 255


@dataclass(frozen=True)
class Uploaded:
    """See the module.

    path: where it lies here.
    name: without folders.
    """

    path: Path
    name: str

    @classmethod
    def of(cls, file: FileData) -> Self:
        """What Gradio knows of an upload; its name comes from the browser, and may be anything there."""
        path, name = Path(file.path), file.orig_name or ""
        fits = len(name) <= MOST_NAME and is_a_line(name) and "/" not in name
        return cls(path, name if fits else path.name)
