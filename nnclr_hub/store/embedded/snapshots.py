"""Snapshots of the index: a file next to the catalog, and a row in the catalog, which makes the file valid.

    a. take the index as it is, and S, the change it is up to; writes continue
    b. write the file under a temporary name       e. rename it
    c. fsync it                                    f. fsync the folder
    d. read it back and hash it                    g. insert the row; keep the last two rows; trim the log
                                                   h. delete the files of the rows that were removed

A crash before g leaves the previous snapshot valid, and a file that the next start moves away. Two generations are kept
so that damage of the newest file costs only a longer replay: the log is trimmed up to the older one.

The file is a line of JSON, then arrays one after another, then the main part in faiss's format:

    {"format": ..., "kind": ..., ...}\\n  rids  deleted  delta_rids  delta_vectors  transform  index

The transform of the vectors is in the same file as these, so that neither is ever used with another one: its mean (D,)
and, if "matrix" is true, its matrix (D, D), all in float32.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import faiss
import numpy as np

from nnclr_hub.errors import DiskFull, StoreError
from nnclr_hub.store.ann.index import State
from nnclr_hub.store.ann.main_index import FAISS, MainIndex
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.folder import NO_SPACE, fsync_folder
from nnclr_hub.store.index_kinds import INDEX_KINDS
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.sqlite import check_space
from nnclr_hub.store.vector_transform import VectorTransform

log = logging.getLogger(__name__)
KEPT = 2
FORMAT = 3
CHUNK = 1 << 20
MAX_HEADER = 4096
MAX_OVERHEAD = 272  # bytes of an index per vector, besides the vector

Exclusively = Callable[[Callable[[sqlite3.Connection], None]], None]


def write_snapshot(state: State, folder: Path, generation: int, exclusively: Exclusively, kept_changes: int) -> None:
    """Do steps b to h.

    Args:
        state: from step a.
        folder: of the files.
        generation: number of the snapshot, above all earlier ones.
        exclusively: runs a function with the connection that writes, while no other write runs.
        kept_changes: number of changes that the log keeps, in addition to those that a snapshot needs.

    Raises:
        DiskFull, StoreError: it could not be written; earlier snapshots stay.
    """
    reached("snapshot.taken")
    check_space(folder, need=_bytes(state))
    file = folder / f"index-{generation}.faiss"
    half = folder / f"{file.name}.part"
    try:
        with half.open("wb") as handle:  # b
            hashed = _Hashed(handle)
            _write(state, hashed)
            reached("snapshot.written")
            handle.flush()
            os.fsync(handle.fileno())  # c
        reached("snapshot.synced")
        size, digest = half.stat().st_size, hashed.digest
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
    rows = len(state.rids) - len(state.deleted) + len(state.delta_rids)

    def commit(connection: sqlite3.Connection) -> None:  # g
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?)", [generation, state.seq, file.name, size, digest, rows]
        )
        connection.execute("DELETE FROM snapshots WHERE generation <= ?", [generation - KEPT])
        trim(connection, kept_changes)
        connection.execute("COMMIT")
        reached("snapshot.recorded")
        try:
            for old in folder.glob("index-*.faiss"):  # h
                if old.name not in recorded(connection):
                    old.unlink()
            fsync_folder(folder)
        except OSError as error:  # the snapshot is valid nevertheless; the next start moves away what is left
            log.warning("old index snapshots in %s could not be deleted (%s)", folder, error)
        reached("snapshot.cleaned")

    exclusively(commit)


def trim(connection: sqlite3.Connection, kept: int) -> None:
    """Delete changes and commits that neither a snapshot needs nor the last `kept` changes include.

    The log starts right after a commit, so that it lists only whole commits.
    """
    last = "SELECT min(min(seq), (SELECT max(seq) FROM commits) - ?) FROM snapshots"
    row = connection.execute(f"SELECT max(seq) FROM commits WHERE seq <= ({last})", [kept]).fetchone()
    if row[0] is not None:
        connection.execute("DELETE FROM commits WHERE seq < ?", row)
        connection.execute("DELETE FROM oplog WHERE seq <= ?", row)


def load_snapshot(connection: sqlite3.Connection, spec: CollectionSpec, folder: Path) -> State | None:
    """Return the newest intact snapshot, or None."""
    rows = connection.execute("SELECT seq, file, size, blake2b, ntotal FROM snapshots ORDER BY generation DESC")
    for seq, name, size, digest, total in rows.fetchall():
        file = folder / name
        try:
            # the hash is checked before anything is interpreted, because faiss trusts what it reads
            if file.stat().st_size != size or _hash(file) != digest:
                log.warning("index snapshot %s is damaged; using an older one or the catalog", file)
                continue
            state = _read(file, spec)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            log.warning("index snapshot %s cannot be read (%s)", file, error)
            continue
        if state.seq != seq or len(state.rids) - len(state.deleted) + len(state.delta_rids) != total:
            log.warning("index snapshot %s is not the one that the catalog records", file)
            continue
        return state
    return None


def next_generation(connection: sqlite3.Connection) -> int:
    """Return the number of the next snapshot."""
    return (connection.execute("SELECT max(generation) FROM snapshots").fetchone()[0] or 0) + 1


def clear_leftovers(connection: sqlite3.Connection, folder: Path, lost: Path) -> None:
    """Move index files that no row records to lost+found; delete those older than any recorded one."""
    known = recorded(connection)
    oldest = min(map(_generation, known), default=0)
    for file in folder.glob("index-*"):
        if file.is_file() and _generation(file.name) < oldest:
            file.unlink()
        elif file.name not in known:
            lost.mkdir(exist_ok=True)
            shutil.move(file, lost / f"{folder.name}-{file.name}")


def _generation(name: str) -> int:
    """Return the number in the name of an index file; for another name, one above all."""
    digits = name.removeprefix("index-").removesuffix(".faiss")
    return int(digits) if digits.isdecimal() else sys.maxsize


def recorded(connection: sqlite3.Connection) -> set[str]:
    """Return the names of the valid files."""
    return {row[0] for row in connection.execute("SELECT file FROM snapshots")}


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


def _bytes(state: State) -> int:
    """Return the approximate size of the file."""
    main = 0 if state.main is None else len(state.main) * (4 * state.main.index.d + MAX_OVERHEAD)
    if state.main is not None and state.main.transform is not None:
        main += 4 * state.main.index.d * (state.main.index.d + 1)
    return main + state.delta_vectors.nbytes + 8 * (len(state.rids) + len(state.delta_rids))


def _write(state: State, handle: _Hashed) -> None:
    main = state.main
    about = {
        "format": FORMAT,
        "seq": state.seq,
        "kind": main.kind.name if main else None,
        "effort": main.effort if main else 0,
        "judged": main.calibrated_rows if main else 0,
        "recall": main.recall if main else 1.0,
        "rows": len(state.rids),
        "dead": len(state.deleted),
        "delta": len(state.delta_rids),
        "faiss": faiss.__version__,
    }
    arrays = [state.rids, state.deleted, state.delta_rids, state.delta_vectors]
    if main is not None and main.transform is not None:
        mean, matrix = main.transform.mean, main.transform.matrix
        about |= {"matrix": matrix is not None, "fitted": main.fitted_rows}
        arrays += [mean] if matrix is None else [mean, matrix]
    handle.write(json.dumps(about).encode() + b"\n")
    for array in arrays:
        handle.write(np.ascontiguousarray(array).tobytes())
    if main is not None:
        faiss.write_index(main.index, FAISS.PyCallbackIOWriter(handle.write, CHUNK))


def _read(file: Path, spec: CollectionSpec) -> State:
    with file.open("rb") as handle:
        about = json.loads(handle.readline(MAX_HEADER))
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']}")
        rids, deleted, delta_rids = (np.fromfile(handle, "<i8", about[name]) for name in ("rows", "dead", "delta"))
        vectors = np.fromfile(handle, "<f4", about["delta"] * spec.dim).reshape(about["delta"], spec.dim)
        main = None
        transform = _read_transform(handle, about["matrix"], spec.dim) if "matrix" in about else None
        if about["kind"] is not None:
            index: Any = faiss.read_index(FAISS.PyCallbackIOReader(handle.read, CHUNK))
            kind = INDEX_KINDS[about["kind"]]
            main = MainIndex(kind, index, spec.metric, about["effort"], about["judged"], about["recall"])
            main = replace(main, transform=transform, fitted_rows=about.get("fitted", 0))
            if index.d != spec.dim or index.ntotal != len(rids):
                raise ValueError("it does not fit the collection")
    return State(about["seq"], main, rids, deleted, delta_rids, vectors)


def _read_transform(handle: BinaryIO, has_matrix: bool, dim: int) -> VectorTransform:
    mean = np.fromfile(handle, "<f4", dim)
    return VectorTransform(mean, np.fromfile(handle, "<f4", dim * dim).reshape(dim, dim) if has_matrix else None)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
