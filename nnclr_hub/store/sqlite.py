"""How SQLite files are opened, and their errors translated.

A write-ahead log with synchronous=FULL: a COMMIT that returned survives kill -9, a crash of the system and, if the disk
honors fsync, the loss of power.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nnclr_hub.errors import DiskFull, StoreCorrupt, StoreError, StoreReadOnly, StoreTooNew
from nnclr_hub.store.disk import NO_SPACE, TOO_MANY_FILES, fsync_folder, make_folder

PAGE_SIZE = 16_384
BUSY_SECONDS = 5.0

# a commit is refused if less than this would be left on the disk: merging SQLite's log needs space as well
LOW_WATER = 64 << 20

_FILES = 4  # a database, its log, the index of the log, and a folder
HINT = "restore a backup, save what is readable with `nnclr store repair COLLECTION`, or import an export"


def connect(path: Path, format: int, *, read_only: bool = False, create: bool = False) -> sqlite3.Connection:
    """Open a file with the durability settings, and check that they are in effect.

    Args:
        path: of the file.
        format: the only format that this version reads.
        read_only: nothing is written. In a folder that cannot be written, a file that was closed cleanly is read as one
            that nobody changes.
        create: create the file if it does not exist.
    """
    # SQLite creates the index of a log next to the file even for reading
    if read_only and not Path(f"{path}-wal").exists() and not os.access(path.parent, os.W_OK):
        return _connected(path, format, "ro&immutable=1", read_only)
    try:
        return _connected(path, format, "ro" if read_only else "rwc" if create else "rw", read_only)
    except DiskFull:
        if not read_only or _size(Path(f"{path}-wal")):
            raise
        return _connected(path, format, "ro&immutable=1", read_only)


def _connected(path: Path, format: int, mode: str, read_only: bool) -> sqlite3.Connection:
    with translated(path):
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,  # transactions are begun by hand
            check_same_thread=False,  # each is used by one thread, but closed by another
            timeout=BUSY_SECONDS,
        )
        try:
            _configure(connection, path, format, read_only)
        except BaseException:
            connection.close()
            raise
    return connection


def _configure(connection: sqlite3.Connection, path: Path, format: int, read_only: bool) -> None:
    version = format_of(connection)
    if version not in (0, format):
        raise StoreTooNew(
            f"{path} has format {version}, and this version of nnclr_hub reads only format {format}; export the "
            "collection with the version that wrote it (`nnclr store export`), then import it with this one "
            "(`nnclr store import`)."
        )
    wanted: dict[str, int | str] = {"foreign_keys": 1, "synchronous": 2}  # 2 is FULL
    if not read_only:
        if version == 0:
            connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
            connection.execute("PRAGMA auto_vacuum = 2")  # so that pages of deleted rows can be given back step by step
        wanted["journal_mode"] = "wal"
    for name, value in wanted.items():
        connection.execute(f"PRAGMA {name} = {value}")
        actual = connection.execute(f"PRAGMA {name}").fetchone()[0]
        if actual != value:
            raise StoreCorrupt(
                f"{path} cannot be stored durably here ({name} is {actual}, not {value}); use a folder on a local disk."
            )


def format_of(connection: sqlite3.Connection) -> int:
    """Return the version of the file's format; 0 for a new file."""
    return connection.execute("PRAGMA user_version").fetchone()[0]


def check_size(connection: sqlite3.Connection, path: Path) -> None:
    """Check that the file ends with a page: SQLite reads the missing rest of a truncated page as zeros."""
    page = connection.execute("PRAGMA page_size").fetchone()[0]
    log = Path(f"{path}-wal")
    # checked twice: a process that closes the file first writes the last page and then removes the log
    if path.stat().st_size % page and not _size(log) and path.stat().st_size % page:
        raise StoreCorrupt(f"{path} is damaged (it is truncated; nothing was changed); {HINT}.")


def quick_check(connection: sqlite3.Connection, path: Path, check: str = "quick_check") -> None:
    """Run SQLite's check of the file, and check its size.

    Args:
        connection: to the file.
        path: of the file.
        check: "integrity_check" compares every index with its table, too.
    """
    with translated(path):
        check_size(connection, path)
        found = connection.execute(f"PRAGMA {check}(1)").fetchone()[0]
    if found != "ok":
        raise StoreCorrupt(f"{path} is damaged ({found}; nothing was changed); {HINT}.")


def free_bytes(path: Path) -> int:
    """Return how many bytes are free on the disk of a file."""
    with translated(path):
        return shutil.disk_usage(path.parent).free


def check_space(path: Path, need: int = 0) -> int:
    """Refuse to write when the disk is nearly full; reading and deleting are still possible then.

    Args:
        path: of the file.
        need: bytes that will be written.

    Returns:
        The number of free bytes.
    """
    free = free_bytes(path)
    if free - need < LOW_WATER:
        raise DiskFull(
            f"The disk of {path} has {free >> 20} MiB free, and {need + LOW_WATER >> 20} MiB are needed "
            f"({LOW_WATER >> 20} MiB stay free); nothing was written. "
            "Free some space (items can be deleted), then repeat."
        )
    return free


@contextmanager
def reading(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Run the block in one read transaction: everything in it sees the same state."""
    connection.execute("BEGIN")
    try:
        yield connection
    finally:
        connection.execute("COMMIT")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Translate errors of SQLite and of the system."""
    try:
        yield
    except sqlite3.Error as error:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF  # the primary code of an extended one
        if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _no_space(path)):
            raise DiskFull(f"The disk of {path} is full; nothing was written. Free some space, then repeat.") from error
        if code == sqlite3.SQLITE_READONLY:
            raise StoreReadOnly(
                f"{path} cannot be written ({error}); allow this user to write its folder. Even reading needs that "
                "while the file has a log."
            ) from error
        if code == sqlite3.SQLITE_IOERR and not _no_descriptors():
            raise StoreReadOnly(
                f"The disk failed while writing {path} ({error}); check the disk, then open the store again."
            ) from error
        # SQLite has no separate code for these
        unreadable = str(error).startswith(("malformed JSON", "Could not decode to UTF-8"))
        if unreadable or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise StoreCorrupt(f"{path} is damaged ({error}); {HINT}.") from error
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR) and _no_descriptors():
            raise StoreError(TOO_MANY_FILES) from error
        if code == sqlite3.SQLITE_CANTOPEN:
            raise StoreError(f"{path} cannot be opened ({error}); check the folder and its permissions.") from error
        raise StoreError(f"{path}: {error}.") from error
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise StoreError(TOO_MANY_FILES) from error
        if error.errno in NO_SPACE:
            raise DiskFull(f"The disk of {path} is full; free some space, then repeat.") from error
        raise StoreError(f"{path} cannot be used ({error}); check the disk and the permissions.") from error


@contextmanager
def with_hint(path: Path, hint: str) -> Iterator[None]:
    """Translate errors as `translated` does, with another hint for damage to this file."""
    try:
        with translated(path):
            yield
    except StoreCorrupt as error:
        raise StoreCorrupt(f"{path} is damaged ({error.__cause__ or 'it fails its check'}); {hint}.") from error


def remove_files(path: Path) -> None:
    """Delete a database with its log and the index of the log, as far as they exist."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def replace_damaged(path: Path, new: Path, lost: Path) -> Path:
    """Put a new file in the place of a damaged one, and return where the damaged one is now.

    The damaged file and its log are completely copied to the folder `lost`, on disk, before they are touched.
    """
    make_folder(lost)
    number = sum(1 for _ in lost.glob(f"{path.stem}-damaged*{path.suffix}"))
    kept = lost / f"{path.stem}-damaged{number}{path.suffix}"
    for suffix in ("", "-wal"):
        if Path(f"{path}{suffix}").exists():
            shutil.copy2(f"{path}{suffix}", f"{kept}{suffix}")
            _fsync(Path(f"{kept}{suffix}"))
    _fsync(new)
    fsync_folder(lost)
    for suffix in ("-wal", "-shm"):  # before the new file gets its name: the old log must never be applied to it
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    fsync_folder(path.parent)
    os.replace(new, path)
    fsync_folder(path.parent)
    return kept


def _fsync(file: Path) -> None:
    with file.open("rb") as handle:
        os.fsync(handle.fileno())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _no_descriptors() -> bool:
    opened: list[int] = []
    try:
        for _ in range(_FILES):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return False


def _no_space(path: Path) -> bool:
    try:
        if shutil.disk_usage(path.parent).free < PAGE_SIZE or _largest_file(path) + 2 * PAGE_SIZE > _max_file_size():
            return True
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            probe.write(bytes(PAGE_SIZE))
    except OSError as error:  # a disk that was removed raises something else
        return error.errno in NO_SPACE
    return False


def _largest_file(path: Path) -> int:
    files = (path, path.with_name(f"{path.name}-wal"))
    return max((file.stat().st_size for file in files if file.exists()), default=0)


def open_files_limit() -> int:
    """Return how many files the process may have open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def _max_file_size() -> float:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit
