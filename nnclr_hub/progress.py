"""A progress bar with rate and time left, for programs; the library itself never prints.

with bar(console, "decoding") as advance:
    advance(done, total)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Advance = Callable[[int, int], None]  # (done, total)


@contextmanager
def bar(console: Console, title: str, *, unit: str = "images", each: int = 1) -> Iterator[Advance]:
    """Shows a bar from the first step on; off a terminal, its last state alone.

    Args:
        console: where to draw.
        title: what is being done.
        unit: what the rate counts.
        each: units that one step of `done` stands for.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=None, rate="", visible=False)
        began: tuple[float, int] | None = None

        def advance(done: int, total: int) -> None:
            nonlocal began
            began = began or (time.perf_counter(), done)
            seconds, since = time.perf_counter() - began[0], done - began[1]
            rate = f"{since * each / seconds:.0f} {unit}/s" if since and seconds else ""
            progress.update(task, completed=done, total=total, rate=rate, visible=True)

        yield advance
