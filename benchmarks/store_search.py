"""Search through the store over bare faiss on the same index object, and filtered search against brute force."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import faiss
import numpy as np
from store_data import FILTERS, Clusters, exact, recall
from store_report import Report, cpu_seconds, spread

from nnclr_hub.store.base import Collection
from nnclr_hub.store.index.main import threads

K = 10
BATCH = 64


def search(report: Report, collection: Any, data: Clusters, queries: int, turns: int) -> None:
    """Measure the recall of the default, then store and bare faiss in turns: in batches, and one by one."""
    asked = data.queries(queries)
    truth = exact(data, asked, K)[""]
    found = [[match.id for match in matches] for matches in collection.search_batch(asked, K)]
    kind = collection.info().index
    score = recall(found, truth)
    report.say("recall", score, f"recall@{K} of the default ({kind}) against exact, {queries} queries: {score:.4f}")
    index, parameters, chosen = same_index(collection)
    report.say("bare", chosen, f"bare faiss: {chosen}")
    blocks = [asked[start : start + BATCH] for start in range(0, len(asked) - BATCH + 1, BATCH)]
    each = [query[None] for query in asked]
    with threads(1):  # several threads take CPU time to wait for each other
        ours = lambda: [collection.search_batch(block, K) for block in blocks]  # noqa: E731
        theirs = lambda: [index.search(block, K, params=parameters) for block in blocks]  # noqa: E731
        _compare(report, "search_batch", f"search in batches of {BATCH}", ours, theirs, len(blocks) * BATCH, turns)
        ours = lambda: [collection.search(query, K) for query in asked]  # noqa: E731
        theirs = lambda: [index.search(query, K, params=parameters) for query in each]  # noqa: E731
        _compare(report, "search_one", "search one by one", ours, theirs, len(asked), turns)


def same_index(collection: Any) -> tuple[Any, Any, str]:
    """Return the faiss object that answers the collection's searches, and its search parameters."""
    parts = collection._files.index.parts
    assert not parts.delta.count + parts.deletions.count, "the store would have more to do than bare faiss"
    main = parts.main
    chosen = f"{type(faiss.downcast_index(main.index)).__name__}"
    options = main.kind.search_options(main.index, 1, main.effort)
    if options:
        shown = ", ".join(f"{name} {value}" for name, value in options.items())
        return main.index, getattr(faiss, main.kind.parameters)(**options), f"{chosen}, {shown}"
    return main.index, None, chosen


def _compare(
    report: Report,
    name: str,
    label: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    queries: int,
    turns: int,
) -> None:
    ours(), theirs()
    pairs = []
    for turn in range(turns):
        # each goes first in every other turn
        first, second = (ours, theirs) if turn % 2 else (theirs, ours)
        times = cpu_seconds(first), cpu_seconds(second)
        pairs.append(times if turn % 2 else times[::-1])
    ratios = [bare / store for store, bare in pairs]
    rate = statistics.median(queries / store for store, _ in pairs)
    bare_rate = statistics.median(queries / bare for _, bare in pairs)
    report.say(
        name,
        {"ratio": statistics.median(ratios), "ratios": ratios, "rate": rate, "bare_rate": bare_rate},
        f"{label}: store over bare faiss {spread(ratios)}, median of {turns}; {rate:.0f} and {bare_rate:.0f} queries "
        "per CPU second",
    )


def filtered(report: Report, collection: Collection, data: Clusters, queries: int) -> None:
    """Measure recall and time of each filter, and the time without one."""
    asked = data.queries(queries)
    truth = exact(data, asked, K, tuple(FILTERS))
    _, plain = _each(collection, asked, None)
    for name, where in FILTERS.items():
        found, taken = _each(collection, asked, where)
        score, fewest = recall(found, truth[name]), min(map(len, found))
        count = collection.count(where)
        report.say(
            f"filter {name}",
            {"recall": score, "ms": taken * 1e3, "over_unfiltered": taken / plain, "pass": count, "fewest": fewest},
            f"filter that {name} pass ({count} items): recall@{K} {score:.4f}, never fewer than {fewest} found; "
            f"{taken * 1e3:.2f} ms a query, {taken / plain:.1f} times the search without a filter",
        )


def _each(collection: Collection, asked: np.ndarray, where: Mapping[str, Any] | None) -> tuple[list[list[str]], float]:
    """Return the results of each query, and the median seconds of one."""
    found, times = [], []
    for query in asked:
        began = time.perf_counter()
        matches = collection.search(query, K, where)
        times.append(time.perf_counter() - began)
        found.append([match.id for match in matches])
    return found, statistics.median(times)
