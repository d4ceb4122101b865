"""Class folders: one folder of images per class, stored until a probe is fitted on them and then deleted."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.workbench.staged_images import staged_images
from nnclr_hub.workbench.staging import stage, unstage

from .handlers import escape_markdown
from .widgets.uploader import MAX_FILES_WHOLE, uploaded_files

MAX_LISTED = 8
_TICKET = re.compile(r"[0-9a-f]{32}")


def store_folders(files: Any, max_bytes: int) -> str:
    """Store the files of an upload, and return their ticket.

    Args:
        max_bytes: maximum size of one image.

    Raises:
        InvalidRequest: fewer than two folders contain images, or a zip is not acceptable.
        Overloaded: the space for stored uploads is full.
    """
    ticket = stage(uploaded_files(files, MAX_FILES_WHOLE))
    try:
        count_classes(ticket, max_bytes)
    except BaseException:
        unstage(ticket)
        raise
    return ticket


def count_classes(ticket: str, max_bytes: int) -> Counter[str]:
    """Return the number of stored images per class; images without a folder are counted under "".

    Raises:
        InvalidRequest: there are fewer than two classes, or nothing is stored under the ticket.
    """
    with staged_images(ticket, max_bytes) as (images, _):
        counts = Counter(image.label for image in images)
    named = [label for label in counts if label]
    if len(named) < 2:
        problem = f"All images are in the folder {named[0]!r:.90}" if named else "No image is in a folder"
        raise InvalidRequest(
            f"{problem}, but a probe needs at least two classes. Choose a folder that contains one folder per class."
        )
    return counts


def describe(counts: Counter[str]) -> str:
    """Return the counts of the stored images as Markdown."""
    named = [(label, number) for label, number in sorted(counts.items()) if label]
    classes = ", ".join(f"{escape_markdown(label)} {number:,}" for label, number in named[:MAX_LISTED])
    others = f" and {len(named) - MAX_LISTED:,} more" if len(named) > MAX_LISTED else ""
    unlabeled = f" {counts['']:,} images without a folder are skipped." if counts[""] else ""
    total = sum(number for _, number in named)
    return (
        f"**{total:,} images** in {len(named):,} classes are ready: {classes}{others}.{unlabeled} "
        "Enter a name for the probe and press *Fit*."
    )


def read_ticket(stored: Any) -> str | None:
    """Return the ticket that a browser stored, or None if it is not valid."""
    return stored if isinstance(stored, str) and _TICKET.fullmatch(stored) else None
