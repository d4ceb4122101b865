"""What counts as no value in labels of tables, Parquet files and metadata."""

from __future__ import annotations

from typing import Any


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN or blank text; words such as NA are values."""
    return value is None or (not value.strip() if isinstance(value, str) else is_nan(value))


def is_nan(value: Any) -> bool:
    """Return whether a value is NaN, of any type of numbers."""
    return getattr(value, "ndim", 0) == 0 and bool(value != value)
