"""Changes of items that are chosen by ids or by a filter: edits of metadata, and deletions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

import numpy as np

from nnclr_hub.store.base import ById, Where
from nnclr_hub.store.edits import Edit, check_choice, check_unchanged
from nnclr_hub.store.embedded.choice import Row, parsed_rows, row_ids, rows_by_id, rows_that_pass
from nnclr_hub.store.embedded.open_files import OpenFiles
from nnclr_hub.store.embedded.rows import Changes, delete_items, edit_items
from nnclr_hub.store.embedded.writer import Apply

Choice = Callable[[sqlite3.Connection], list[Row]]


def deletion(files: OpenFiles, ids: Sequence[str] | None, where: Where | None) -> Apply[int]:
    """Return the change for `Collection.delete`."""
    choice = _choice(files, ids, where)

    def apply(connection: sqlite3.Connection, changes: Changes) -> int:
        wanted = list(dict.fromkeys(ids)) if ids is not None else [id for _, id, _ in choice(connection)]
        return delete_items(connection, changes, wanted)

    return apply


def update(
    files: OpenFiles, edit: Edit, ids: Sequence[str] | None, where: Where | None, expected: ById | None = None
) -> Apply[int]:
    """Return the change for `Collection.update_metadata` and `Collection.update_each`."""
    choice = _choice(files, ids, where)

    def apply(connection: sqlite3.Connection, changes: Changes) -> int:
        found = choice(connection)
        known = [(id, about) for (_, id, _), about in zip(found, parsed_rows(found), strict=True)]
        check_unchanged(expected, known)
        texts = [edit(id, about) for id, about in known]
        edits = [(rid, text) for (rid, _, old), text in zip(found, texts, strict=True) if text != old]
        edit_items(connection, changes, edits)
        return len(found)

    return apply


def _choice(files: OpenFiles, ids: Sequence[str] | None, where: Where | None) -> Choice:
    """Return a function that finds the items of a request in the transaction that changes them."""
    wanted, group = check_choice(ids, where)
    if group is None:
        return lambda connection: rows_by_id(connection, wanted or [])

    def find(connection: sqlite3.Connection, at: int) -> tuple[np.ndarray, int]:
        return row_ids(files.searcher.passing(connection, at, group)), at

    # most of the work outside of the transaction: what changes until then is looked at again
    found, at = files.in_view(find)
    return lambda connection: rows_that_pass(connection, group, found, at)
