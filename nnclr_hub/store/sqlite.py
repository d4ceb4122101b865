"""How our SQLite files are opened, and their errors as ours.

Write-ahead log with synchronous=FULL: a COMMIT that returned survives kill -9, a crash of the system
and, if the disk honors fsync, the loss of power.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nnclr_hub.errors import DiskFull, StoreCorrupt, StoreError, StoreReadOnly, StoreTooNew

PAGE_SIZE = 16_384
BUSY_SECONDS = 5.0

# a commit is refused when the disk has less than this left: SQLite's own log needs room to be folded away
LOW_WATER = 64 << 20
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

WAY_ON = "save what can be read with `nnclr store repair COLLECTION`, or import an export"


def connect(path: Path, newest: int, *, read_only: bool = False, create: bool = False) -> sqlite3.Connection:
    """A connection with the durability settings, read back.

    Args:
        path: of the file.
        newest: version of the format that is known here.
        read_only: nothing is written through it. In a folder where nothing can be written, a file that was closed
            cleanly is read as one that nobody changes.
        create: make the file if it is not there.

    Raises:
        StoreTooNew: a later version's file.
        StoreCorrupt: no SQLite file, or a setting that would not take.
    """
    with translated(path):
        mode = "ro" if read_only else "rwc" if create else "rw"
        # SQLite wants to make the index of a log beside the file even for reading
        if read_only and not Path(f"{path}-wal").exists() and not os.access(path.parent, os.W_OK):
            mode = "ro&immutable=1"
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,  # transactions are begun by hand
            check_same_thread=False,  # each is used by one thread, but closed by the one that closes the store
            timeout=BUSY_SECONDS,
        )
        try:
            _configure(connection, path, newest, read_only)
        except BaseException:
            connection.close()
            raise
    return connection


def _configure(connection: sqlite3.Connection, path: Path, newest: int, read_only: bool) -> None:
    version = format_of(connection)
    if version > newest:
        raise StoreTooNew(
            f"{path} was written by a later version of nnclr_hub (format {version}, this one reads {newest}): "
            "install the later version."
        )
    wanted: dict[str, int | str] = {"foreign_keys": 1, "synchronous": 2}  # 2 is FULL
    if not read_only:
        if version == 0:
            connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        wanted["journal_mode"] = "wal"
    for name, value in wanted.items():
        connection.execute(f"PRAGMA {name} = {value}")
        actual = connection.execute(f"PRAGMA {name}").fetchone()[0]
        if actual != value:
            raise StoreCorrupt(
                f"{path} cannot be kept safely here ({name} is {actual}, not {value}): use a folder on a local disk."
            )


def format_of(connection: sqlite3.Connection) -> int:
    """The version of the file's format; 0 for a new file."""
    return connection.execute("PRAGMA user_version").fetchone()[0]


def check_size(connection: sqlite3.Connection, path: Path) -> None:
    """Whether the file ends with a page; of one that was cut off within its last, SQLite reads the rest as zeros.

    Raises:
        StoreCorrupt: it does not, and there is no log beside it, from which that page may be mended.
    """
    page = connection.execute("PRAGMA page_size").fetchone()[0]
    log = Path(f"{path}-wal")
    # twice, as whoever closes it first writes the last page and then removes the log
    if path.stat().st_size % page and not _size(log) and path.stat().st_size % page:
        raise StoreCorrupt(f"{path} is damaged (it is cut off; nothing was changed): {WAY_ON}.")


def quick_check(connection: sqlite3.Connection, path: Path) -> None:
    """SQLite's own check of the file, and its size.

    Raises:
        StoreCorrupt: it found damage.
    """
    with translated(path):
        check_size(connection, path)
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise StoreCorrupt(f"{path} is damaged ({found}; nothing was changed): {WAY_ON}.")


def check_room(path: Path, need: int = 0) -> None:
    """Refuses to write when the disk is nearly full, while reads go on.

    Args:
        path: of the file.
        need: bytes that are going to be written.

    Raises:
        DiskFull: less than LOW_WATER bytes would be left free.
    """
    free = shutil.disk_usage(path.parent).free
    if free - need < LOW_WATER:
        raise DiskFull(
            f"The disk that holds {path} has {free >> 20} MiB left where {need + LOW_WATER >> 20} MiB are wanted "
            f"({LOW_WATER >> 20} are kept free); nothing was written: free some space, then repeat."
        )


@contextmanager
def reading(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """One read transaction: everything in the block sees the same state."""
    connection.execute("BEGIN")
    try:
        yield connection
    finally:
        connection.execute("COMMIT")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's errors as ours, and the system's.

    Raises:
        DiskFull, StoreReadOnly, StoreCorrupt, StoreError.
    """
    try:
        yield
    except sqlite3.Error as error:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF  # the primary code of an extended one
        if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _no_room(path)):
            raise DiskFull(
                f"The disk that holds {path} is full; nothing was written: free some space, then repeat."
            ) from error
        if code == sqlite3.SQLITE_READONLY:
            raise StoreReadOnly(
                f"{path} may not be written ({error}): give this user the right to write its folder, which even "
                "reading takes while a log lies beside the file."
            ) from error
        if code == sqlite3.SQLITE_IOERR:
            raise StoreReadOnly(
                f"The disk failed while writing {path} ({error}): check it, then open the store again."
            ) from error
        # of what was written whole; SQLite has no code of its own for it
        unreadable = str(error).startswith(("malformed JSON", "Could not decode to UTF-8"))
        if unreadable or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise StoreCorrupt(f"{path} is damaged ({error}): {WAY_ON}.") from error
        if code == sqlite3.SQLITE_CANTOPEN:
            raise StoreError(f"{path} cannot be opened ({error}): check the folder and its permissions.") from error
        raise StoreError(f"{path}: {error}.") from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFull(f"The disk that holds {path} is full: free some space, then repeat.") from error
        raise StoreError(f"{path} cannot be used ({error}): check the disk and the permissions.") from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _no_room(path: Path) -> bool:
    """Whether a write failed for want of room: SQLite calls a quota and a limit on files a failing disk, as it does
    where it cannot even open a file."""
    try:
        if shutil.disk_usage(path.parent).free < PAGE_SIZE or _largest_file(path) + 2 * PAGE_SIZE > _limit_on_files():
            return True
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            probe.write(bytes(PAGE_SIZE))
    except OSError as error:  # of a disk that is gone nothing is known
        return error.errno in NO_ROOM
    return False


def _largest_file(path: Path) -> int:
    """Bytes of the database or of its log, whichever has more."""
    files = (path, path.with_name(f"{path.name}-wal"))
    return max((file.stat().st_size for file in files if file.exists()), default=0)


def _limit_on_files() -> float:
    """Bytes."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit
