"""The store against a dict and numpy."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from store.exhaustive import DIM, vectors

from nnclr_hub.errors import (
    ItemNotFound,
)
from nnclr_hub.store import failpoints, open_store
from nnclr_hub.store.base import CollectionSpec, Item


def test_items_come_back_as_they_were_stored(store):
    collection = store.create("c", CollectionSpec(DIM))
    metadata = {"label": "chat noir", "n": 3, "x": 0.5, "none": None, "deep": {"a": [1, "é猫"]}, "ok": True}
    collection.upsert([Item("a.b~c_D-9", vectors(1)[0] * 5, metadata, b"jpeg"), Item("b", vectors(2)[1])])
    found = collection.get(["b", "missing", "a.b~c_D-9"])
    assert [item.id for item in found] == ["b", "a.b~c_D-9"]
    assert found[1].metadata == metadata
    assert found[1].thumbnail == b"jpeg"
    np.testing.assert_allclose(found[1].vector, vectors(1)[0], atol=1e-6)  # cosine: kept normalized
    assert collection.thumbnail("b") is None
    with pytest.raises(ItemNotFound, match="'zz'"):
        collection.thumbnail("zz")


@pytest.mark.parametrize("count", [1, 49, 50, 251, 503])
def test_a_request_of_any_size_is_stored_whole(store, count):
    """Rows are inserted many at a time, and the rest one by one."""
    collection = store.create("c", CollectionSpec(DIM))
    items = [
        Item(f"i{n:03}", vector, {"n": n}, b"jpeg" if n % 3 == 0 else None) for n, vector in enumerate(vectors(count))
    ]
    for _ in range(2):  # the second time, each row is replaced
        collection.upsert(items)
        found = collection.get([item.id for item in items])
        assert [(one.id, one.metadata, one.thumbnail) for one in found] == [
            (one.id, one.metadata, one.thumbnail) for one in items
        ]
        np.testing.assert_allclose([one.vector for one in found], [one.vector for one in items], atol=1e-6)
        assert collection.verify().ok


def test_pages_cover_everything_once_while_others_write(store):
    collection = store.create("c", CollectionSpec(DIM))
    collection.upsert([Item(f"k{i:03}", v) for i, v in enumerate(vectors(95))])
    seen, cursor = [], None
    while True:
        page = collection.scroll(cursor, 10)
        seen += [item.id for item in page.items]
        collection.upsert([Item(f"k{len(seen) - 1:03}", vectors(1)[0])])  # replaced behind the cursor
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == [f"k{i:03}" for i in range(95)]


def test_concurrent_requests_share_commits_and_none_is_lost(store):
    collection = store.create("c", CollectionSpec(DIM))
    release, commits = threading.Event(), []

    def held() -> None:
        commits.append(1)
        release.wait(120)  # while the first commit is held up, the other requests queue

    threads = [
        threading.Thread(target=lambda i=i: collection.upsert([Item(f"t{i}", vectors(1, i)[0])])) for i in range(64)
    ]
    with failpoints.at("write.begun", held):
        for thread in threads:
            thread.start()
        release.set()
        for thread in threads:
            thread.join()
    assert collection.count() == 64
    assert len(commits) < 64


def test_statistics_agree_with_the_items_and_the_disk(store, tmp_path):
    collection = store.create("c", CollectionSpec(DIM))
    rng = np.random.default_rng(0)
    kept = set()
    for _ in range(20):
        some = [f"i{number}" for number in rng.integers(0, 60, 9)]
        if rng.random() < 0.4:
            collection.delete(some)
            kept -= set(some)
        else:
            collection.upsert([Item(id, v) for id, v in zip(some, vectors(9), strict=True)])
            kept |= set(some)
        with open_store(str(tmp_path / "store"), read_only=True) as reader:
            seen = reader.get("c").statistics()
        found = collection.statistics()
        assert found.items == seen.items == len(kept)
        assert found.durable_seq == found.indexed_seq == seen.indexed_seq == collection.info().durable_seq
    assert (found.state, found.index, found.commits) == ("ready", "flat", 20)
    files = [*(tmp_path / "store/collections").glob("*.sqlite"), *(tmp_path / "store/collections").glob("*.sqlite-wal")]
    assert found.file_bytes == sum(file.stat().st_size for file in files)
    assert min(found.disk_free, found.index_bytes, found.commit_seconds) > 0
    [(name, listed)] = store.statistics().items()
    assert (name, replace(listed, disk_free=found.disk_free)) == ("c", found)  # other processes write to the disk, too
