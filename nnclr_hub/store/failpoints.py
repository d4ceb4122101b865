"""Named steps at which a crash test kills the process; they cost a comparison and do nothing in normal life.

NNCLR_FAILPOINT=snapshot.renamed:2 kills the process (SIGKILL) when that step is reached for the second time.
"""

from __future__ import annotations

import os
import signal

STEPS = (
    # a request that writes (writer.py)
    "write.begun",
    "write.applied",
    "write.committed",
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
    # the delta into the main part (ann.py)
    "fold.built",
    "fold.swapped",
    # names (embedded.py)
    "create.made",
    "create.recorded",
    "drop.recorded",
    "drop.removed",
    "promote.begun",
    "promote.recorded",
    # opening (recovery.py)
    "recover.loaded",
    "recover.replayed",
)
_countdown: dict[str, int] = {}


def _arm(setting: str) -> None:
    step, _, times = setting.partition(":")
    assert step in STEPS, f"no failpoint {step!r}"
    _countdown[step] = int(times or 1)


if "NNCLR_FAILPOINT" in os.environ:
    _arm(os.environ["NNCLR_FAILPOINT"])


def reached(step: str) -> None:
    """Says that a step is done; the process ends here if a test wants it to."""
    if _countdown:
        _countdown[step] = _countdown.get(step, 0) - 1
        if _countdown[step] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
