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
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from nnclr_hub.errors import DiskFull, StoreError
from nnclr_hub.store.disk import NO_SPACE, check_space, fsync_folder
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.index.state import FAISS, Main
from nnclr_hub.store.index_kinds import FLAT, INDEX_KINDS
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.vector_transform import VectorTransform

log = logging.getLogger(__name__)
FORMAT = 5
CHUNK = 1 << 20
MAX_HEADER = 4096
MAX_OVERHEAD = 272  # bytes of an index per vector, besides the vector

Change = Callable[[Callable[[sqlite3.Connection], object]], object]  # runs a function in a transaction of the writer


def write_snapshot(main: Main, folder: Path, change: Change) -> None:
    """Do steps b to h. If one fails, DiskFull or StoreError is raised, and the earlier snapshot stays."""
    reached("snapshot.taken")
    dim = main.spec.dim
    check_space(folder, 4 * dim * (dim + 1) + (0 if main.kind is FLAT else len(main) * (4 * dim + MAX_OVERHEAD)))
    numbers = [path.name.removeprefix("index-").split(".")[0] for path in folder.glob("index-*")]
    file = folder / f"index-{max((int(number) for number in numbers if number.isdecimal()), default=0) + 1}.faiss"
    half, written = folder / f"{file.name}.part", hashlib.blake2b()
    try:
        with half.open("wb") as handle:  # b

            def write(data: Any) -> int:
                written.update(data)  # independently of what the disk makes of it
                return handle.write(data)

            _write(main, write)
            reached("snapshot.written")
            handle.flush()
            os.fsync(handle.fileno())  # c
        reached("snapshot.synced")
        if _hash(half) != written.hexdigest():  # d
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
    change(lambda connection: _record(connection, (file.name, written.hexdigest())))  # g
    reached("snapshot.recorded")
    _remove_others(folder, file.name)  # h
    reached("snapshot.cleaned")


def remove_snapshot(folder: Path, change: Change) -> None:
    """Remove the snapshot; the index is then read from the catalog."""
    change(lambda connection: _record(connection, None))
    _remove_others(folder, "")


def _record(connection: sqlite3.Connection, row: tuple[str, str] | None) -> None:
    connection.execute("DELETE FROM snapshot")
    if row is not None:
        connection.execute("INSERT INTO snapshot VALUES (?, ?)", row)


def _remove_others(folder: Path, name: str) -> None:
    try:
        for old in folder.glob("index-*.faiss"):
            if old.name != name:
                old.unlink()
        fsync_folder(folder)
    except OSError as error:  # the next start moves away what is left
        log.warning("old index snapshots in %s could not be deleted (%s)", folder, error)


def load_snapshot(connection: sqlite3.Connection, spec: CollectionSpec, folder: Path) -> Main | None:
    """Return the main part that the catalog records, without an index if it is flat; None if it is not usable."""
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


# ------------------------------------------------------------------------------ the file


def _write(main: Main, write: Callable[[Any], int]) -> None:
    flat, transform = main.kind is FLAT, main.transform
    parts = () if transform is None else (transform.mean, transform.matrix)
    arrays = [array for array in parts if array is not None]
    about: dict[str, Any] = {
        "format": FORMAT,
        "kind": main.kind.name,
        "effort": main.effort,
        "calibrated": main.calibrated_rows,
        "recall": main.recall,
        "rows": 0 if flat else len(main),
        "fitted": main.fitted_rows,
        "arrays": len(arrays),
        "faiss": faiss.__version__,
    }
    write(json.dumps(about).encode() + b"\n")
    for array in arrays if flat else (main.rids, *arrays):
        write(np.ascontiguousarray(array).tobytes())
    if not flat:
        faiss.write_index(main.index, FAISS.PyCallbackIOWriter(write, CHUNK))


def _read(file: Path, spec: CollectionSpec) -> Main:
    with file.open("rb") as handle:
        about = json.loads(handle.readline(MAX_HEADER))
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']}")
        rids = np.fromfile(handle, "<i8", about["rows"])
        transform = None
        if about["arrays"]:
            mean = np.fromfile(handle, "<f4", spec.dim)
            matrix = np.fromfile(handle, "<f4", spec.dim**2).reshape(spec.dim, -1) if about["arrays"] > 1 else None
            transform = VectorTransform(mean, matrix)
        kind, index = INDEX_KINDS[about["kind"]], None
        if kind is not FLAT:
            index = faiss.read_index(FAISS.PyCallbackIOReader(handle.read, CHUNK))
            if index.d != spec.dim or index.ntotal != len(rids):
                raise ValueError("it does not fit the collection")
        numbers = about["effort"], about["calibrated"], about["recall"]
        return Main(spec, kind, index, rids, *numbers, transform, about["fitted"])


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
