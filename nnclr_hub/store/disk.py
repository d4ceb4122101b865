"""Folders that survive a loss of power, and the lock by which one process at a time writes to a store."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from nnclr_hub.errors import DiskFull, StoreClosed, StoreError, StoreLocked

ID = "ID"
TOO_MANY_FILES = "This process has too many open files; close some, or raise its limit (`ulimit -n`), then repeat."
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
    with disk_errors(folder):
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


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Translate errors of the system about the files of a folder."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise DiskFull(
                f"{folder} does not fit on the disk; nothing of this call was kept. Free some space, and retry."
            ) from error
        raise StoreError(
            f"{folder} cannot be used ({error.strerror or error}); check the folder and its permissions."
        ) from error


def check_process(pid: int) -> None:
    """Refuse a store that a parent process opened: its threads do not exist here, so a call would wait forever."""
    if os.getpid() != pid:
        raise StoreClosed(
            "The store was opened before this process was forked, so it cannot be used here. Open it again in this "
            'process with read_only=True, or start processes with the method "spawn".'
        )


def read_id(folder: Path) -> str | None:
    """Return what identifies a store, wherever its folder is moved; None if it has no id yet."""
    try:
        id = (folder / ID).read_bytes()
    except OSError:
        return None
    return id.decode() if re.fullmatch(b"[0-9a-f]{32}", id) else None


def write_id(folder: Path, id: str | None = None) -> None:
    """Give a store its id, or a new one if it has none. On a full disk it gets one at a later start."""
    if read_id(folder) is None:
        with suppress(OSError), (folder / ID).open("w") as file:
            file.write(id or uuid.uuid4().hex)
            file.flush()
            os.fsync(file.fileno())
            fsync_folder(folder)


def take_lock(folder: Path) -> BinaryIO:
    """Lock a folder for writing, until `give_back` or the end of the process; make it if it does not exist."""
    try:
        make_folder(folder)
        handle = (folder / "LOCK").open("ab")
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise StoreError(TOO_MANY_FILES) from error
        reason = "it is a file" if folder.is_file() else error.strerror
        raise StoreError(
            f"The store {folder} cannot be opened ({reason}); choose a folder that can be written."
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # the folder itself is locked, too: if the file is removed, a second writer is still refused
        _lock_folder(folder, handle)
    except OSError as error:
        handle.close()
        raise StoreLocked(
            f"The store {folder} is already open for writing, in this process or another. Stop the other one "
            "(a server, or an `nnclr index`), or send your request to that server."
        ) from error
    return handle


_folders: dict[BinaryIO, int] = {}  # descriptors of locked folders


def _lock_folder(folder: Path, handle: BinaryIO) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return  # network file systems lock only files
    _folders[handle] = descriptor


def give_back(handle: BinaryIO) -> None:
    """Release a lock."""
    descriptor = _folders.pop(handle, None)
    # closing is not enough while a forked child has the files open
    if descriptor is not None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
    fcntl.flock(handle, fcntl.LOCK_UN)
    handle.close()
