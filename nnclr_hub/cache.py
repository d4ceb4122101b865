"""The cache folder, for data that can be recreated: decoded images, the demo's gallery, downloads."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nnclr_hub.errors import NoRoom


def cache_folder() -> Path:
    """Return $NNCLR_CACHE, else $XDG_CACHE_HOME/nnclr_hub, else ~/.cache/nnclr_hub.

    For a user without a home, as in some containers, ~ becomes a folder in the working directory, as in the Hub's
    client.
    """
    chosen = os.environ.get("NNCLR_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "nnclr_hub"


def is_in_cache(file: Any) -> bool:
    """Return whether a file of an OSError, if it has one, is in the cache folder."""
    return bool(file) and Path(os.fsdecode(file)).absolute().is_relative_to(cache_folder().absolute())


def not_writable(error: OSError, cache: Path | None = None) -> NoRoom:
    """Return the error of a cache folder, by default `cache_folder()`, that cannot be written."""
    return NoRoom(
        f"The cache folder {cache or cache_folder()} cannot be written ({error.strerror}); set NNCLR_CACHE to another."
    )


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold a folder such as CACHE/packs/NAME for this program, and wait while another one does.

    Raises:
        NoRoom: the cache folder cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_suffix(".lock").open("w")
    except OSError as error:
        raise not_writable(error, folder.parents[1]) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
