"""Snapshots: the main part of an index in a file next to the catalog, and a row in the catalog that makes it valid.

    a. take the main part, which never changes; writes continue    e. rename the file
    b. write it to a file under a temporary name                    f. fsync the folder
    c. fsync it                                                     g. replace the row
    d. read it back and hash it                                     h. delete the file before

A crash before g leaves the previous snapshot valid, and a file that the next start moves away. Which rows exist, and
those that were added since, are read from the catalog when the index is restored, so a snapshot does not become wrong.
A flat index is read from the catalog, too: its snapshot has only the transform. The file is a line of JSON, then
arrays, then the index in faiss's format:

    {"format": ..., "kind": ..., ...}\\n  rids  mean  matrix  index
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import faiss
import numpy as np

from nnclr_hub.errors import DiskFull, StoreError
from nnclr_hub.store.disk import NO_SPACE, fsync_folder
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.index.main_index import FAISS, MainIndex
from nnclr_hub.store.index_kinds import FLAT, INDEX_KINDS
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.sqlite import check_space
from nnclr_hub.store.vector_transform import VectorTransform

log = logging.getLogger(__name__)
FORMAT = 4
CHUNK = 1 << 20
MAX_HEADER = 4096
MAX_OVERHEAD = 272  # bytes of an index per vector, besides the vector

Exclusively = Callable[[Callable[[sqlite3.Connection], None]], None]


@dataclass(frozen=True)
class Saved:
    """The main part of a snapshot.

    rids: (N,) int64 ascending; empty for a flat index.
    main: without an index if it is flat.
    """

    rids: np.ndarray
    main: MainIndex


def write_snapshot(main: MainIndex, rids: np.ndarray, folder: Path, exclusively: Exclusively) -> None:
    """Do steps b to h.

    Args:
        main: from step a.
        rids: (N,) int64 ascending, its rows.
        folder: of the files.
        exclusively: runs a function with the connection that writes, while no other write runs.

    Raises:
        DiskFull, StoreError: it could not be written; the earlier snapshot stays.
    """
    reached("snapshot.taken")
    check_space(folder, need=_bytes(main))
    file = folder / f"index-{_number(folder) + 1}.faiss"
    half = folder / f"{file.name}.part"
    try:
        with half.open("wb") as handle:  # b
            hashed = _Hashed(handle)
            _write(main, rids, hashed)
            reached("snapshot.written")
            handle.flush()
            os.fsync(handle.fileno())  # c
        reached("snapshot.synced")
        digest = hashed.digest
        if _hash(half) != digest:  # d
            raise OSError("reading it back gave other bytes")
        reached("snapshot.checked")
        os.replace(half, file)  # e
        reached("snapshot.renamed")
        fsync_folder(folder)  # f
    except (OSError, RuntimeError) as error:  # faiss raises RuntimeError
        half.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise DiskFull(f"The disk is too full for the index ({file}); nothing is lost. Free some space.") from error
        raise StoreError(f"The index could not be written to {file} ({error}); the previous one stays.") from error
    reached("snapshot.folder_synced")

    def commit(connection: sqlite3.Connection) -> None:  # g
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM snapshot")
        connection.execute("INSERT INTO snapshot VALUES (?, ?)", [file.name, digest])
        connection.execute("COMMIT")
        reached("snapshot.recorded")
        try:
            for old in folder.glob("index-*.faiss"):  # h
                if old.name != file.name:
                    old.unlink()
            fsync_folder(folder)
        except OSError as error:  # the snapshot is valid nevertheless; the next start moves away what is left
            log.warning("old index snapshots in %s could not be deleted (%s)", folder, error)
        reached("snapshot.cleaned")

    exclusively(commit)


def remove_snapshot(folder: Path, exclusively: Exclusively) -> None:
    """Remove the snapshot; the index is then read from the catalog."""

    def commit(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM snapshot")
        for file in folder.glob("index-*.faiss"):
            file.unlink()

    exclusively(commit)


def load_snapshot(connection: sqlite3.Connection, spec: CollectionSpec, folder: Path) -> Saved | None:
    """Return the snapshot; None if there is none, or it is damaged."""
    row = connection.execute("SELECT file, blake2b FROM snapshot").fetchone()
    if row is None:
        return None
    file = folder / row[0]
    try:
        # the hash is checked before anything is interpreted, because faiss trusts what it reads
        if _hash(file) != row[1]:
            raise ValueError("it fails its checksum")
        return _read(file, spec)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        log.warning("index snapshot %s cannot be read (%s); the index is built again", file, error)
        return None


def clear_leftovers(connection: sqlite3.Connection, folder: Path, lost: Path) -> None:
    """Move index files that the catalog does not record to lost+found."""
    known = {row[0] for row in connection.execute("SELECT file FROM snapshot")}
    for file in folder.glob("index-*"):
        if file.is_file() and file.name not in known:
            lost.mkdir(exist_ok=True)
            shutil.move(file, lost / f"{folder.name}-{file.name}")


def _number(folder: Path) -> int:
    """Return the highest number of an index file."""
    numbers = [file.name.removeprefix("index-").split(".")[0] for file in folder.glob("index-*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


# ------------------------------------------------------------------------------ the file


class _Hashed:
    """A file that hashes what is written to it, independently of what the disk makes of it."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self._hash = hashlib.blake2b()

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def write(self, data: Any) -> int:
        self._hash.update(data)
        return self._handle.write(data)


def _bytes(main: MainIndex) -> int:
    """Return the approximate size of the file."""
    dim = main.index.d
    matrix = 0 if main.transform is None else 4 * dim * (dim + 1)
    return matrix + (0 if main.kind is FLAT else len(main) * (4 * dim + MAX_OVERHEAD))


def _write(main: MainIndex, rids: np.ndarray, handle: _Hashed) -> None:
    flat = main.kind is FLAT
    arrays = [] if flat else [rids]
    about: dict[str, Any] = {
        "format": FORMAT,
        "kind": main.kind.name,
        "effort": main.effort,
        "judged": main.calibrated_rows,
        "recall": main.recall,
        "rows": 0 if flat else len(rids),
        "fitted": main.fitted_rows,
        "faiss": faiss.__version__,
    }
    if main.transform is not None:
        mean, matrix = main.transform.mean, main.transform.matrix
        about["matrix"] = matrix is not None
        arrays += [mean] if matrix is None else [mean, matrix]
    handle.write(json.dumps(about).encode() + b"\n")
    for array in arrays:
        handle.write(np.ascontiguousarray(array).tobytes())
    if not flat:
        faiss.write_index(main.index, FAISS.PyCallbackIOWriter(handle.write, CHUNK))


def _read(file: Path, spec: CollectionSpec) -> Saved:
    with file.open("rb") as handle:
        about = json.loads(handle.readline(MAX_HEADER))
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']}")
        rids = np.fromfile(handle, "<i8", about["rows"])
        transform = _read_transform(handle, about["matrix"], spec.dim) if "matrix" in about else None
        kind = INDEX_KINDS[about["kind"]]
        index: Any = None
        if kind is not FLAT:
            index = faiss.read_index(FAISS.PyCallbackIOReader(handle.read, CHUNK))
            if index.d != spec.dim or index.ntotal != len(rids):
                raise ValueError("it does not fit the collection")
        main = MainIndex(kind, index, spec.metric, about["effort"], about["judged"], about["recall"])
        return Saved(rids, replace(main, transform=transform, fitted_rows=about["fitted"]))


def _read_transform(handle: BinaryIO, has_matrix: bool, dim: int) -> VectorTransform:
    mean = np.fromfile(handle, "<f4", dim)
    return VectorTransform(mean, np.fromfile(handle, "<f4", dim * dim).reshape(dim, dim) if has_matrix else None)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
