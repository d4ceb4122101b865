"""The lock of a store's folder: one process at a time writes."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import BinaryIO

from nnclr_hub.errors import StoreError, StoreLocked
from nnclr_hub.store.durable import make_folder


def take_lock(folder: Path) -> BinaryIO:
    """The right to write, until it is given back or this process ends; makes the folder if it is not there.

    Raises:
        StoreLocked: the folder is open for writing already.
        StoreError: it cannot be written.
    """
    try:
        make_folder(folder)
        handle = (folder / "LOCK").open("ab")
    except OSError as error:
        raise StoreError(
            f"The store {folder} cannot be opened ({error.strerror}): name a folder that can be written."
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        raise StoreLocked(
            f"The store {folder} is open for writing already, in this process or another: stop that one (a server, "
            "or an `nnclr index`), or send your request to that server."
        ) from error
    return handle


def give_back(handle: BinaryIO) -> None:
    """Others may write."""
    fcntl.flock(handle, fcntl.LOCK_UN)  # closing alone does not do it while a forked child has the file open
    handle.close()
