"""Verify and repair an open collection."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from nnclr_hub.store.ann.index import ViewTooOld
from nnclr_hub.store.base import Progress
from nnclr_hub.store.embedded import verification
from nnclr_hub.store.embedded.open_files import OpenFiles
from nnclr_hub.store.embedded.rows import delete_rows
from nnclr_hub.store.embedded.verification import Damaged
from nnclr_hub.store.embedded.view import View
from nnclr_hub.store.reports import VerifyReport


def verify(files: OpenFiles, path: Path, progress: Progress) -> VerifyReport:
    """See `Collection.verify`; `path` is that of the file."""
    damaged = _damaged(files, path, progress)
    with files.connections.reader() as connection:
        total = connection.execute("SELECT count(*) FROM items").fetchone()[0]
    known = {item.rid for item in damaged}

    def compare(connection: sqlite3.Connection, at: int) -> tuple[list[str], float]:
        """Compare the index with an exhaustive search in the very same view of the catalog."""
        ids, vectors = verification.choose_sample(connection, files.spec, known)
        files.wait_for_index(at)
        # first, before a fold makes the view too old; the exhaustive search takes longer
        search, transform = verification.sample_search(vectors, known), files.index.parts.transform
        found = files.searcher.run(View(at, connection=connection), search) if ids else []
        if files.index.parts.transform is not transform:  # scores of another transform cannot be compared
            raise ViewTooOld
        return verification.exhaustive(connection, files.spec, ids, vectors, known, transform).compare(found)

    disagreements, recall = files.in_view(compare)
    ids, parts = tuple(item.id for item in damaged), tuple(item.part for item in damaged)
    return VerifyReport(total, ids, tuple(disagreements), tuple(_missing(files)), recall, parts)


def repair(files: OpenFiles, path: Path, lost: Path, progress: Progress) -> tuple[tuple[str, ...], str | None]:
    """See `Collection.repair`; return the ids that were removed, and the file with their metadata."""
    writer = files.writer
    assert writer is not None
    damaged = _damaged(files, path, progress)
    kept_in = verification.keep_metadata(lost, path.stem, damaged)
    # by row id: the id may by now belong to a sound item
    rids = [item.rid for item in damaged]
    removed = set(writer.submit(lambda connection, changes: delete_rows(connection, changes, rids)) if rids else ())
    files.maintenance.rebuild()
    files.maintenance.snapshot()
    return tuple(item.id for item in damaged if item.rid in removed), kept_in


def _damaged(files: OpenFiles, path: Path, progress: Progress) -> list[Damaged]:
    recorded = files.record.read()  # before the transaction: another process may write
    with files.connections.reader() as connection:
        verification.check_file(connection, path, recorded)
        return verification.damaged_items(connection, files.spec, progress)


def _missing(files: OpenFiles) -> list[str]:
    if files.writer is not None:
        return files.writer.exclusively(lambda connection: verification.missing_items(connection, files.index))
    with files.refreshing, files.connections.reader() as connection:
        return verification.missing_items(connection, files.index)
