"""Stores that the contract is tested on, and the items that they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running_server import start
from store import exhaustive
from store.milvus_servers import SERVERS

from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.store.base import Collection, Item

# Each makes what `open_store` takes, in an empty folder. One line adds another store.
PLACES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "folder": lambda folder: nullcontext(str(folder / "store")),
    "milvus": lambda folder: nullcontext(str(folder / "x.milvus.db")),
    "http": lambda folder: over_http(folder),
    **{name: lambda folder, run=run: served(run(folder)) for name, run in SERVERS.items()},
}
PARAMS = [pytest.param(name, marks=[pytest.mark.scale] if name in SERVERS else []) for name in PLACES]

JPEG = b"\xff\xd8\xff"  # how each one begins
THUMBNAILS = [True]  # whether `items` have thumbnails, which cannot be sent to a server
N, DIM = 60, 8
_rng = np.random.default_rng(0)
VECTORS = _rng.normal(size=(N, DIM)).astype(np.float32)
QUERIES = _rng.normal(size=(5, DIM)).astype(np.float32)
LABELS = ["cat", "dog", 'qu"ote', "back\\slash", "it's", "50%", "under_score", "größe 猫 🐈", "", "x" * 300]
ODD = {"unicode é": "ü", "it's": 1, "dotted.key": True, "none": None, "nested": {"a": [1, {"b": None}]}, "list": [1]}
NUMBERS = [0, 1, 1.0, -2.5, True, "1", 2**53 + 1, 2**63, 2**64 - 1, 1e-7, None, False]
INDEXED = ("n", "label", "mixed", "half", "absent", *ODD)  # Milvus filters by these only
FILTERS: list[dict[str, Any]] = [
    {},
    *({"must": [{"key": "label", "match": label}]} for label in LABELS),
    *({"must_not": [{"key": "mixed", "match": number}]} for number in NUMBERS if number not in (2**63, 2**64 - 1)),
    *({"should": [{"key": "label", "prefix": label[:1]}, {"key": "n", "match": 3}]} for label in LABELS),
    *({"must": [{"key": key, "exists": there}]} for key in [*ODD, "half", "absent"] for there in (True, False)),
    *({"must": [{"key": "mixed", "range": {name: 1}}]} for name in ("gt", "gte", "lt", "lte")),
    *({"must_not": [{"key": "label", "range": {name: "dog"}}]} for name in ("gt", "gte", "lt", "lte")),
    {"must": [{"key": "mixed", "range": {"gt": 2**53 - 1}}]},
    {"must": [{"key": "label", "prefix": "x" * 120}], "must_not": [{"key": "label", "match": "x" * 299}]},
    {"must": [{"key": "mixed", "in": [1, "1", True, None, "größe"]}, {"key": "n", "range": {"gte": 5, "lt": 50}}]},
    {"must": [{"key": "label", "in": [f"no{i}" for i in range(499)] + ["cat"]}]},
    {"must": [{"ids": ["A0", "z1", "absent"]}]},
    {"must_not": [{"ids": ["absent", "A0", "z1"]}]},
    {"must": [{"key": "label", "in": []}]},
    {"should": [{"key": "absent", "match": 1}], "must": [{"key": "n", "range": {"lt": 9}}]},
    # an empty list of alternatives matches nothing: it may come from an empty selection
    *({"should": [], **more} for more in ({}, {"must": []}, {"must": [{"key": "n", "exists": True}]})),
    {"must": [{"should": []}]},
    {"must_not": [{"should": []}]},
    {"should": [{"must": []}]},
]


@contextmanager
def served(running: AbstractContextManager[Any]) -> Iterator[str]:
    with running as server:
        yield server.uri


@contextmanager
def over_http(folder: Path) -> Iterator[str]:
    """Serve a store in a thread of this process; its collections are of vectors, so no model is needed."""
    running = start("random:resnet18", folder / "store")
    try:
        yield next(running).url
    finally:
        running.close()


def metadata_of(i: int) -> dict[str, Any]:
    """Return every kind of value under the same keys, so that their types are compared."""
    made: dict[str, Any] = {"n": i, "label": LABELS[i % len(LABELS)], "mixed": NUMBERS[i % len(NUMBERS)]}
    return made | (ODD if i % 7 == 0 else {}) | ({"half": i / 2} if i % 2 else {})


def thumbnail(jpeg: bytes) -> bytes | None:
    return jpeg if THUMBNAILS[0] else None


def items(start: int = 0, stop: int = N) -> list[Item]:
    thumbnails = [None, *map(thumbnail, (JPEG, JPEG + b"jpeg\x00", JPEG + bytes(32 * 1024 - 3)))]
    ids = [f"{'Az9._~-'[i % 7]}{i}" for i in range(N)]
    return [Item(ids[i], VECTORS[i], metadata_of(i), thumbnails[i % 4]) for i in range(start, stop)]


IDS = [item.id for item in items()]


def nearest(metric: str, given: list[Item], query: np.ndarray) -> list[tuple[str, float]]:
    return exhaustive.nearest(metric, {item.id: item.vector for item in given}, query)


def agree(found: list[Any], wanted: list[tuple[str, float]]) -> bool:
    """Return whether matches have these ids, and these scores to 1e-4."""
    return [match.id for match in found] == [id for id, _ in wanted] and np.allclose(
        [match.score for match in found], [score for _, score in wanted], atol=1e-4
    )


def listed(collection: Collection, limit: int = 1000, where: Any = None, *, with_vector: bool = True) -> list[Item]:
    """Return the items of all pages."""
    seen, cursor = [], None
    while True:
        page = collection.scroll(cursor, limit, where, with_vector=with_vector)
        assert len(page.items) == limit or page.cursor is None
        seen, cursor = seen + page.items, page.cursor
        if cursor is None:
            return seen


def plain(found: list[Item]) -> list[tuple[str, Any, bytes | None]]:
    return [(item.id, dict(item.metadata), item.thumbnail) for item in found]


@contextmanager
def refused(code: str) -> Iterator[None]:
    with pytest.raises(NNCLRHubError) as refusal:
        yield
    assert refusal.value.code == code, refusal.value
