"""Download: a file that a handler gives and the browser saves at once.

save = Download(elem_id="save")
return file_value("hits.csv", text)
"""

from __future__ import annotations

import secrets
from typing import Any, ClassVar

from .widget import Widget


class Download(Widget):
    """Shows nothing."""

    script: ClassVar[str] = "download.js"


def file_value(name: str, text: str, kind: str = "text/csv") -> dict[str, Any]:
    """A file to save; equal files twice are saved twice."""
    return {"name": name, "text": text, "kind": kind, "mark": secrets.token_hex(4)}
