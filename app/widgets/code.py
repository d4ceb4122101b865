"""Code: blocks of code, each with a button that copies it.

code = Code(elem_id="code")
return [block("In the shell", "curl ...")]
"""

from __future__ import annotations

from typing import Any, ClassVar

from .widget import Widget


class Code(Widget):
    """It has no events."""

    script: ClassVar[str] = "code.js"


def block(title: str, text: str) -> dict[str, Any]:
    """A block and what stands over it."""
    return {"title": title, "text": text}
