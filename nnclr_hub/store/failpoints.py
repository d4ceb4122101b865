"""Named steps at which a test kills the process or runs code; otherwise each costs one comparison.

NNCLR_FAILPOINT=snapshot.renamed:2 kills the process (SIGKILL) when that step is reached for the second time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STEPS = (
    *(f"write.{step}" for step in ("begun", "applied", "committed", "indexing", "indexed")),
    *(f"snapshot.{step}" for step in ("taken", "written", "synced", "checked", "renamed", "folder_synced")),
    *("snapshot.recorded", "snapshot.cleaned", "fold.built", "fold.swapped", "vacuum.step"),
    *("create.made", "create.recorded", "drop.recorded", "drop.removed", "promote.begun", "promote.recorded"),
    *("backup.chunk", "backup.chunks", "backup.done", "backup.removed", "recover.loaded", "recover.replayed"),
)
_countdown: dict[str, int] = {}
_actions: dict[str, Callable[[], object]] = {}


if "NNCLR_FAILPOINT" in os.environ:
    _step, _, _times = os.environ["NNCLR_FAILPOINT"].partition(":")
    assert _step in STEPS, f"unknown failpoint {_step!r}"
    _countdown[_step] = int(_times or 1)


@contextmanager
def at(step: str, action: Callable[[], object]) -> Iterator[None]:
    """Run an action whenever a step is reached during the block; the action may raise."""
    assert step in STEPS, f"unknown failpoint {step!r}"
    _actions[step] = action
    try:
        yield
    finally:
        del _actions[step]


def reached(step: str) -> None:
    """Mark a step; end the process or run an action here if a test wants that."""
    if _countdown:
        _countdown[step] = _countdown.get(step, 0) - 1
        if _countdown[step] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    if step in _actions:
        _actions[step]()
