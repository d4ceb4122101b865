"""Runs: pretraining runs and their reports, as they go on, looked up by the browser at REST.

    Runs(elem_id="runs", given=True)            # whether the server was given a folder of runs

A report is a file that whoever trained wrote. It stands in a frame that is a site of its own, without scripts, forms
or anything from elsewhere: its route says so, and so does the frame.
"""

from __future__ import annotations

from typing import Any, ClassVar

from .widget import Widget

LOOK_MS = 4000  # between two looks


class Runs(Widget):
    """No events: it only looks, and only while it is seen."""

    script: ClassVar[str] = "runs.js"

    def __init__(self, value: Any = None, *, given: bool = False, **options: Any) -> None:
        super().__init__(value, **{**options, "settings": {"given": given, "look_ms": LOOK_MS}})
