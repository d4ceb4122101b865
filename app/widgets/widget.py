"""Widget: a Gradio component whose own script draws its value, without a build step.

    class Clock(Widget):
        script = "clock.js"                     # in this folder

    clock = Clock({"seconds": 0}, elem_id="clock", events=("tick",))
    clock.tick(handler)                         # the script calls trigger('tick', {...})

Gradio inserts a value into an HTML template as text, and then evaluates the result as a JavaScript template. A label
that contains `${...}` would run in every browser. The templates here therefore contain no value: the scripts build
elements, and set text only as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import gradio as gr

FOLDER = Path(__file__).parent


class Widget(gr.HTML):
    """A component that a script draws.

    Args:
        value: JSON; the script runs again for each new value.
        settings: JSON that the script reads as `settings`; it does not change.
    """

    script: ClassVar[str]

    def __init__(self, value: Any = None, *, settings: Mapping[str, Any] | None = None, **options: Any) -> None:
        # Gradio rebuilds a component for an update, from its first options and the new ones; ours must win
        own = {"html_template": "<div></div>", "apply_default_css": False, "js_on_load": _source(self.script, settings)}
        super().__init__(value, **{**options, **own})


def _source(script: str, settings: Mapping[str, Any] | None) -> str:
    return f"const settings = {json.dumps(dict(settings or {}))};\n" + _read_scripts(script)


@cache
def _read_scripts(script: str) -> str:
    """Read the scripts once, since Gradio rebuilds a component for each update."""
    return (FOLDER / "dom.js").read_text() + (FOLDER / script).read_text()
