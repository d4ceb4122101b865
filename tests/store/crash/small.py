"""The store's sizes made small, so that a few dozen items go through all that a few hundred thousand do."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

SIZES = {
    "delta.CHUNK": 8,
    "fold.SMALLEST_DELTA": 12,
    "fold.LARGEST_DELTA": 24,
    "fold.FLAT_BELOW": 20,
    "fold.BATCH": 16,
    "index_kinds.FLAT_BELOW": 20,
    "index_kinds.POINTS_A_LIST": 8,
    "index_kinds.BATCH": 16,
    "recovery.CHUNK": 8,
    "care.SNAPSHOT_AFTER": 40,
    "care.SNAPSHOT_ON_CLOSE": 20,
    "searching.TRIED_LEAST": 4,
    "searching.TRIED_MOST": 32,
}


def sizes(but: str = "") -> Iterator[tuple[Any, str, int]]:
    """Module, name and value, as `setattr` and pytest's `monkeypatch.setattr` take them, but for one module."""
    for path, value in SIZES.items():
        module, name = path.split(".")
        if module != but:
            yield importlib.import_module(f"nnclr_hub.store.{module}"), name, value


def shrink() -> None:
    """For good, in a process of its own."""
    for module, name, value in sizes():
        assert hasattr(module, name), f"{module.__name__} has no {name}"
        setattr(module, name, value)
