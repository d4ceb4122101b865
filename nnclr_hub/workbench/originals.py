"""The original files of uploaded images, next to the store, if its owner wants to keep them.

    originals = Originals.of(store, most_bytes=10_000_000_000)
    with originals.changing:
        originals.put(file_hash(data), data)    # before the item is stored
        originals.remove_unused(hashes)         # after items were deleted
    originals.read(hash)                        # the file, or None

A file is named after the hash of its bytes, which its item records. Items with equal files share one, also after a
re-embedding. It is deleted with the last item that has the hash. After a crash, files without an item may be left;
`sweep` deletes them at the next start.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from nnclr_hub.errors import DiskFull, NNCLRHubError
from nnclr_hub.read_ahead import batches
from nnclr_hub.store.base import Collection, VectorStore, Where
from nnclr_hub.store.disk import NO_SPACE, fsync_folder
from nnclr_hub.store.where import MAX_IN
from nnclr_hub.workbench.metadata import FILE_HASH

log = logging.getLogger(__name__)

FOLDER = "originals"
_HASH = re.compile(r"[0-9a-f]{64}")


def file_hash(data: bytes) -> str:
    """Return the name of a file: the SHA-256 of its bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


class Originals:
    """The files, in 256 subfolders.

    changing: held while items and their files are stored or deleted, so that no file is deleted that an upload uses.

    Args:
        store: whose items the files belong to.
        folder: created when the first file is stored.
        most_bytes: most bytes of all files; 0 keeps no new ones.
    """

    def __init__(self, store: VectorStore, folder: Path, most_bytes: int = 0) -> None:
        self._store = store
        self.changing = threading.RLock()
        self.most_bytes = most_bytes
        self._folder = folder
        self._used: int | None = None

    @staticmethod
    def of(store: VectorStore, most_bytes: int = 0) -> Originals | None:
        """Return the originals of a store, or None if it is not a folder of this machine."""
        folder = getattr(store, "folder", None)
        return Originals(store, folder / FOLDER, most_bytes) if isinstance(folder, Path) else None

    @property
    def used(self) -> int:
        """Bytes of all files; does not wait for `changing`, which is held while a batch is stored."""
        used = self._used
        return self._counted() if used is None else used

    def put(self, hash: str, data: bytes) -> None:
        """Keep a file durably, unless it is kept already; raise DiskFull beyond the quota, or without space."""
        path = self._path(hash)
        with self.changing:
            if path.is_file():
                return
            used = self._used = self.used
            if used + len(data) > self.most_bytes:
                raise DiskFull(
                    f"The originals of this store take {used / 1e6:.0f} of {self.most_bytes / 1e6:.0f} MB; "
                    "raise NNCLR_ORIGINALS_BYTES, or delete images."
                )
            partial = path.with_suffix(".part")
            try:
                for folder in (self._folder, path.parent):
                    if not folder.is_dir():
                        folder.mkdir(exist_ok=True)
                        fsync_folder(folder.parent)
                with partial.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
                fsync_folder(path.parent)
            except OSError as error:
                partial.unlink(missing_ok=True)
                if error.errno not in NO_SPACE:
                    raise
                raise DiskFull("There is no space for the original of an image; free some, and try again.") from error
            self._used = used + len(data)

    def read(self, hash: object) -> bytes | None:
        """Return the file with this hash, or None if it is not kept."""
        if not isinstance(hash, str) or not _HASH.fullmatch(hash):
            return None
        try:
            return self._path(hash).read_bytes()
        except FileNotFoundError:
            return None

    def remove_unused(self, hashes: Iterable[str]) -> None:
        """Delete the files of those hashes that no item of the store has.

        If a collection cannot be read, its items may use any of them. Then they are kept until the next `sweep`, and
        the error is only logged, because the change that this follows is already committed.
        """
        try:
            with self.changing:
                kept = sorted({one for one in hashes if _HASH.fullmatch(one) and self._path(one).is_file()})
                for some in batches(kept, MAX_IN):
                    for unused in set(some) - self._in_use(some):
                        path = self._path(unused)
                        self._used = self.used - path.stat().st_size
                        path.unlink()
        except (NNCLRHubError, OSError) as error:
            log.warning("originals without an item were not deleted; the next start tries again (%s)", error)

    def sweep(self) -> None:
        """Delete all files that no item has; log errors, as `remove_unused`."""
        with self.changing:
            for path in list(self._folder.glob("??/*.part")):
                path.unlink(missing_ok=True)
            self._used = self._counted()
            self.remove_unused([path.name for path in self._files()])

    def of_items(
        self, collection: Collection, ids: Sequence[str] | None = None, where: Where | None = None
    ) -> list[str]:
        """Return the hashes of items, by ids or by a filter; none if no file is kept."""
        if not self.used:
            return []
        found = [collection.get(ids)] if ids is not None else collection.pages(where, with_vector=False)
        hashes = (item.metadata.get(FILE_HASH) for items in found for item in items)
        return [one for one in hashes if isinstance(one, str)]

    def _counted(self) -> int:
        total = 0
        for path in self._files():
            with suppress(FileNotFoundError):  # deleted since it was listed
                total += path.stat().st_size
        return total

    def _files(self) -> list[Path]:
        return [path for path in self._folder.glob("??/*") if _HASH.fullmatch(path.name)]

    def _path(self, hash: str) -> Path:
        return self._folder / hash[:2] / hash

    def _in_use(self, hashes: list[str]) -> set[str]:
        where = {"must": [{"key": FILE_HASH, "in": hashes}]}
        return {
            item.metadata[FILE_HASH]
            for info in self._store.list()
            for items in self._store.get(info.name).pages(where, with_vector=False)
            for item in items
        }
