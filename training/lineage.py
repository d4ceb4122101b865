"""The record of a run's origin in its encoder: parents, images and their terms, and the commit of the code."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.publish.provenance import DIRTY, parent_record

from .data.image_index import ImageIndex
from .initial_encoder import InitialEncoder

ROOT = Path(__file__).parents[1]


def lineage_of(
    start: InitialEncoder | None, folders: Sequence[Path | str], files: ImageIndex, terms: str | None
) -> dict[str, Any]:
    """Return "data", "data_images", "data_terms", "parents" and "commit", as far as they are known.

    Args:
        start: the encoder that the run started from.
        folders: data folders.
        files: the images that the run trains on.
        terms: of the images.
    """
    provenance: dict[str, Any] = {"data": [Path(one).resolve().name for one in folders], "data_images": len(files)}
    if terms:
        provenance["data_terms"] = terms
    if start is not None:
        provenance["parents"] = [parent_record(start.source, load_encoder(start.source, device="cpu"))]
    if commit := _commit():
        provenance["commit"] = commit
    return provenance


def _commit() -> str | None:
    """Return the commit of the checkout that this code runs from; None for an installed package.

    It ends with "-dirty" if tracked files have uncommitted changes.
    """
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", f"--dirty={DIRTY}"]  # no tags, whole hash
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
