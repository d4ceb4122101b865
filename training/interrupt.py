"""Stop a run at the next step, with a checkpoint, on a signal or at a time limit; requeue a job of Slurm."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console


class Interrupted(Exception):
    """Raised when a signal stopped the work; the message states how to continue."""


@contextmanager
def stop_signals(
    event: threading.Event | None = None,
    *,
    ignore_repeats: bool = False,
    until: float | None = None,
    on_requeue: Callable[[], None] = lambda: None,
) -> Iterator[threading.Event]:
    """Yield an event that SIGTERM, Ctrl-C or SIGUSR1 sets, so that the loop stops at the next step.

    A second signal ends the program at once.

    Args:
        event: one that others may set too; default a new one.
        ignore_repeats: ignore further signals. In a distributed run Ctrl-C reaches each process twice: from the
            terminal and from torchrun.
        on_requeue: called on SIGUSR1, by which Slurm announces the end of a job's time.
        until: time limit on the clock of `time.monotonic`, which sets the event as well.
    """
    event = event or threading.Event()
    remaining = 0.0 if until is None else until - time.monotonic()
    timer = threading.Timer(max(0.0, remaining), event.set)
    timer.daemon = True
    if until is not None and remaining <= 0:
        event.set()
    elif until is not None:
        timer.start()

    def handle(number: int, frame: FrameType | None) -> None:
        event.set()
        if number == signal.SIGUSR1:
            on_requeue()
        elif not ignore_repeats:
            for one, handler in before.items():
                signal.signal(one, handler)

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before.update({one: signal.signal(one, handle) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)})
    try:
        yield event
    finally:
        timer.cancel()
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def requeue_signal(console: Console) -> Iterator[None]:
    """Requeue the job of Slurm on SIGUSR1, and stop as on Ctrl-C, inside the block and outside `stop_signals`.

    Steps are not interrupted: `stop_signals` waits for a checkpoint. Decoded images are kept; what is evaluated before
    the first step is evaluated again.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":
            requeue_job(console)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def requeue_job(console: Console) -> None:
    """Ask Slurm to start this job again; `--resume` in its command continues the run."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or (scontrol := shutil.which("scontrol")) is None:
        console.print("SIGUSR1: this is not a Slurm job, so nothing starts the run again", highlight=False)
        return
    done = subprocess.run([scontrol, "requeue", job], capture_output=True, text=True)
    failed = f" failed: {done.stderr.strip()}" if done.returncode else ""
    console.print(f"scontrol requeue {job}{failed}", highlight=False)
