"""Folders that survive a loss of power, the lock of a store, and the errors of a disk."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import shutil
import sqlite3
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nnclr_hub.errors import DiskFull, StoreClosed, StoreCorrupt, StoreError, StoreLocked, StoreReadOnly

ID = "ID"
PAGE_SIZE = 16_384
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# a commit is refused if less than this would be left on the disk: merging SQLite's log needs space as well
LOW_WATER = 64 << 20
TOO_MANY_FILES = "This process has too many open files; close some, or raise its limit (`ulimit -n`), then repeat."
HINT = "restore a backup, save what is readable with `nnclr store repair COLLECTION`, or import an export"
_FILES = 4  # a database, its log, the index of the log, and a folder


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
    with translated(folder):
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


def size_of_file(path: Path) -> int:
    """Return the bytes of a file; 0 if it does not exist, as a log that another thread removes now."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def bytes_of_database(path: Path) -> int:
    """Return the bytes of an SQLite file and its log."""
    with translated(path):
        return size_of_file(path) + size_of_file(Path(f"{path}-wal"))


# ------------------------------------------------------------------------------ free space


def free_bytes(path: Path) -> int:
    """Return how many bytes are free on the disk of a file."""
    with translated(path):
        return shutil.disk_usage(path.parent).free


def check_space(path: Path, need: int = 0) -> None:
    """Refuse to write `need` bytes when the disk is nearly full; reading and deleting are still possible then."""
    free = free_bytes(path)
    if free - need < LOW_WATER:
        raise DiskFull(
            f"The disk of {path} has {free >> 20} MiB free, and {need + LOW_WATER >> 20} MiB are needed "
            f"({LOW_WATER >> 20} MiB stay free); nothing was written. "
            "Free some space (items can be deleted), then repeat."
        )


# ------------------------------------------------------------------------------ errors


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Translate errors of SQLite and of the system."""
    try:
        yield
    except sqlite3.Error as error:
        raise _of_sqlite(path, error) from error
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise StoreError(TOO_MANY_FILES) from error
        if error.errno in NO_SPACE:
            raise DiskFull(f"The disk of {path} is full; free some space, then repeat.") from error
        raise StoreError(f"{path} cannot be used ({error}); check the disk and the permissions.") from error


def _of_sqlite(path: Path, error: sqlite3.Error) -> StoreError:
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF  # the primary code of an extended one
    # SQLite has no separate code for these
    unreadable = str(error).startswith(("malformed JSON", "Could not decode to UTF-8"))
    if unreadable or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreCorrupt(f"{path} is damaged ({error}); {HINT}.")
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _no_space(path)):
        return DiskFull(f"The disk of {path} is full; nothing was written. Free some space, then repeat.")
    if code == sqlite3.SQLITE_READONLY:
        return StoreReadOnly(
            f"{path} cannot be written ({error}); allow this user to write its folder. Even reading needs that while "
            "the file has a log."
        )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR) and spare_files() < _FILES:
        return StoreError(TOO_MANY_FILES)
    if code == sqlite3.SQLITE_IOERR:
        return StoreReadOnly(
            f"The disk failed while writing {path} ({error}); check the disk, then open the store again."
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreError(f"{path} cannot be opened ({error}); check the folder and its permissions.")
    return StoreError(f"{path}: {error}.")


def _no_space(path: Path) -> bool:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    largest = max(size_of_file(path), size_of_file(Path(f"{path}-wal")))
    if limit != resource.RLIM_INFINITY and largest + 2 * PAGE_SIZE > limit:
        return True
    try:
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as probe:
            probe.write(bytes(PAGE_SIZE))
    except OSError as error:  # a disk that was removed raises something else
        return error.errno in NO_SPACE
    return False


def spare_files() -> int:
    """Return how many more files this process may open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = sys.maxsize if limit == resource.RLIM_INFINITY else limit
    try:
        return limit - len(os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd"))
    except OSError:  # no file is left to list them with
        return 0


# ------------------------------------------------------------------------------ a store's folder


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
