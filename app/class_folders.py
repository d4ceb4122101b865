"""Class folders: a folder of images for each class, which wait until a probe is fitted on them, and go then."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.workbench.staged_images import staged_images
from nnclr_hub.workbench.staging import stage, unstage

from .steps import plain
from .widgets.intake import MOST_FILES_WHOLE, chosen_files

NAMED = 8
_TICKET = re.compile(r"[0-9a-f]{32}")


def take(files: Any, most_bytes: int) -> str:
    """What an intake gave now waits; its ticket.

    Args:
        most_bytes: of one image.

    Raises:
        InvalidRequest: there are no two folders with images, or a zip is none that is taken.
        Overloaded: too much waits already.
    """
    ticket = stage(chosen_files(files, MOST_FILES_WHOLE))
    try:
        classes(ticket, most_bytes)
    except BaseException:
        unstage(ticket)
        raise
    return ticket


def classes(ticket: str, most_bytes: int) -> Counter[str]:
    """How many images of each class wait; under "" those that lie in no folder.

    Raises:
        InvalidRequest: of fewer than two, or nothing waits any more.
    """
    with staged_images(ticket, most_bytes) as (pictures, _):
        counts = Counter(picture.label for picture in pictures)
    named = [label for label in counts if label]
    if len(named) < 2:
        has = f"All images lie in the folder {named[0]!r:.90}" if named else "No image lies in a folder"
        raise InvalidRequest(
            f"{has}, and a probe tells at least two classes apart: choose a folder that holds a folder for each class."
        )
    return counts


def what_waits(counts: Counter[str]) -> str:
    """What waits, as Markdown."""
    named = [(label, number) for label, number in sorted(counts.items()) if label]
    each = ", ".join(f"{plain(label)} {number:,}" for label, number in named[:NAMED])
    others = f" and {len(named) - NAMED:,} more" if len(named) > NAMED else ""
    nowhere = f" {counts['']:,} lie in no folder and are left out." if counts[""] else ""
    total = sum(number for _, number in named)
    return (
        f"**{total:,} images** of {len(named):,} classes wait: {each}{others}.{nowhere} "
        "Give the probe a name and press *Fit*."
    )


def ticket_of(kept: Any) -> str | None:
    """The ticket that a browser remembers."""
    return kept if isinstance(kept, str) and _TICKET.fullmatch(kept) else None
