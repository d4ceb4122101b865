"""Replace a file at once, so that readers find the old content or the new one, never a part."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def replace_file(path: Path, content: bytes | str, *, durable: bool = False) -> None:
    """Write a temporary file next to the file, then rename it; text becomes UTF-8, and names keep other bytes.

    Args:
        path: path of the file.
        content: content of the file.
        durable: return when the file survives a loss of power.

    Raises:
        OSError: the content does not fit, or the folder cannot be written; the old file is kept.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        temporary.write_bytes(content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)
        if durable:
            _fsync(temporary)
        temporary.replace(path)
        if durable:
            _fsync(path.parent)
    except OSError as error:
        error.filename = str(path)  # not that of the temporary file
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
