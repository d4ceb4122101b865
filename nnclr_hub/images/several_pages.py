"""Files of several pages, of which only the first one is read: a warning for each folder, and their number."""

from __future__ import annotations

import logging
import os
import threading

log = logging.getLogger(__name__)

MOST_NAMES = 100_000  # of a folder that are counted


class NamedBytes(bytes):
    """The bytes of an image in an archive or at an address.

    name: to show.
    """

    name: str

    def __new__(cls, data: bytes | memoryview, name: str) -> NamedBytes:
        created = super().__new__(cls, data)
        created.name = name
        return created


_names: dict[str, set[str]] = {}  # of files, by folder
_noting = threading.Lock()  # threads decode side by side


def note(name: str) -> None:
    """Count a file, and warn once per folder.

    Args:
        name: of the image, as a path; "" for bytes without a name, which come from clients, who cannot see this log.
    """
    if not name:
        return
    with _noting:
        known = _names.setdefault(os.path.dirname(name), set())
        first = not known
        if len(known) < MOST_NAMES:
            known.add(name)
    if first:
        log.warning(
            "%s has several pages; only the first one is read, also for other files of its folder. Choose another one "
            "with --page, or all with --project max; save pages that are separate images as separate files.",
            name,
        )


def counts() -> dict[str, int]:
    """Return the number of such files by folder."""
    return {folder: len(names) for folder, names in _names.items()}


def forget() -> None:
    """Begin to count again."""
    _names.clear()
