"""Widget: a Gradio component of ours, whose own script draws its value; there is nothing to build.

    class Clock(Widget):
        script = "clock.js"                     # beside this file

    clock = Clock({"seconds": 0}, elem_id="clock", events=("tick",))
    clock.tick(handler)                         # as the script calls trigger('tick', {...})

Gradio puts a value into an HTML template as text and then runs the whole as a JavaScript template: a label that holds
`${...}` would be run in everybody's browser. So our templates hold no value; the scripts build elements, and text goes
into them as text alone.
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
    """See the module.

    Args:
        value: JSON; the script is called again with each new one.
        settings: JSON that the script finds as `settings`, fixed.
        options: of gr.HTML: elem_id, visible, ...
    """

    script: ClassVar[str]

    def __init__(self, value: Any = None, *, settings: Mapping[str, Any] | None = None, **options: Any) -> None:
        # an update builds the component anew, from what it was built from and what is new
        own = {"html_template": "<div></div>", "apply_default_css": False, "js_on_load": _source(self.script, settings)}
        super().__init__(value, **{**options, **own})


def _source(script: str, settings: Mapping[str, Any] | None) -> str:
    return f"const settings = {json.dumps(dict(settings or {}))};\n" + _scripts(script)


@cache
def _scripts(script: str) -> str:
    """Read once: Gradio builds a component anew at each update."""
    return (FOLDER / "dom.js").read_text() + (FOLDER / script).read_text()
