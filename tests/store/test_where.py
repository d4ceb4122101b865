"""Filters, edits of metadata and facets agree with a plain reading of them; bad filters are refused."""

import threading

import numpy as np
import pytest
from store.crash.small import repeated
from store.model import World

from nnclr_hub import EmbeddedStore
from nnclr_hub.errors import DeadlineExceeded
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.cancellation import cancellable
from nnclr_hub.store.settings import StoreSettings


@pytest.fixture
def store(tmp_path):
    """A store in a folder."""
    with open_store(str(tmp_path / "store")) as opened:
        yield opened


def world_of(store, seed: int) -> World:
    return World(store.create(f"c{seed}", CollectionSpec(4, indexed=("label", "odd key'"))), seed)


def test_everything_agrees_with_its_plain_reading(store):
    """With none to two other writers."""
    for turn, _ in enumerate(repeated(0.3)):
        for seed in range(3 * turn, 3 * turn + 3):
            world = world_of(store, seed)
            with world.writers(seed % 3):
                for _ in range(25):
                    world.step()
                    world.check()
            store.drop(f"c{seed}")


def test_an_edit_is_seen_by_all_filters_at_once(tmp_path):
    """While one thread sets the same new value for all items, others never see two values."""
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(4))
        collection.upsert([Item(f"i{i}", np.eye(4)[i % 4], {"v": 0}) for i in range(300)])
        seen: list[list[tuple[int, int]]] = []
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                seen.append(collection.facets(["v"])["v"].values)
                value = seen[-1][0][0]
                assert collection.count({"must": [{"key": "v", "range": {"gte": value}}]}) == 300
                assert len(collection.search(np.ones(4), 300, {"must": [{"key": "v", "range": {"gte": value}}]})) == 300

        readers = [threading.Thread(target=read) for _ in range(2)]
        for thread in readers:
            thread.start()
        for value in range(1, 20):
            where = {"must": [{"key": "v", "match": value - 1}]}
            assert collection.update_metadata({"v": value}, where=where) == 300
            assert collection.facets(["v"])["v"].values == [(value, 300)]
        done.set()
        for thread in readers:
            thread.join()
        assert seen
        assert all(len(values) == 1 and values[0][1] == 300 for values in seen)


def test_a_filter_is_cancelled_while_it_is_evaluated(tmp_path):
    def check() -> None:
        raise DeadlineExceeded

    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(2))
        collection.upsert([Item(str(i), np.ones(2, np.float32), {"n": i}) for i in range(3000)])
        where = {"should": [{"key": f"k{key}", "match": key} for key in range(64)]}
        for call in (
            collection.count,
            lambda where: collection.facets(["n"], where),
            lambda where: collection.scroll(where=where),
        ):
            with cancellable(check), pytest.raises(DeadlineExceeded):
                call(where)
        assert collection.count(where) == 0


def test_a_filter_that_was_answered_before_the_log_was_trimmed_is_answered_again(tmp_path):
    with EmbeddedStore(tmp_path, settings=StoreSettings(kept_changes=2)) as store:
        collection = store.create("c", CollectionSpec(4))
        where = {"must": [{"key": "n", "range": {"gte": 5}}]}
        collection.upsert([Item(f"i{n}", np.ones(4), {"n": n}) for n in range(10)])
        assert len(collection.search(np.ones(4), 99, where)) == collection.count(where) == 5
        for n in range(10, 20):
            collection.upsert([Item(f"i{n}", np.ones(4), {"n": n})])
        collection.delete(["i9"])
        collection.update_metadata({"n": 0}, ids=["i8"])
        collection.upsert([Item("last", np.ones(4)), Item("more", np.ones(4))])
        collection.compact()
        assert len(collection.search(np.ones(4), 99, where)) == collection.count(where) == 13
