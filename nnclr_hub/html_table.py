"""The HTML representation of objects in Jupyter."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any


def html_table(rows: Mapping[str, Any]) -> str:
    """Return a table of two columns; values other than text are shown as JSON."""
    shown = {key: value if isinstance(value, str) else json.dumps(value, default=str) for key, value in rows.items()}
    cells = (f"<tr><th>{html.escape(key)}</th><td>{html.escape(value)}</td></tr>" for key, value in shown.items())
    return f"<table>{''.join(cells)}</table>"
