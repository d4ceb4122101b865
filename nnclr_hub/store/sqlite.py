"""SQLite files: how they are opened, their errors, and the small ones of a store, its names and its records.

A write-ahead log with synchronous=FULL: a COMMIT that returned survives kill -9, a crash of the system and, if the disk
honors fsync, the loss of power.
"""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import struct
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from nnclr_hub.errors import DiskFull, StoreClosed, StoreCorrupt, StoreError, StoreReadOnly, StoreTooNew
from nnclr_hub.plural import counted
from nnclr_hub.store.disk import (
    NO_SPACE,
    TOO_MANY_FILES,
    error_of_system,
    fsync_folder,
    make_folder,
    size_of_file,
)

BUSY_SECONDS = 5.0
PAGE_SIZE = 16_384
HINT = "restore a backup, save what is readable with `nnclr store repair COLLECTION`, or import an export"
_FILES = 4  # a database, its log, the index of the log, and a folder


def connect(path: Path, format: int, *, read_only: bool = False, create: bool = False) -> sqlite3.Connection:
    """Open a file of a format with the durability settings, and check that they are in effect.

    In a folder that cannot be written, a file that was closed cleanly is read as one that nobody changes.
    """
    wal = Path(f"{path}-wal")
    # SQLite creates the index of a log next to the file even for reading
    if read_only and not wal.exists() and not os.access(path.parent, os.W_OK):
        return _connect(path, format, "ro&immutable=1", read_only)
    try:
        return _connect(path, format, "ro" if read_only else "rwc" if create else "rw", read_only)
    except DiskFull:
        if not read_only or size_of_file(wal):
            raise
        return _connect(path, format, "ro&immutable=1", read_only)


def _connect(path: Path, format: int, mode: str, read_only: bool) -> sqlite3.Connection:
    with translated(path):
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,  # transactions are begun by hand
            check_same_thread=False,  # each is used by one thread, but closed by another
            timeout=BUSY_SECONDS,
        )
        try:
            version = format_of(connection)
            if version not in (0, format):
                raise StoreTooNew(
                    f"{path} has format {version}, and this version of nnclr_hub reads only format {format}; export "
                    "the collection with the version that wrote it (`nnclr store export`), then import it with this "
                    "one (`nnclr store import`)."
                )
            wanted: dict[str, int | str] = {"foreign_keys": 1, "synchronous": 2}  # 2 is FULL
            if not read_only:
                if version == 0:
                    connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
                    connection.execute("PRAGMA auto_vacuum = 2")  # pages of deleted rows can be given back step by step
                wanted["journal_mode"] = "wal"
            for name, value in wanted.items():
                connection.execute(f"PRAGMA {name} = {value}")
                actual = connection.execute(f"PRAGMA {name}").fetchone()[0]
                if actual != value:
                    raise StoreCorrupt(
                        f"{path} cannot be stored durably here ({name} is {actual}, not {value}); use a folder on a "
                        "local disk."
                    )
        except BaseException:
            connection.close()
            raise
    return connection


def format_of(connection: sqlite3.Connection) -> int:
    """Return the version of the file's format; 0 for a new file."""
    return connection.execute("PRAGMA user_version").fetchone()[0]


def check_size(connection: sqlite3.Connection, path: Path) -> None:
    """Check that the file ends with a page: SQLite reads the missing rest of a truncated page as zeros."""
    page = connection.execute("PRAGMA page_size").fetchone()[0]
    # checked twice: a process that closes the file first writes the last page and then removes the log
    if path.stat().st_size % page and not size_of_file(Path(f"{path}-wal")) and path.stat().st_size % page:
        raise StoreCorrupt(f"{path} is damaged (it is truncated; nothing was changed); {HINT}.")


def quick_check(connection: sqlite3.Connection, path: Path, check: str = "quick_check") -> None:
    """Check the size of the file, and run SQLite's check of it; "integrity_check" compares indexes, too."""
    with translated(path):
        check_size(connection, path)
        found = " ".join(connection.execute(f"PRAGMA {check}(1)").fetchone()[0].split())  # may be lines
    if found != "ok":
        raise StoreCorrupt(f"{path} is damaged ({found}; nothing was changed); {HINT}.")


@contextmanager
def reading(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Run the block in one read transaction: everything in it sees the same state."""
    connection.execute("BEGIN")
    try:
        yield connection
    finally:
        connection.execute("COMMIT")


def bytes_of_database(path: Path) -> int:
    """Return the bytes of an SQLite file and its log."""
    with translated(path):
        return size_of_file(path) + size_of_file(Path(f"{path}-wal"))


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
            fsync_folder(Path(f"{kept}{suffix}"))
    fsync_folder(new)
    fsync_folder(lost)
    for suffix in ("-wal", "-shm"):  # before the new file gets its name: the old log must never be applied to it
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    fsync_folder(path.parent)
    os.replace(new, path)
    fsync_folder(path.parent)
    return kept


# ------------------------------------------------------------------------------ errors


def check_process(pid: int) -> None:
    """Refuse a store that a parent process opened: its threads do not exist here, so a call would wait forever."""
    if os.getpid() != pid:
        raise StoreClosed(
            "The store was opened before this process was forked, so it cannot be used here. Open it again in this "
            'process with read_only=True, or start processes with the method "spawn".'
        )


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Translate errors of SQLite and of the system."""
    try:
        yield
    except sqlite3.Error as error:
        raise _of_sqlite(path, error) from error
    except OSError as error:
        raise error_of_system(path, error) from error


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


@contextmanager
def with_hint(path: Path, hint: str) -> Iterator[None]:
    """Translate errors as `translated` does, with another hint for damage to this file."""
    try:
        with translated(path):
            yield
    except StoreCorrupt as error:
        raise StoreCorrupt(f"{path} is damaged ({error.__cause__ or 'it fails its check'}); {hint}.") from error


# ------------------------------------------------------------------------------ lost commits


class CommitRecord:
    """A record of the last commit of an SQLite file, in another file.

    SQLite drops the rest of its log after the first damaged frame, so damage at the end of a log would lose commits
    silently. The record is written after each commit without a separate sync. After a crash of the process it is exact.
    After a loss of power it may be older than the SQLite file, never newer, because that is synced first.
    """

    _FORM = struct.Struct("<8sqq")
    _MAGIC = b"nnclrhu2"
    _SLOT = 512  # bytes; two sectors, written in turn, so that one is always whole

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._slot = 0

    def read(self) -> tuple[int, int] | None:
        """Return change and number of items of the newest commit that it records; None if it records none."""
        try:
            data = self._path.read_bytes()
        except OSError:
            return None
        found = []
        for start in (0, self._SLOT):
            packed, crc = data[start : start + self._FORM.size], data[start + self._FORM.size :][:4]
            if len(crc) == 4 and packed[:8] == self._MAGIC and crc == struct.pack("<I", zlib.crc32(packed)):
                found.append(self._FORM.unpack(packed)[1:])
        return max(found, default=None)

    def write(self, seq: int, items: int = 0) -> None:
        """Record a commit; a disk that is full or fails is ignored, because the SQLite file has it."""
        packed = self._FORM.pack(self._MAGIC, seq, items)
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            os.pwrite(self._file, packed + struct.pack("<I", zlib.crc32(packed)), self._slot)
        except OSError:
            return
        self._slot = self._SLOT - self._slot

    def remove(self) -> None:
        """Delete the record, for a file that may lack what is recorded."""
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


# ------------------------------------------------------------------------------ small files


_COMMITS = "CREATE TABLE commits (n INTEGER NOT NULL) STRICT; INSERT INTO commits VALUES (0);"


class Database:
    """A small file of a store: the names of its collections, or its records. Safe to call from many threads.

    Each change counts as one commit, in the file and in a `CommitRecord`, so that a lost one is noticed.

        with database.changing() as connection:
            connection.execute(...)             # durable when the block ends

    Args:
        path: path of the file, which is created unless it is read-only.
        format: its version.
        tables: SQL that creates them.
        hint: what to do if the file is damaged.
        read_only: for a store that another process writes; `connection` is None while the file does not exist.
    """

    def __init__(self, path: Path, format: int, tables: str, hint: str, *, read_only: bool) -> None:
        self.path, self._hint = path, hint
        self._lock = threading.RLock()
        self._record = CommitRecord(path.with_name(f"{path.name}.commit"))
        self.connection: sqlite3.Connection | None = None
        self._changing = self._closed = False
        self._pid = os.getpid()
        recorded = self._record.read()  # before the file, which another process may write
        with with_hint(path, hint):
            try:
                count = 0
                if path.is_file() or not read_only:
                    self.connection, read_only = self._open(format, read_only)
                    if not read_only:
                        quick_check(self.connection, path)  # a page that cannot be read would look like missing rows
                        if format_of(self.connection) == 0:
                            version = f"PRAGMA user_version = {format};"
                            self.connection.executescript(f"BEGIN IMMEDIATE; {_COMMITS} {tables} {version} COMMIT;")
                            fsync_folder(path.parent)
                    if format_of(self.connection):  # 0: a crash left the file empty
                        count = self.connection.execute("SELECT n FROM commits").fetchone()[0]
                if recorded is not None and recorded[0] > count:
                    missing = recorded[0] - count
                    reason = (
                        f"it lacks {counted(missing, 'acknowledged change')}, because its log is damaged or missing"
                    )
                    raise StoreCorrupt(reason) from ValueError(reason)
            except BaseException:
                self.close()
                raise

    def _open(self, format: int, read_only: bool) -> tuple[sqlite3.Connection, bool]:
        if not read_only:
            make_folder(self.path.parent)
        try:
            return connect(self.path, format, read_only=read_only, create=not read_only), read_only
        except DiskFull:
            if read_only or not size_of_file(self.path):  # nothing can be read
                raise
            return connect(self.path, format, read_only=True), True

    @contextmanager
    def using(self) -> Iterator[sqlite3.Connection | None]:
        """Provide the connection for reading; None while the file does not exist."""
        check_process(self._pid)
        with self._lock:
            if self._closed:
                raise StoreClosed(f"The store {self.path.parent} is closed; open it again.")
            with with_hint(self.path, self._hint):
                yield self.connection

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction, or as a part of the one that surrounds it; an exception undoes it."""
        with self.using() as connection:
            assert connection is not None
            if self._changing:
                yield connection
                return
            connection.execute("BEGIN IMMEDIATE")
            self._changing = True
            try:
                yield connection
                number = connection.execute("UPDATE commits SET n = n + 1 RETURNING n").fetchone()[0]
                connection.execute("COMMIT")
                self._record.write(number)
            except BaseException:
                if connection.in_transaction:  # a full disk rolls it back
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._changing = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self.connection is not None:
                self.connection.close()
            self._record.close()


@contextmanager
def replacement(path: Path, format: int, tables: str, hint: str, lost: Path) -> Iterator[Database]:
    """Provide a new file that takes the place of a damaged one after the block; that is kept in the folder `lost`."""
    new = path.with_name(f"{path.name}.new")
    for file in (new, new.with_name(f"{new.name}.commit")):  # left by an interrupted attempt
        remove_files(file)
    with closing(Database(new, format, tables, hint, read_only=False)) as database:
        yield database
    for of in (path, new):  # the new file may lack commits of the old one
        CommitRecord(of.with_name(f"{of.name}.commit")).remove()
    replace_damaged(path, new, lost)


def sequence(connection: sqlite3.Connection, table: str) -> int:
    """Return the highest number that AUTOINCREMENT has given out in a table."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", [table]).fetchone()
    return row[0] if row else 0
