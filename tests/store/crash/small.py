"""The store's sizes made small, so that a few dozen items go through all that a few hundred thousand do."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

SIZES = {
    "ann.delta.CHUNK": 8,
    "ann.fold.SMALLEST_DELTA": 12,
    "ann.fold.LARGEST_DELTA": 24,
    "ann.fold.FLAT_BELOW": 20,
    "ann.fold.BATCH": 16,
    "ann.kinds.FLAT_BELOW": 20,
    "ann.kinds.POINTS_A_LIST": 8,
    "ann.kinds.BATCH": 16,
    "embedded.recovery.CHUNK": 8,
    "embedded.care.SNAPSHOT_AFTER": 40,
    "embedded.care.SNAPSHOT_ON_CLOSE": 20,
    "embedded.searching.TRIED_LEAST": 4,
    "embedded.searching.TRIED_MOST": 32,
}


def sizes(but: str = "") -> Iterator[tuple[Any, str, int]]:
    """Module, name and value, as `setattr` and pytest's `monkeypatch.setattr` take them, but for one module."""
    for path, value in SIZES.items():
        module, name = path.rsplit(".", 1)
        if module != but:
            yield importlib.import_module(f"nnclr_hub.store.{module}"), name, value


def shrink() -> None:
    """For good, in a process of its own."""
    for module, name, value in sizes():
        assert hasattr(module, name), f"{module.__name__} has no {name}"
        setattr(module, name, value)
