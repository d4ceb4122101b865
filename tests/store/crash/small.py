"""Settings of the crash suite: small stores, its short and its long form, and the environment of child processes.

With small store settings, a few dozen items go through everything that a few hundred thousand do. `make test` runs the
short form and `make crash` the long one. NNCLR_CRASH_SECONDS selects the long form, and for how long each file of tests
repeats random kills and damage; NNCLR_CRASH_SEED selects others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from nnclr_hub.store.folder import EmbeddedStore
from nnclr_hub.store.settings import StoreSettings

SECONDS = float(os.environ.get("NNCLR_CRASH_SECONDS", "0"))
LONG = SECONDS > 0
SEED = int(os.environ.get("NNCLR_CRASH_SEED", "1"))
TESTS = Path(__file__).parents[2]
SMALL = StoreSettings(
    memory=1 << 30,
    flat_below=20,
    fit_from=12,
    points_per_list=8,
    batch=8,
    min_recent=12,
    max_recent=24,
    coarse_from=20,
    snapshot_on_close=20,
    snapshot_after=40,
    kept_changes=60,
)
# snapshots are taken on request only
WITHOUT_SNAPSHOTS = replace(SMALL, snapshot_on_close=1000, snapshot_after=20_000)


def repeated(share: float) -> Iterator[None]:
    """Yield once; in the long form until a share of its seconds is over."""
    end = time.monotonic() + share * SECONDS
    yield
    while time.monotonic() < end:
        yield


def open_small_store(folder: str | Path, read_only: bool = False, *, settings: StoreSettings = SMALL) -> EmbeddedStore:
    """Open a folder like `open_store`, with small settings."""
    return EmbeddedStore(folder, read_only=read_only, settings=settings)


def environment(**more: str) -> dict[str, str]:
    """Return the environment for a Python that shall import this checkout and the tests' modules."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **more}
