"""Snapshots of the index: a file beside the catalog, and a row in it, which is what makes the file count.

    a. take the index as it is, and S, the change it is up to; writes go on
    b. write the file under a temporary name       e. rename it
    c. fsync it                                    f. fsync the folder
    d. read it back and hash it                    g. the row; forget all but the last two; trim the log
                                                   h. delete the files that were forgotten

The file is a line of JSON, arrays one after another, and faiss's own form of the main part:

    {"format": ..., "kind": ..., ...}\\n  rids  dead  delta_rids  delta_vectors  index
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
from pathlib import Path
from typing import Any, BinaryIO

import faiss
import numpy as np

from nnclr_hub.errors import DiskFull, StoreError
from nnclr_hub.store.ann.index import State
from nnclr_hub.store.ann.kinds import MOST_GRAPH_BYTES
from nnclr_hub.store.ann.main_index import FAISS, MainIndex
from nnclr_hub.store.embedded.catalog import NO_ROOM, check_room, fsync_folder
from nnclr_hub.store.failpoints import reached
from nnclr_hub.store.spec import CollectionSpec

log = logging.getLogger(__name__)
KEPT = 2
FORMAT = 2
CHUNK = 1 << 20
LONGEST_HEADER = 4096

Recorded = Callable[[Callable[[sqlite3.Connection], None]], None]


def write_snapshot(state: State, folder: Path, generation: int, record: Recorded) -> None:
    """Steps b to h.

    Args:
        state: step a.
        folder: where the files go.
        generation: its number, above all earlier ones.
        record: runs a function with the connection that writes, with no write beside it.

    Raises:
        DiskFull, StoreError: it could not be written; the snapshots before it stay.
    """
    reached("snapshot.taken")
    check_room(folder, need=_bytes(state))
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
            raise OSError("it does not read back as it was written")
        reached("snapshot.checked")
        os.replace(half, file)  # e
        reached("snapshot.renamed")
        fsync_folder(folder)  # f
    except (OSError, RuntimeError) as error:  # faiss's errors are RuntimeErrors
        half.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise DiskFull(f"The disk is too full for the index ({file}): free some space; nothing is lost.") from error
        raise StoreError(f"The index could not be written to {file} ({error}): the one before it stays.") from error
    reached("snapshot.folder_synced")
    rows = len(state.rids) - len(state.dead) + len(state.delta_rids)

    def commit(connection: sqlite3.Connection) -> None:  # g
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?)", [generation, state.seq, file.name, size, digest, rows]
        )
        connection.execute("DELETE FROM snapshots WHERE generation <= ?", [generation - KEPT])
        connection.execute("DELETE FROM oplog WHERE seq <= (SELECT min(seq) FROM snapshots)")
        connection.execute("COMMIT")
        reached("snapshot.recorded")
        try:
            for old in folder.glob("index-*.faiss"):  # h
                if old.name not in recorded(connection):
                    old.unlink()
            fsync_folder(folder)
        except OSError as error:  # the snapshot counts all the same; the next start moves away what is left
            log.warning("old index snapshots in %s could not be deleted (%s)", folder, error)
        reached("snapshot.cleaned")

    record(commit)


def load_snapshot(connection: sqlite3.Connection, spec: CollectionSpec, folder: Path) -> State | None:
    """The newest snapshot that is whole, or None."""
    rows = connection.execute("SELECT seq, file, size, blake2b, ntotal FROM snapshots ORDER BY generation DESC")
    for seq, name, size, digest, total in rows.fetchall():
        file = folder / name
        try:
            # nothing of the file is interpreted before its hash is right: faiss trusts what it reads
            if file.stat().st_size != size or _hash(file) != digest:
                log.warning("index snapshot %s is damaged; using an older one or the catalog", file)
                continue
            state = _read(file, spec)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            log.warning("index snapshot %s cannot be read (%s)", file, error)
            continue
        if state.seq != seq or len(state.rids) - len(state.dead) + len(state.delta_rids) != total:
            log.warning("index snapshot %s is not the one that was recorded", file)
            continue
        return state
    return None


def next_generation(connection: sqlite3.Connection) -> int:
    """The number of the next snapshot."""
    return (connection.execute("SELECT max(generation) FROM snapshots").fetchone()[0] or 0) + 1


def clear_leftovers(connection: sqlite3.Connection, folder: Path, lost: Path) -> None:
    """Moves index files that no row records out of the way; what a snapshot had forgotten anyway is deleted."""
    known = recorded(connection)
    oldest = min(map(_generation, known), default=0)
    for file in folder.glob("index-*"):
        if file.is_file() and _generation(file.name) < oldest:
            file.unlink()
        elif file.name not in known:
            lost.mkdir(exist_ok=True)
            shutil.move(file, lost / f"{folder.name}-{file.name}")


def _generation(name: str) -> int:
    """The number in the name of an index file; for a name that has none, one above all."""
    digits = name.removeprefix("index-").removesuffix(".faiss")
    return int(digits) if digits.isdecimal() else sys.maxsize


def recorded(connection: sqlite3.Connection) -> set[str]:
    """Names of the files that count."""
    return {row[0] for row in connection.execute("SELECT file FROM snapshots")}


# ------------------------------------------------------------------------------ the file


class _Hashed:
    """A file that knows the hash of what it was given, whatever became of that on its way to the disk."""

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
    """About what the file will take."""
    main = 0 if state.main is None else len(state.main) * (4 * state.main.index.d + MOST_GRAPH_BYTES)
    return main + state.delta_vectors.nbytes + 8 * (len(state.rids) + len(state.delta_rids))


def _write(state: State, handle: _Hashed) -> None:
    main = state.main
    about = {
        "format": FORMAT,
        "seq": state.seq,
        "kind": main.kind if main else None,
        "effort": main.effort if main else 0,
        "judged": main.judged if main else 0,
        "rows": len(state.rids),
        "dead": len(state.dead),
        "delta": len(state.delta_rids),
        "faiss": faiss.__version__,
    }
    handle.write(json.dumps(about).encode() + b"\n")
    for array in (state.rids, state.dead, state.delta_rids, state.delta_vectors):
        handle.write(np.ascontiguousarray(array).tobytes())
    if main is not None:
        faiss.write_index(main.index, FAISS.PyCallbackIOWriter(handle.write, CHUNK))


def _read(file: Path, spec: CollectionSpec) -> State:
    with file.open("rb") as handle:
        about = json.loads(handle.readline(LONGEST_HEADER))
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']}")
        rids, dead, delta_rids = (np.fromfile(handle, "<i8", about[name]) for name in ("rows", "dead", "delta"))
        vectors = np.fromfile(handle, "<f4", about["delta"] * spec.dim).reshape(about["delta"], spec.dim)
        main = None
        if about["kind"] is not None:
            index: Any = faiss.read_index(FAISS.PyCallbackIOReader(handle.read, CHUNK))
            main = MainIndex(about["kind"], index, spec.metric, about["effort"], about["judged"])
            if index.d != spec.dim or index.ntotal != len(rids):
                raise ValueError("it does not fit the collection")
    return State(about["seq"], main, rids, dead, delta_rids, vectors)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
