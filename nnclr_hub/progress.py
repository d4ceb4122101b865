"""Progress bars with rate and remaining time, for programs; the library itself does not print.

with bar(console, "decoding") as advance:
    advance(done, total)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from nnclr_hub.terminal import lines, visible

Advance = Callable[[int, int], None]  # (done, total)


def in_megabytes(advance: Advance) -> Advance:
    """Return the progress of work that counts bytes, for a bar of megabytes."""
    return lambda done, total: advance(-(-done // 10**6), -(-total // 10**6))


@contextmanager
def bar(console: Console, title: str, *, unit: str = "images", each: int = 1) -> Iterator[Advance]:
    """Show a bar from the first step on; without a terminal, a line every few seconds and the last state.

    Args:
        each: units per step of `done`.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=console)
    task, began, state = None, (0.0, 0), ""

    def advance(done: int, total: int) -> None:
        nonlocal task, began, state
        if not total:  # it is not known yet, or there is nothing to do
            return
        if task is None:
            progress.start()
            task, began = progress.add_task(visible(title), total=total, rate=""), (time.perf_counter(), done)
        seconds, since = time.perf_counter() - began[0], done - began[1]
        rate = f"{since * each / seconds:.0f} {unit}/s" if since and seconds else ""
        state = f" {done * each} of {total * each} {rate}".rstrip()
        progress.update(task, completed=done, total=total, rate=rate)

    with nullcontext() if console.is_terminal else lines(console, lambda: f"{visible(title)}{state or ' ...'}"):
        try:
            yield advance
        finally:
            if task is not None:  # stopping a bar that never started would print an empty line
                progress.stop()


@contextmanager
def bars(console: Console) -> Iterator[Callable[[str, str], Advance]]:
    """Yield a function that makes a bar of a title and a unit, for work in several parts.

    The first step of a bar ends the one before, because only one can be on the screen.
    """
    with ExitStack() as shown:

        def make(title: str, unit: str) -> Advance:
            advance: Advance | None = None

            def step(done: int, total: int) -> None:
                nonlocal advance
                if advance is None:
                    shown.close()
                    advance = shown.enter_context(bar(console, title, unit=unit))
                advance(done, total)

            return step

        yield make
