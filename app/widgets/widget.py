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

from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import gradio as gr

FOLDER = Path(__file__).parent


class Widget(gr.HTML):
    """See the module.

    Args:
        value: JSON; the script is called again with each new one.
        elem_id: of the element, for styles and tests.
        visible: whether it is shown.
        settings: further JSON that the script finds in `props`, fixed.
    """

    script: ClassVar[str]

    def __init__(self, value: Any = None, *, elem_id: str, visible: bool = True, **settings: Any) -> None:
        super().__init__(
            value=value,
            html_template="<div></div>",
            js_on_load=_source(self.script),
            apply_default_css=False,
            elem_id=elem_id,
            visible=visible,
            **settings,
        )


@cache
def _source(script: str) -> str:
    return (FOLDER / "dom.js").read_text() + (FOLDER / script).read_text()
