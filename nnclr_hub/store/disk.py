"""Folders that survive a loss of power, the lock of a store, and its free space."""

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

from nnclr_hub.errors import DiskFull, StoreError, StoreLocked

ID = "ID"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# a commit is refused if less than this would be left on the disk: merging SQLite's log needs space as well
LOW_WATER = 64 << 20
TOO_MANY_FILES = "This process has too many open files; close some, or raise its limit (`ulimit -n`), then repeat."


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, and make their names durable."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        fsync_folder(folder.parent)


def fsync_folder(folder: Path) -> None:
    """Make the names of new, renamed and deleted files in a folder durable; or the content of a file."""
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
        raise error_of_system(folder, error) from error


def size_of_file(path: Path) -> int:
    """Return the bytes of a file; 0 if it does not exist, as a log that another thread removes now."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


# ------------------------------------------------------------------------------ free space


def free_bytes(path: Path) -> int:
    """Return how many bytes are free on the disk of a file."""
    try:
        return shutil.disk_usage(path.parent).free
    except OSError as error:
        raise error_of_system(path, error) from error


def check_space(path: Path, need: int = 0) -> None:
    """Refuse to write `need` bytes when the disk is nearly full; reading and deleting are still possible then."""
    free = free_bytes(path)
    if free - need < LOW_WATER:
        raise DiskFull(
            f"The disk of {path} has {free >> 20} MiB free, and {need + LOW_WATER >> 20} MiB are needed "
            f"({LOW_WATER >> 20} MiB stay free); nothing was written. "
            "Free some space (items can be deleted), then repeat."
        )


def error_of_system(path: Path, error: OSError) -> StoreError:
    """Return what to raise for an error of the system."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StoreError(TOO_MANY_FILES)
    if error.errno in NO_SPACE:
        return DiskFull(f"The disk of {path} is full; free some space, then repeat.")
    return StoreError(f"{path} cannot be used ({error}); check the disk and the permissions.")


# ------------------------------------------------------------------------------ a store's folder


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


def take_lock(folder: Path) -> int:
    """Lock a folder for writing, until `give_back` or the end of the process; make it if it does not exist."""
    try:
        make_folder(folder)
        handle = os.open(folder, os.O_RDONLY)  # a lock of the folder itself, because a file in it could be removed
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise StoreError(TOO_MANY_FILES) from error
        reason = "it is a file" if folder.is_file() else error.strerror
        raise StoreError(
            f"The store {folder} cannot be opened ({reason}); choose a folder that can be written."
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise StoreLocked(
            f"The store {folder} is already open for writing, in this process or another. Stop the other one "
            "(a server, or an `nnclr index`), or let that server do it: add --server URL."
        ) from error
    return handle


def give_back(handle: int) -> None:
    """Release a lock; closing is not enough while a forked child has the folder open."""
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)
