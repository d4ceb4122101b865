"""The folder for what can be made or fetched again: decoded images, the demo's gallery."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$NNCLR_CACHE, else $XDG_CACHE_HOME/nnclr_hub, else ~/.cache/nnclr_hub.

    Of a user without a home, as in some containers, ~ is a folder where the program runs, as for the Hub's client.
    """
    chosen = os.environ.get("NNCLR_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "nnclr_hub"
