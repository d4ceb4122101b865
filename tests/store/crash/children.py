"""Processes that a test starts and kills."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    """Return the environment for a Python that shall import this checkout and the tests' modules."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **more}
