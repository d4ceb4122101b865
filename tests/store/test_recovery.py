"""The store opened again, whatever became of its index: snapshots, the log, and what disagrees."""

from dataclasses import replace

import numpy as np
import pytest
from store.exhaustive import DIM, brute_force, filled, vectors
from waiting import until

from nnclr_hub.errors import ChangesUnavailable
from nnclr_hub.store import failpoints, open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.embedded import recovery
from nnclr_hub.store.embedded.store import EmbeddedStore
from nnclr_hub.store.settings import StoreSettings


def agrees(folder, truth):
    with open_store(str(folder)) as store:
        collection = store.get("c")
        assert collection.count() == len(truth)
        for seed in range(5):
            query = vectors(1, 500 + seed)[0]
            found = [match.id for match in collection.search(query, 10)]
            assert found == [id for id, _ in brute_force(truth, query, 10, "cosine")]
        assert collection.verify().ok


@pytest.mark.parametrize("one", [True, False])
def test_an_index_that_disagrees_with_the_catalog_is_rebuilt(tmp_path, monkeypatch, one):
    truth = filled(tmp_path)
    original = recovery.load_snapshot

    def another(*arguments):
        saved = original(*arguments)
        assert saved is not None
        return replace(saved, rids=np.array([0, *saved.rids[1:]]) if one else saved.rids + 10_000)

    monkeypatch.setattr(recovery, "load_snapshot", another)
    agrees(tmp_path, truth)


def test_one_snapshot_is_kept_and_the_log_is_trimmed(tmp_path):
    settings = StoreSettings(kept_changes=8, idle_seconds=0.05, flat_below=2)
    with EmbeddedStore(tmp_path, settings=settings) as store:
        collection = store.create("c", CollectionSpec(DIM, index="hnsw"))
        for i in range(20):
            collection.upsert([Item(f"i{i}", vectors(1, i)[0])])
            collection.compact()
            collection.snapshot()
        assert len(list((tmp_path / "collections").glob("*/index-*"))) == 1
        until(lambda: not reaches_back(collection, 10))
        assert [change.id for change in collection.changes(12).changes] == [f"i{i}" for i in range(12, 20)]


def reaches_back(collection, change: int) -> bool:
    try:
        return bool(collection.changes(change))
    except ChangesUnavailable:
        return False


def test_a_stale_index_never_returns_what_was_deleted(store):
    collection = store.create("c", CollectionSpec(DIM))
    collection.upsert([Item(f"i{i}", v) for i, v in enumerate(vectors(40))])

    def fail() -> None:
        raise MemoryError

    with failpoints.at("write.indexing", fail):  # the index does not learn of the deletion
        collection.delete([f"i{i}" for i in range(0, 40, 2)])
        found = collection.search(vectors(1)[0], 20)
    assert len(found) == 20
    assert {int(match.id[1:]) % 2 for match in found} == {1}


def test_stray_files_are_moved_to_lost_and_found(tmp_path):
    filled(tmp_path)
    folder = next(path for path in (tmp_path / "collections").iterdir() if path.is_dir())
    (folder / "index-77.faiss.part").write_bytes(b"half")
    (tmp_path / "collections" / "0123.sqlite").write_bytes(b"of a create that was cut short")
    with open_store(str(tmp_path)) as store:
        store.get("c")
    assert sorted(path.name.split("-", 1)[-1] for path in (tmp_path / "lost+found").iterdir()) == [
        "0123.sqlite",
        "index-77.faiss.part",
    ]
