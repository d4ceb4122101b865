"""Snapshots of the index, and how it comes back at the start.

A snapshot is a file beside the catalog and a row in it, and the row is what makes it count:

    a. take the live rows and S, the change they are up to
    b. write the file under a temporary name       e. rename it
    c. fsync it                                    f. fsync the folder
    d. read it back and hash it                    g. the row; forget all but the last two; trim the log
                                                   h. delete the files that were forgotten

At the start: the newest snapshot whose file has the recorded size and hash, or the one before, or
none; then the log of changes since; then a comparison with the catalog, and on any difference a
rebuild from it. So a damaged or missing file costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from nnclr_hub.store.ann import AnnIndex
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.store.catalog import last_seq, reading

log = logging.getLogger(__name__)
KEPT = 2
CHUNK = 10_000


def write_snapshot(connection: sqlite3.Connection, index: AnnIndex, folder: Path) -> None:
    """Steps a to h; the caller sees to it that nothing is written meanwhile.

    Args:
        connection: of the collection, for writing.
        index: up to date with the catalog.
        folder: where the files go.
    """
    rids, vectors = index.live()  # a
    seq = last_seq(connection)
    generation = (connection.execute("SELECT max(generation) FROM snapshots").fetchone()[0] or 0) + 1
    file = folder / f"index-{generation}.faiss"
    half = folder / f"{file.name}.part"
    data = _serialised(rids, vectors)
    digest = hashlib.blake2b(data).hexdigest()
    half.write_bytes(data)  # b
    _fsync(half)  # c
    if _hash(half) != digest:  # d
        half.unlink()
        raise OSError(f"{half} does not read back as it was written")
    os.replace(half, file)  # e
    _fsync(folder)  # f
    connection.execute("BEGIN IMMEDIATE")  # g
    connection.execute(
        "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?)", [generation, seq, file.name, len(data), digest, len(rids)]
    )
    connection.execute("DELETE FROM snapshots WHERE generation <= ?", [generation - KEPT])
    connection.execute("DELETE FROM oplog WHERE seq <= (SELECT min(seq) FROM snapshots)")
    connection.execute("COMMIT")
    for old in folder.glob("index-*.faiss"):  # h
        if old.name not in _recorded(connection):
            old.unlink()
    _fsync(folder)


def recover(connection: sqlite3.Connection, index: AnnIndex, spec: CollectionSpec, folder: Path) -> int:
    """Fills the index from the best snapshot, the log and the catalog; returns the change it is up to."""
    with reading(connection):
        seq = _load_snapshot(connection, index, spec, folder)
        if seq is not None and replay(connection, index, spec, seq) and _agrees(connection, index):
            return last_seq(connection)
        rebuild(connection, index, spec)
        return last_seq(connection)


def replay(connection: sqlite3.Connection, index: AnnIndex, spec: CollectionSpec, seq: int) -> bool:
    """Applies the changes after `seq`, in the caller's read transaction; False if the log no longer reaches back."""
    last = last_seq(connection)
    operations = connection.execute("SELECT op, rid FROM oplog WHERE seq > ? ORDER BY seq", [seq]).fetchall()
    if len(operations) != last - seq:
        return False
    died = np.array(sorted(rid for op, rid in operations if op == "-"), np.int64)
    came = [rid for op, rid in operations if op == "+"]
    # one that came and died since is in the log but no longer in the catalog
    rids, vectors = read_vectors(connection, spec, came)
    index.add(rids, vectors)
    index.remove(died)
    return True


def rebuild(connection: sqlite3.Connection, index: AnnIndex, spec: CollectionSpec) -> None:
    """The index anew from the catalog, within the caller's read transaction."""
    index.reset(*read_vectors(connection, spec, None))


def read_vectors(
    connection: sqlite3.Connection, spec: CollectionSpec, rids: list[int] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Row ids (n,) int64 ascending and their vectors (n, D) float32; of all rows if none are named."""
    if rids is None:
        total = connection.execute("SELECT count(*) FROM vectors").fetchone()[0]
        rows = iter(connection.execute("SELECT rid, vector FROM vectors ORDER BY rid"))
        found, vectors = np.empty(total, np.int64), np.empty((total, spec.dim), np.float32)
        for i, (rid, blob) in enumerate(rows):
            found[i], vectors[i] = rid, np.frombuffer(blob, "<f4")
        return found, vectors
    pairs: list[tuple[int, bytes]] = []
    for start in range(0, len(rids), CHUNK):
        chunk = rids[start : start + CHUNK]
        marks = ",".join("?" * len(chunk))
        pairs += connection.execute(f"SELECT rid, vector FROM vectors WHERE rid IN ({marks}) ORDER BY rid", chunk)
    pairs.sort()
    vectors = np.zeros((len(pairs), spec.dim), np.float32)
    for i, (_, blob) in enumerate(pairs):
        vectors[i] = np.frombuffer(blob, "<f4")
    return np.array([rid for rid, _ in pairs], np.int64), vectors


def clear_leftovers(connection: sqlite3.Connection, folder: Path, lost: Path) -> None:
    """Moves index files that no row records out of the way; nothing is deleted that nobody asked for."""
    for file in folder.glob("index-*"):
        if file.name not in _recorded(connection):
            lost.mkdir(exist_ok=True)
            shutil.move(file, lost / f"{folder.name}-{file.name}")


def _recorded(connection: sqlite3.Connection) -> set[str]:
    return {row[0] for row in connection.execute("SELECT file FROM snapshots")}


def _load_snapshot(connection: sqlite3.Connection, index: AnnIndex, spec: CollectionSpec, folder: Path) -> int | None:
    """Loads the newest snapshot that is whole; returns the change it is up to, or None."""
    rows = connection.execute("SELECT seq, file, size, blake2b, ntotal FROM snapshots ORDER BY generation DESC")
    for seq, name, size, digest, total in rows.fetchall():
        try:
            data = (folder / name).read_bytes()
        except OSError as error:
            log.warning("index snapshot %s cannot be read (%s)", folder / name, error)
            continue
        # nothing of the file is interpreted before its hash is right: faiss trusts what it reads
        if len(data) != size or hashlib.blake2b(data).hexdigest() != digest:
            log.warning("index snapshot %s is damaged; using an older one or the catalog", folder / name)
            continue
        rids, vectors = _deserialised(data)
        if vectors.shape != (total, spec.dim):
            log.warning("index snapshot %s does not fit the collection", folder / name)
            continue
        index.reset(rids, vectors)
        return seq
    return None


def _agrees(connection: sqlite3.Connection, index: AnnIndex) -> bool:
    """Whether the index holds exactly the catalog's rows."""
    truth = np.fromiter((row[0] for row in connection.execute("SELECT rid FROM vectors ORDER BY rid")), np.int64)
    return np.array_equal(truth, index.live()[0])


def _serialised(rids: np.ndarray, vectors: np.ndarray) -> bytes:
    flat = faiss.IndexIDMap(faiss.IndexFlatIP(vectors.shape[1]))
    flat.add_with_ids(np.ascontiguousarray(vectors), rids)
    return faiss.serialize_index(flat).tobytes()


def _deserialised(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    loaded: Any = faiss.deserialize_index(np.frombuffer(data, np.uint8))
    inner: Any = faiss.downcast_index(loaded.index)
    rids = faiss.vector_to_array(loaded.id_map)
    vectors = faiss.rev_swig_ptr(inner.get_xb(), inner.ntotal * inner.d).reshape(inner.ntotal, inner.d).copy()
    return rids, vectors


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
