"""The cache folder, for data that can be recreated: decoded images, the demo's gallery, downloads."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return $NNCLR_CACHE, else $XDG_CACHE_HOME/nnclr_hub, else ~/.cache/nnclr_hub.

    For a user without a home, as in some containers, ~ becomes a folder in the working directory, as in the Hub's
    client.
    """
    chosen = os.environ.get("NNCLR_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "nnclr_hub"
