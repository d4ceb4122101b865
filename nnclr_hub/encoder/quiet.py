"""Other packages' warnings, kept in while images are decoded in many threads at once, or a network is traced.

`warnings.catch_warnings` swaps the process's filters and puts them back on leaving; two threads whose
blocks overlap leave the wrong ones behind. Here the first to enter swaps them and the last to leave
puts them back.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image

_lock = threading.Lock()
_inside = 0
_caught = warnings.catch_warnings()


@contextmanager
def pillow_kept_quiet() -> Iterator[None]:
    """Ignores what Pillow warns of, and makes an error of the one warning that matters: too many pixels.

    Raises:
        PIL.Image.DecompressionBombWarning: from the block, as an exception.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


@contextmanager
def tracer_kept_quiet() -> Iterator[None]:
    """Ignores torch's warnings of what a trace takes as constant (sizes that are), and of the tracer's age."""
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _inside, _caught
    with _lock:
        _inside += 1
        if _inside == 1:
            _caught = warnings.catch_warnings()
            _caught.__enter__()
            warnings.filterwarnings("ignore", module=r"PIL\.")
            warnings.filterwarnings("ignore", message=r"Converting a tensor to a Python|`torch\.jit\.")
            warnings.simplefilter("error", Image.DecompressionBombWarning)


def _leave() -> None:
    global _inside
    with _lock:
        _inside -= 1
        if _inside == 0:
            _caught.__exit__(None, None, None)
