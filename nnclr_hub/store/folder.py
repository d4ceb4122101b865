"""Folders that survive a loss of power, and the lock by which one process at a time writes to a store."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from nnclr_hub.errors import DiskFull, StoreError, StoreLocked

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, and make their names durable."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        fsync_folder(folder.parent)


def fsync_folder(folder: Path) -> None:
    """Make the names of new, renamed and deleted files in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """Provide a temporary folder that is renamed to `folder` after the block, and removed if the block fails."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # inside of mkdtemp's folder, which only the owner can enter: the folder gets the usual mode
        outer = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
        try:
            partial = outer / folder.name
            partial.mkdir()
            yield partial
            partial.rename(folder)
            fsync_folder(folder.parent)
        finally:
            shutil.rmtree(outer, ignore_errors=True)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise DiskFull(
                f"{folder} does not fit on the disk; nothing was kept. Free some space, and retry."
            ) from error
        raise StoreError(
            f"{folder} cannot be written ({error.strerror or error}); choose a folder that can be written."
        ) from error


def take_lock(folder: Path) -> BinaryIO:
    """Lock a folder for writing, until `give_back` or the end of the process; make it if it does not exist.

    Raises:
        StoreLocked: the folder is open for writing already.
        StoreError: it cannot be written.
    """
    try:
        make_folder(folder)
        handle = (folder / "LOCK").open("ab")
    except OSError as error:
        raise StoreError(
            f"The store {folder} cannot be opened ({error.strerror}); choose a folder that can be written."
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        raise StoreLocked(
            f"The store {folder} is already open for writing, in this process or another. Stop the other one "
            "(a server, or an `nnclr index`), or send your request to that server."
        ) from error
    return handle


def give_back(handle: BinaryIO) -> None:
    """Release a lock."""
    fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough while a forked child has the file open
    handle.close()
