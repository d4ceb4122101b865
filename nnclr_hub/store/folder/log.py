"""The log of changes, as `Collection.changes` returns it."""

from __future__ import annotations

import sqlite3

from nnclr_hub.errors import ChangesUnavailable, InvalidRequest
from nnclr_hub.store.checks import MAX_LIMIT, check_whole
from nnclr_hub.store.folder.rows import last_seq
from nnclr_hub.store.folder.schema import last_commit
from nnclr_hub.store.reports import Change, ChangePage


def read_changes(connection: sqlite3.Connection, since: int, limit: int, own: str, log: str | None) -> ChangePage:
    """See `Collection.changes`; in the caller's read transaction. `own` is what `log` must be."""
    check_whole("limit", limit, MAX_LIMIT)
    if isinstance(since, bool) or not isinstance(since, int) or since < 0:
        raise InvalidRequest(f"since must be a whole number from 0, got {since!r}.")
    last = last_commit(connection).seq
    first, oldest = connection.execute("SELECT (SELECT min(seq) FROM oplog), (SELECT min(seq) FROM commits)").fetchone()
    # the first commit's own changes are listed only if nothing before it was trimmed
    start = 0 if first == 1 or oldest is None else oldest
    if log not in (None, own):
        raise ChangesUnavailable(
            f"This is not the collection that the changes up to {since} were of: it was created again or restored. "
            f"Read all items, then continue after {last}."
        )
    if not start <= since <= last:
        raise ChangesUnavailable(
            f"The log has the changes after {start} up to {last}, not those after {since}. Read all items, then "
            f"continue after {last}."
        )
    rows = connection.execute(
        "SELECT seq, op, id, (SELECT min(seq) FROM commits WHERE commits.seq >= oplog.seq) FROM oplog "
        "WHERE seq > ? ORDER BY seq LIMIT ?",
        [since, limit + 1],
    ).fetchall()
    if len(rows) > limit:
        rows.pop()
        # the last commit is incomplete, unless it is the only one; then it is cut
        rows = [row for row in rows if row[3] <= rows[-1][0]] or rows
    times = dict(
        connection.execute(
            "SELECT seq, at FROM commits WHERE seq >= ? AND seq <= ?", [since, rows[-1][3] if rows else 0]
        )
    )
    final = {(id, commit): seq for seq, _, id, commit in rows}  # a replaced item is deleted and stored in one commit
    changes = [
        Change(seq, "delete" if op == "-" else "upsert", id, commit, times[commit])
        for seq, op, id, commit in rows
        if final[id, commit] == seq
    ]
    return ChangePage(changes, rows[-1][0] if rows else since, last, own)


def last_vector_change(connection: sqlite3.Connection) -> int:
    """Return the last change that stored or deleted an item; that before the log if it has none."""
    row = connection.execute("SELECT seq FROM oplog WHERE op != '=' ORDER BY seq DESC LIMIT 1").fetchone()
    first = connection.execute("SELECT min(seq) FROM oplog").fetchone()[0]
    return row[0] if row else last_seq(connection) if first is None else first - 1


def trim_log(connection: sqlite3.Connection, kept: int) -> None:
    """Delete all but about the last `kept` changes, so that the log starts right after a commit; in a transaction."""
    row = connection.execute("SELECT max(seq) FROM commits WHERE seq <= ?", [last_seq(connection) - kept]).fetchone()
    if row[0] is not None:
        connection.execute("DELETE FROM commits WHERE seq < ?", row)
        connection.execute("DELETE FROM oplog WHERE seq <= ?", row)
