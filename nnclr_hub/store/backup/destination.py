"""Where backups are kept: a folder, or any address that fsspec knows.

backups/TIME.json      one backup: what it contains, by the SHA-256 of each piece. It is written last
pieces/ab/SHA256       the pieces; none is ever changed, and backups share them
damaged/SHA256         pieces that failed their checksum
lock                   held while a backup is made
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nnclr_hub.errors import (
    DiskFull,
    InvalidRequest,
    NNCLRHubError,
    StoreCorrupt,
    StoreError,
    StoreLocked,
)
from nnclr_hub.remote_files import EXTRAS, open_file_system
from nnclr_hub.store.backup.description import Backup, Piece, parsed, written
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.folder import NO_SPACE, fsync_folder, make_folder

log = logging.getLogger(__name__)
BACKUPS, PIECES, DAMAGED, LOCK = "backups", "pieces", "damaged", "lock"
_BACKUP = re.compile(r"(\d{8}T\d{6}\.\d{6}Z)\.json")
_PIECE = re.compile(r"[0-9a-f]{64}(\..*part)?")
LOCK_SECONDS = 900.0  # after which the lock of a process that crashed ends, where the system does not release it


class Destination:
    """A folder or an address with backups.

    Args:
        address: a folder, or an address of fsspec such as s3://bucket/folder.

    Raises:
        InvalidRequest: the address is invalid.
        MissingDependency: its driver is not installed.
    """

    def __init__(self, address: str | Path) -> None:
        from fsspec.implementations.local import LocalFileSystem

        self.address = str(address)
        self._fs, self._root = open_file_system(self.address)
        self._local = isinstance(self._fs, LocalFileSystem)
        self._token: str | None = None  # of the lock that this holds
        self._renewed = 0.0
        # object stores show a file when it is complete, and may forbid deletion, which a move needs
        self._whole = not EXTRAS.keys().isdisjoint(
            (self._fs.protocol,) if isinstance(self._fs.protocol, str) else self._fs.protocol
        )

    def refuse_unsuitable(self, store: Path) -> None:
        """Check that backups of a store can be kept here, before anything is written.

        Raises:
            InvalidRequest: this is the store or a folder in it, or a folder with other files.
        """
        with self._translated():
            if self._local:
                root = Path(self._root).resolve()
                if root.exists() and not root.is_dir():
                    raise StoreError(f"{self.address} is not a folder; choose another destination.")
                if any(folder.exists() and folder.samefile(store) for folder in (root, *root.parents)):
                    raise InvalidRequest(
                        f"{self.address} is in the folder of the store, so backups there would be lost with it; choose "
                        "a folder on another disk."
                    )
            try:
                names = {str(file).rstrip("/").rsplit("/", 1)[-1] for file in self._fs.ls(self._root, detail=False)}
            except FileNotFoundError:
                return
        others = {name for name in names - {DAMAGED, LOCK, "lost+found", ""} if not name.startswith(".")}
        if others and not self.ids() and not self.pieces():
            raise InvalidRequest(
                f"{self.address} has other files, for example {min(others)}; choose a new or an empty folder."
            )

    def refuse_other_store(self, newest: Backup | None, id: str | None) -> None:
        """Check that the newest backup here is of the store with this id; None: it is unknown.

        Raises:
            InvalidRequest: it is of another store.
        """
        if newest is not None and None not in (newest.store, id) and newest.store != id:
            raise InvalidRequest(
                f"{self.address} has backups of another store; use one destination for each store, because old "
                "backups are removed by their age."
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process make or remove backups here during the block.

        Raises:
            StoreLocked: another process does that now.
        """
        refused = StoreLocked(f"Another backup to {self.address} is running; repeat this one when it has ended.")
        if not self._local:
            with self._translated():
                if time.time() - self._lock_holder().get("at", 0.0) < LOCK_SECONDS:
                    raise refused
                if not self._whole:
                    self._fs.makedirs(self._root, exist_ok=True)
                self._token = uuid.uuid4().hex
                self._keep_lock()
                if self._lock_holder().get("token") != self._token:  # another process was faster
                    self._token = None
                    raise refused
            try:
                yield
            finally:
                with self._translated():
                    self._hold_lock(0.0)  # an object store may forbid deletion
                self._token = None
            return
        with self._translated():
            root = Path(self._root)
            make_folder(root)
            handle = (root / LOCK).open("ab")
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise refused from error
            except OSError:
                log.warning("%s cannot be locked, so no other backup may be made to it at the same time", self.address)
            yield

    def _lock_holder(self) -> dict[str, Any]:
        try:
            return json.loads(self._fs.cat_file(f"{self._root}/{LOCK}"))
        except (FileNotFoundError, ValueError):
            return {}

    def _keep_lock(self) -> None:
        """Renew the lock, if this holds one that ends by itself."""
        if self._token is not None and time.time() - self._renewed > LOCK_SECONDS / 10:
            self._hold_lock(time.time())

    def _hold_lock(self, at: float) -> None:
        self._fs.pipe_file(f"{self._root}/{LOCK}", json.dumps({"token": self._token, "at": at}).encode())
        self._renewed = at

    # ---- pieces

    def pieces(self) -> dict[str, int]:
        """Return the sizes of all pieces in bytes, by hash; the name of a file that is not complete ends with .part."""
        with self._translated():
            self._fs.invalidate_cache()
            found = self._fs.find(f"{self._root}/{PIECES}", detail=True)
        sizes = {str(name).rsplit("/", 1)[-1]: info["size"] for name, info in found.items()}
        return {name: size for name, size in sizes.items() if _PIECE.fullmatch(name)}

    def put_piece(self, data: bytes) -> tuple[Piece, int]:
        """Store a piece unless it exists with its size; return it, and how many bytes were written."""
        piece = Piece(hashlib.sha256(data).hexdigest(), len(data))
        with self._translated():
            self._keep_lock()
            try:
                if self._fs.info(f"{self._root}/{piece.file}")["size"] == piece.size:
                    return piece, 0
            except FileNotFoundError:
                pass
            self._write(piece.file, data)
        reached("backup.piece")
        return piece, len(data)

    def read_piece(self, piece: Piece) -> bytes:
        """Return a piece.

        Raises:
            StoreCorrupt: it is missing or damaged.
        """
        with self._translated():
            self._keep_lock()
            try:
                data = self._fs.cat_file(f"{self._root}/{piece.file}")
            except FileNotFoundError as error:
                raise StoreCorrupt(f"{self.address}/{piece.file} is missing; use an older backup.") from error
        if len(data) != piece.size or hashlib.sha256(data).hexdigest() != piece.sha256:
            raise StoreCorrupt(f"{self.address}/{piece.file} is damaged; use an older backup.")
        return data

    def check_piece(self, piece: Piece) -> str | bytes:
        """Return a piece, or what is wrong with it. A damaged one is set aside, so that the next backup writes it."""
        for last in (False, True):
            try:
                return self.read_piece(piece)
            except StoreCorrupt as error:
                if last:
                    return self._set_aside(piece, error)
        raise AssertionError

    def _set_aside(self, piece: Piece, error: StoreCorrupt) -> str:
        if isinstance(error.__cause__, FileNotFoundError):
            return f"{self.address}/{piece.file} is missing; the next backup writes it again if the store has its rows."
        try:
            self._fs.makedirs(f"{self._root}/{DAMAGED}", exist_ok=True)
            self._fs.mv(f"{self._root}/{piece.file}", f"{self._root}/{DAMAGED}/{piece.sha256}")
        except OSError as refusal:
            return f"{self.address}/{piece.file} is damaged, and cannot be moved ({refusal}); delete it, then back up."
        return f"{self.address}/{piece.file} was damaged; the next backup writes it again if the store has its rows."

    def remove_piece(self, name: str) -> None:
        """Remove a piece by the name that `pieces` returned."""
        with self._translated():
            self._keep_lock()
            self._fs.rm_file(f"{self._root}/{PIECES}/{name[:2]}/{name}")

    def remove_damaged(self) -> None:
        """Remove the pieces that were set aside."""
        with self._translated():
            for file in self._fs.find(f"{self._root}/{DAMAGED}"):
                self._fs.rm_file(file)

    # ---- backups

    def ids(self) -> list[str]:
        """Return the ids of the backups, oldest first."""
        with self._translated():
            self._fs.invalidate_cache()
            try:
                files = self._fs.ls(f"{self._root}/{BACKUPS}", detail=False)
            except FileNotFoundError:
                return []
        found = [_BACKUP.fullmatch(str(file).rsplit("/", 1)[-1]) for file in files]
        return sorted(name[1] for name in found if name)

    def put(self, backup: Backup) -> None:
        """Store the description of a backup, which completes it."""
        with self._translated():
            self._write(f"{BACKUPS}/{backup.id}.json", written(backup))

    def first_sound(self, ids: Iterable[str]) -> Backup | None:
        """Return the first backup whose description is intact."""
        for id in ids:
            try:
                return self.read(id)
            except StoreCorrupt as error:
                log.warning("the next backup does not build on a damaged one (%s)", error)
        return None

    def read(self, id: str) -> Backup:
        """Return a backup.

        Raises:
            StoreTooNew: it has another format.
            StoreCorrupt: its description is missing or damaged.
        """
        name = f"{self.address}/{BACKUPS}/{id}.json"
        with self._translated():
            try:
                data = self._fs.cat_file(f"{self._root}/{BACKUPS}/{id}.json")
            except FileNotFoundError as error:
                raise StoreCorrupt(f"{name} is missing; use another backup.") from error
        return parsed(data, name)

    def remove(self, ids: list[str]) -> None:
        """Remove the descriptions of backups; durable when this returns."""
        with self._translated():
            for id in ids:
                self._fs.rm_file(f"{self._root}/{BACKUPS}/{id}.json")
                reached("backup.removed")
            if self._local and ids:
                fsync_folder(Path(self._root, BACKUPS))

    # ---- inside

    def _write(self, name: str, data: bytes) -> None:
        """Write a new file completely or not at all; it is durable when this returns."""
        if self._whole:
            self._fs.pipe_file(f"{self._root}/{name}", data)
            return
        if not self._local:
            half = f"{self._root}/{name}.{os.getpid()}.part"
            self._fs.makedirs(half.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(half, data)
            self._fs.mv(half, f"{self._root}/{name}")
            return
        path = Path(self._root, name)
        make_folder(path.parent)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        fsync_folder(path.parent)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in NO_SPACE:
                raise DiskFull(
                    f"{self.address} is full; older backups stay usable. Free some space, then repeat."
                ) from error
            raise StoreError(
                f"{self.address} cannot be used ({error.strerror or error}); check the address and the permissions."
            ) from error
        except NNCLRHubError:
            raise
        except Exception as error:  # drivers have their own errors, such as botocore's NoCredentialsError
            if self._local or type(error).__module__ == "builtins":  # a mistake of ours
                raise
            raise StoreError(
                f"{self.address} cannot be used ({type(error).__name__}: {error}); check the address and the "
                "credentials."
            ) from error
