"""Filters for the warnings of other packages that work from several threads at once.

`warnings.catch_warnings` replaces the filters of the whole process and restores them on exit. Two threads whose blocks
overlap would restore the wrong filters. Here the first thread to enter replaces them and the last to leave restores
them.
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
def ignore_warnings() -> Iterator[None]:
    """Ignore the warnings of Pillow and of torch's tracer, except for one that becomes an error: too many pixels.

    The tracer warns of values that it takes as constant, such as sizes, which are constant here, and of its age.

    Raises:
        PIL.Image.DecompressionBombWarning: raised in the block.
    """
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
