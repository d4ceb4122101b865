"""Check backups without restoring them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nnclr_hub.errors import InvalidRequest, StoreError
from nnclr_hub.store.backup.description import Backup, CollectionBackup, Piece
from nnclr_hub.store.backup.destination import Destination
from nnclr_hub.store.backup.pieces import opened_piece, unpacked
from nnclr_hub.store.base import Progress
from nnclr_hub.store.embedded.integrity import add_digests, digest_of


def verify_backups(
    destination: str | Path, *, id: str | None = None, progress: Progress = lambda done, total: None
) -> dict[str, str | None]:
    """Read every piece of backups back, and compare the rows of each collection with the digest of its commit.

    A damaged piece is moved to the folder `damaged` of the destination, so that the next backup writes it again.

    Args:
        destination: see `back_up`.
        id: of one backup; None: all.
        progress: called with (done, total), counted in bytes.

    Returns:
        For each backup None, or what is wrong with it.

    Raises:
        InvalidRequest: the destination has no backup, or none with that id.
    """
    source = Destination(destination)
    ids = source.ids()
    if not ids or (id is not None and id not in ids):
        raise InvalidRequest(f"{source.address} has no backup{f' {id!r}' if id else ''}; check the address.")
    found: dict[str, str | None] = {}
    backups: list[Backup] = []
    for one in [id] if id is not None else ids:
        try:
            backups.append(source.read(one))
        except StoreError as error:
            found[one] = str(error)
    total = sum({piece.sha256: piece.size for backup in backups for piece in backup.pieces.values()}.values())
    checked: dict[str, str | np.ndarray] = {}  # by hash
    done = 0
    for backup in backups:
        for piece in backup.pieces.values():
            if piece.sha256 not in checked:
                checked[piece.sha256] = _checked(source, piece)
                done += piece.size
                progress(done, total)
        problems = [str(one) for hash in backup.pieces if isinstance(one := checked[hash], str)]
        problems = problems or [text for one in backup.collections if (text := _incomplete(source, one, checked))]
        found[backup.id] = problems[0] if problems else None
    existing = set(source.ids())  # another process may have removed old ones while they were read
    return {one: found[one] for one in sorted(found) if one in existing}


def _checked(source: Destination, piece: Piece) -> str | np.ndarray:
    """Return row ids and checksums (n, 2) of a piece, or what is wrong with it."""
    nothing = np.zeros((0, 2), np.int64)
    data = source.check_piece(piece)
    if isinstance(data, str):
        return data
    if not data.startswith(b"SQLite format 3"):
        return nothing
    with opened_piece(data) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'items'").fetchone():
            return nothing
        return np.array(connection.execute("SELECT rid, crc FROM items").fetchall(), np.int64).reshape(-1, 2)


def _incomplete(source: Destination, one: CollectionBackup, checked: dict[str, str | np.ndarray]) -> str | None:
    try:
        live = unpacked(source.read_piece(one.live))
    except StoreError as error:  # another process may have removed it since it was checked
        return str(error)
    parts = [part for rows in one.rows if not isinstance(part := checked[rows.piece.sha256], str)]
    rows = np.concatenate([np.zeros((0, 2), np.int64), *parts])
    rows = rows[np.isin(rows[:, 0], live)]
    digest = add_digests(digest_of(rows[:, 0].astype(np.uint64), rows[:, 1].astype(np.uint64)))
    if (len(live), len(rows), digest) != (one.commit.items, one.commit.items, one.commit.digest):
        return f"The rows of collection {one.name!r} are not those of its commit {one.commit.seq}."
    return None
