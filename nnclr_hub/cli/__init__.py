"""`nnclr`: the command line. Each verb group is a file; the work is done elsewhere.

python -m nnclr_hub.cli --help          # the same without installing
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress


def main() -> None:
    """Run the command line."""
    from nnclr_hub.cli.app import app

    try:
        app(prog_name="nnclr")
    except SystemExit as end:
        if "torch" in sys.modules and isinstance(end.code, int | None):
            _end_process(end.code or 0)
        raise


def _end_process(code: int) -> None:
    # this ends the process as Python does, but does not free every object of torch, which takes seconds
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing ends its processes
    atexit._run_exitfuncs()
    with suppress(OSError):  # Python reports a closed pipe
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
