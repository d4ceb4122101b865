"""The cache folder, for data that can be recreated: decoded images, the demo's gallery, downloads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


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
