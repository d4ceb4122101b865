"""Files that are there as a whole or not at all, also when two processes write the same one."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from nnclr_hub.errors import DiskFull
from nnclr_hub.store.durable import fsync_folder

UNFINISHED = ".unfinished"


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes its name, on disk, when the block is done; and is gone when the block fails.

    Raises:
        DiskFull: it does not fit; what had the name before keeps it.
    """
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}{UNFINISHED}")
    try:
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        fsync_folder(path.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFull(f"{path} does not fit on the disk: make room and call again, what is done stays.") from error
        raise
    finally:
        unfinished.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Removes what processes that were killed have left unfinished; for when nobody writes any more."""
    for path in folder.glob(f".*{UNFINISHED}"):
        path.unlink(missing_ok=True)
