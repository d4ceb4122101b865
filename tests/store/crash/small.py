"""Small store settings, so that a few dozen items go through everything that a few hundred thousand do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nnclr_hub.store.embedded import EmbeddedStore
from nnclr_hub.store.settings import StoreSettings

SMALL = StoreSettings(
    memory=1 << 30,
    flat_below=20,
    points_per_list=8,
    delta_chunk=8,
    batch=8,
    min_delta=12,
    max_delta=24,
    snapshot_on_close=20,
    snapshot_after=40,
    min_trial=4,
    max_trial=32,
)
# snapshots are taken on request only
WITHOUT_SNAPSHOTS = replace(SMALL, snapshot_on_close=1000, snapshot_after=20_000)


def open_small_store(folder: str | Path, read_only: bool = False, *, settings: StoreSettings = SMALL) -> EmbeddedStore:
    """Open a folder like `open_store`, with small settings."""
    return EmbeddedStore(folder, read_only=read_only, settings=settings)
