"""What is printed for people: file names, labels and other stored text as they are, but never as commands.

A name such as `[bold]` is not taken for markup. Control characters, which change a terminal, are shown as \\x1b.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.text import Text

# C0 without tab and newline, DEL and C1, marks that reverse the direction of text, and bytes that are not UTF-8
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Return text with escapes for control characters, so that a terminal prints it and does nothing else."""

    def escaped(match: re.Match[str]) -> str:
        code = ord(match[0])
        code -= 0xDC00 if 0xDC80 <= code <= 0xDCFF else 0  # a byte that is not UTF-8
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _UNSAFE.sub(escaped, text)


class PlainConsole(Console):
    """A console that prints strings as they are, without markup and control characters, also in tables."""

    def __init__(self, **options: Any) -> None:
        plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
        super().__init__(**plain | options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as it is printed; rich calls this for each."""
        return super().render_str(visible(text), **options)


class _Visible(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def show_warnings_safely() -> None:
    """Print what is logged without control characters, unless the program has set up its logging."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Visible())


def print_data(text: str) -> None:
    """Print data, such as a table, to standard output: as it is for programs, visibly on a terminal."""
    if sys.stdout.isatty():
        text = visible(text)
    sys.stdout.flush()
    output = getattr(sys.stdout, "buffer", None)
    if output is None:
        sys.stdout.write(visible(text))
        return
    output.write(text.encode("utf-8", "surrogateescape"))
    output.flush()


# ---- lines instead of bars, in a pipe

EVERY = 5.0  # seconds between two lines
_open: list[threading.Event] = []  # one for each open block of `lines`, the innermost last


@contextmanager
def lines(console: Console, state: Callable[[], str]) -> Iterator[None]:
    """Print a line every few seconds in the block, from another thread; only the innermost block does.

    Args:
        state: returns the line, or "" for none.
    """
    ended, began = threading.Event(), time.monotonic()

    def report() -> None:
        while not ended.wait(EVERY):
            if _open[-1:] == [ended] and (text := state()):
                with suppress(OSError):  # nobody reads the pipe any more
                    console.print(f"{text} ({time.monotonic() - began:.0f} s)", markup=False, soft_wrap=True)

    _open.append(ended)
    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        _open.remove(ended)
        ended.set()
        thread.join()
