"""Named steps at which a test kills the process or runs code; otherwise each costs one comparison.

NNCLR_FAILPOINT=snapshot.renamed:2 kills the process (SIGKILL) when that step is reached for the second time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STEPS = (
    # a write (writer.py)
    "write.begun",
    "write.applied",
    "write.committed",
    "write.indexing",
    "write.indexed",
    # a snapshot of the index (snapshots.py)
    "snapshot.taken",
    "snapshot.written",
    "snapshot.synced",
    "snapshot.checked",
    "snapshot.renamed",
    "snapshot.folder_synced",
    "snapshot.recorded",
    "snapshot.cleaned",
    # a fold of the delta (fold.py)
    "fold.built",
    "fold.swapped",
    # deleted pages are given back (maintenance.py)
    "vacuum.step",
    # names (store.py)
    "create.made",
    "create.recorded",
    "drop.recorded",
    "drop.removed",
    "promote.begun",
    "promote.recorded",
    # a backup (backup.py)
    "backup.chunk",
    "backup.chunks",
    "backup.done",
    "backup.removed",
    # opening (recovery.py)
    "recover.loaded",
    "recover.replayed",
)
_countdown: dict[str, int] = {}
_actions: dict[str, Callable[[], object]] = {}


def _arm(setting: str) -> None:
    step, _, times = setting.partition(":")
    assert step in STEPS, f"unknown failpoint {step!r}"
    _countdown[step] = int(times or 1)


if "NNCLR_FAILPOINT" in os.environ:
    _arm(os.environ["NNCLR_FAILPOINT"])


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
