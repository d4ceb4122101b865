"""A search in one transaction: the index state of its commit finds rows, and the catalog says what they are."""

from __future__ import annotations

import sqlite3
from itertools import pairwise

import numpy as np

from nnclr_hub.store.folder.rows import fetch_vectors, matched_rows, to_vector
from nnclr_hub.store.index.state import RowSet, State
from nnclr_hub.store.items import Match, SearchOptions

MAX_TIES = 1024  # rows beyond the k-th that are looked at because they may have its score


def search(
    connection: sqlite3.Connection,
    state: State,
    queries: np.ndarray,
    k: int,
    options: SearchOptions,
    chosen: RowSet | None = None,
) -> list[list[Match]]:
    """Return the k nearest matches of each query, best first, and equally near ones by id.

    Args:
        connection: in a read transaction.
        state: the index as that transaction sees it.
        queries: (n, D) float32, as the collection compares them.
        k: matches per query.
        options: of the search; its filter is in `chosen`.
        chosen: the rows to consider; None: all.
    """
    spec = state.spec
    fetch = lambda rids: fetch_vectors(connection, spec, rids)  # noqa: E731
    ties = 1  # shows whether the k-th has the same score as the next
    while True:
        scores, rids = state.search(queries, k + ties, fetch, chosen, exact=options.exact, effort=options.effort)
        more = scores.shape[1] >= k + ties and bool((rids[:, -1] >= 0).any())
        if not more or ties >= MAX_TIES or not (scores[:, -1] == scores[:, k - 1])[rids[:, -1] >= 0].any():
            break
        ties = min(8 * ties, MAX_TIES)
    if scores.shape[1] > k and (scores[:, k - 1] > scores[:, k]).all():
        scores, rids = scores[:, :k], rids[:, :k]  # no further row has the score of the k-th
    rows = matched_rows(connection, np.unique(rids[rids >= 0]).tolist(), spec if options.with_vector else None)
    least = -np.inf if options.score_threshold is None else options.score_threshold
    answers = []
    for row_scores, row_rids in zip(scores.tolist(), rids.tolist(), strict=True):
        found = []
        for score, rid in zip(row_scores, row_rids, strict=True):
            if rid >= 0 and score >= least:
                id, metadata, blob = rows[rid]
                found.append(Match(id, score, metadata, None if blob is None else to_vector(id, blob, spec)))
        answers.append(_in_order(found, k))
    return answers


def _in_order(found: list[Match], k: int) -> list[Match]:
    """Return the k best matches; of equal scores, those with the smaller ids."""
    if all(a.score > b.score for a, b in pairwise(found)):
        return found[:k]
    return sorted(found, key=lambda match: (-match.score, match.id))[:k]
