"""Labeller: a wall of images that a person labels by clicking; which have which label, the browser keeps.

    wall = Labeller(elem_id="labeller")
    page.on(wall.more, handler, ...)                    # event.shown: how many stand there
    page.on(button.click, fit, [wall, name], ..., js=LABELS)    # fit(labels: str, name): labels as JSON, by id
    return labeled("photos", tiles, more=True)         # what a handler gives it to show

A click reaches nobody but the browser, so forty images are labeled as fast as a person clicks.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from .tiles import Tile, shown
from .widget import Widget

LABELS = "(_, ...rest) => [document.querySelector('#labeller .labeller')?.dataset.labels ?? '{}', ...rest]"


class Labeller(Widget):
    """Events: `more`."""

    script: ClassVar[str] = "labeller.js"


def labeled(
    collection: str, tiles: Sequence[Tile], *, more: bool, labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What a Labeller shows.

    Args:
        collection: another one than before takes the labels away.
        more: whether there are images that do not stand there yet.
        labels: by id, in place of those that there are; None: they stay.
    """
    mark = secrets.token_hex(4)
    return {"collection": collection, "tiles": shown(tiles), "more": more, "labels": labels, "mark": mark}
