"""What a store holds, as plain dicts: foreseen from operations, and read back with every invariant checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from store.crash.content import LABELS, version_of
from store.exhaustive import scores

from nnclr_hub.store.backup import list_backups, verify_backups
from nnclr_hub.store.base import VectorStore
from nnclr_hub.store.records import Record

Versions = dict[str, int]
SAMPLE = 12
KEEP = 1  # backups


@dataclass
class World:
    """Collections by name, each a dict of versions by item id; names of collections by alias; the number of backups.

    record: the number in both records of the last change; 0: there are none.
    """

    collections: dict[str, Versions] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    backups: int = 0
    record: int = 0

    def copy(self) -> World:
        collections = {name: dict(versions) for name, versions in self.collections.items()}
        return World(collections, dict(self.aliases), self.backups, self.record)


def read_world(store: VectorStore) -> World:
    """Return everything in the store.

    Raises:
        AssertionError: something in it contradicts itself or was never written by anybody.
    """
    collections = {}
    for info in store.list():
        assert info.state == "ready" or info.state.startswith("building"), info
        assert info.indexed_seq == info.durable_seq, info
        collections[info.name] = read_collection(store.get(info.name))
    return World(collections, store.aliases(), read_backups(store), read_records(store))


def records_of(number: int) -> list[Record]:
    """Return two records that are always written together."""
    return [Record("job", name, {"n": number}, b"%d" % number * 5000) for name in ("a", "b")]


def read_records(store: VectorStore) -> int:
    """Return the number in the records, after checking that both have it."""
    kept = [store.records.get("job", one.name) for one in store.records.list("job")]
    number = kept[0].content["n"] if kept and kept[0] else 0
    assert kept == (records_of(number) if number else []), kept
    return number


def read_backups(store: Any) -> int:
    """Return the number of backups, after verifying all of them; an old one may not be removed yet."""
    made = list_backups(backups_of(store))
    assert not made or set(verify_backups(backups_of(store)).values()) == {None}
    return min(KEEP, len(made))


def backups_of(store: Any) -> Path:
    """Return the folder of a store's backups, next to it."""
    return store.folder.with_name(f"{store.folder.name}.backups")


def read_collection(collection: Any) -> Versions:
    """Return versions by id, after comparing listing, count, filters, content, search and `verify`.

    Raises:
        AssertionError: what disagrees.
    """
    ids: list[str] = []
    cursor = None
    while cursor is not None or not ids:
        page = collection.scroll(cursor=cursor, limit=37)
        ids += [item.id for item in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    assert ids == sorted(set(ids)), "the listing has an id twice, or out of order"
    items = collection.get(ids)
    assert [item.id for item in items] == ids, "listed, but not returned"
    versions = {item.id: version_of(item) for item in items}
    assert collection.count() == len(ids), "count and listing differ"
    for i, label in enumerate(LABELS):
        where = {"must": [{"key": "label", "match": label}]}
        assert collection.count(where) == sum(version % 3 == i for version in versions.values()), "filter and listing"
    _check_search(collection, items)
    report = collection.verify()
    assert report.ok, report
    assert report.items == len(ids)
    return versions


def _check_search(collection: Any, items: list[Any]) -> None:
    """Check that a sample finds itself, and the neighbors that an exhaustive search finds."""
    if not items:
        return
    vectors = np.stack([item.vector for item in items])
    for number in range(0, len(items), max(1, len(items) // SAMPLE)):
        item = items[number]
        assert collection.thumbnail(item.id) == item.thumbnail
        while True:
            everything = collection.compared(vectors)
            answers = [collection.search(item.vector, 5, exact=exact) for exact in (False, True)]
            if np.array_equal(everything, collection.compared(vectors)):
                break  # otherwise the transform was fitted again in between
        for found in answers:
            assert found[0].id == item.id, f"{item.id} does not find itself"
            assert len({match.id for match in found}) == min(5, len(items)), "fewer than there are, or one twice"
        wanted = np.sort(scores("cosine", everything, everything[number]))[::-1][:5]
        np.testing.assert_allclose([match.score for match in found], wanted, atol=1e-5)
