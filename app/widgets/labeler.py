"""Labeler: a grid of images that the user labels by clicking; the labels stay in the browser until the fit.

    grid = Labeler(elem_id="labeler")
    page.on(grid.more, handler, ...)                    # event.shown: the number of images shown
    page.on(button.click, fit, [grid, name], ..., js=LABELS)    # fit(labels: str, name): JSON, labels by item id
    return labeler_value("photos", tiles, more=True)    # the value that a handler returns

A click sends no request, so forty images are labeled as fast as a user can click.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from .tiles import Tile, tiles_value
from .widget import Widget

LABELS = "(_, ...rest) => [document.querySelector('#labeler .labeler')?.dataset.labels ?? '{}', ...rest]"


class Labeler(Widget):
    """Event: `more`."""

    script: ClassVar[str] = "labeler.js"


def labeler_value(
    collection: str, tiles: Sequence[Tile], *, more: bool, labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a Labeler value.

    Args:
        collection: if it differs from the previous one, the labels are removed.
        more: whether there are images that are not shown yet.
        labels: by item id, replacing all labels; None keeps the labels.
    """
    value = {"collection": collection, "tiles": tiles_value(tiles), "more": more, "labels": labels}
    return value | {"id": secrets.token_hex(4)}
