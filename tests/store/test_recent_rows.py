"""Searches that read nothing from the disk: their results are those of a read transaction all the same."""

import threading

import numpy as np
import pytest

from nnclr_hub import EmbeddedStore
from nnclr_hub.errors import StoreError
from nnclr_hub.store import failpoints
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.embedded.recent_rows import MOST_TEXT, ROW_BYTES, TEXT_FACTOR, RecentRows
from nnclr_hub.store.where import parse

DIM = 4
QUERY = np.ones(DIM, np.float32)
RED = {"must": [{"key": "label", "match": "red"}]}


@pytest.fixture
def collection(tmp_path):
    with EmbeddedStore(tmp_path) as store:
        made = store.create("c", CollectionSpec(DIM, "l2"))
        made.upsert([Item(f"i{i}", np.full(DIM, i), {"label": "red" if i % 2 else "blue"}) for i in range(6)])
        made.upsert([Item("nested", np.full(DIM, 9), {"label": "red", "tags": ["a"], "large": 2**70})])
        yield made


def found(collection, where=RED):
    return {match.id: match.metadata for match in collection.search(QUERY, 10, where)}


def refuse(*_):
    raise AssertionError("a transaction was begun")


def test_a_repeated_search_needs_no_transaction(collection, monkeypatch):
    first = [found(collection, where) for where in (RED, None)]
    monkeypatch.setattr(collection._files.connections, "reader", refuse)
    assert [found(collection, where) for where in (RED, None)] == first
    assert first[0]["nested"] == {"label": "red", "tags": ["a"], "large": 2**70}


def test_it_sees_each_change_that_was_acknowledged(collection):
    assert found(collection).keys() == {"i1", "i3", "i5", "nested"}
    collection.update_metadata({"label": "blue"}, ids=["i1"])
    collection.update_metadata({"more": 1}, ids=["i3"])
    assert found(collection)["i3"] == {"label": "red", "more": 1}
    collection.delete(["i5"])
    collection.upsert([Item("i2", QUERY, {"label": "red", "new": True})])
    assert found(collection).keys() == {"i2", "i3", "nested"}
    assert found(collection, None)["i2"] == {"label": "red", "new": True}


@pytest.mark.parametrize("where", [RED, None])
def test_a_commit_during_a_search_restarts_it(collection, monkeypatch, where):
    found(collection, where)
    index, changes = collection._files.index, [lambda: collection.update_metadata({"label": "blue"}, ids=["i1"])]
    search = index.search

    def then_change(*arguments, **options):
        result = search(*arguments, **options)
        if changes:
            changes.pop()()
        return result

    monkeypatch.setattr(index, "search", then_change)
    after = found(collection, where)
    assert not changes
    assert after.get("i1") == (None if where else {"label": "blue"})


def test_a_search_is_never_older_than_an_earlier_read(collection):
    found(collection, None)
    seen = []

    def read():
        seen.extend([collection.get(["i0"])[0].metadata, found(collection, None)["i0"]])

    def read_meanwhile():  # the commit is done, and the index does not have it yet
        reader.start()
        reader.join(0.2)

    reader = threading.Thread(target=read)
    with failpoints.at("write.committed", read_meanwhile):
        collection.update_metadata({"label": "green"}, ids=["i0"])
    reader.join()
    assert seen == [{"label": "green"}, {"label": "green"}]


def test_a_failed_commit_leaves_the_state_as_it_was(collection, monkeypatch):
    first = found(collection)
    monkeypatch.setattr(collection._files.maintenance, "wake", lambda: None)  # it reads, too
    with failpoints.at("write.applied", lambda: 1 / 0), pytest.raises(StoreError):
        collection.delete(["i1"])
    with monkeypatch.context() as patch:
        patch.setattr(collection._files.connections, "reader", refuse)
        assert found(collection) == first


def test_metadata_belong_to_the_caller(collection):
    found(collection)
    mine = found(collection)
    mine["i1"]["label"] = "changed"
    mine["nested"]["tags"].append("b")
    assert found(collection)["i1"] == {"label": "red"}
    assert found(collection)["nested"]["tags"] == ["a"]


def test_an_index_that_could_not_follow_is_not_trusted(collection, monkeypatch):
    found(collection, None)
    monkeypatch.setattr(collection._files.index, "apply", lambda *_: 1 / 0)
    monkeypatch.setattr(collection._files.maintenance, "wake", lambda: None)
    collection.delete(["i1"])
    assert "i1" not in found(collection, None)


def test_equal_looking_filters_differ(collection):
    collection.upsert([Item(f"v{i}", QUERY, {"v": v}) for i, v in enumerate([1, True, "1", 1.5])])
    for _ in range(2):
        for number, value in enumerate([1, True, "1", 1.5]):
            assert found(collection, {"must": [{"key": "v", "match": value}]}).keys() == {f"v{number}"}


def test_memory_is_bounded_and_rows_of_other_states_are_refused():
    recent = RecentRows(7, 20 * ROW_BYTES)
    for rid in range(1000):
        recent.add(7, {rid: ("id", {}, "{}", None)})
    assert 1 <= len(recent.find(7, range(1000))) <= 20
    assert 999 in recent.find(7, [999])
    recent.advance(8, [999])
    assert recent.find(7, [998, 999]) == {}
    assert recent.find(8, [998, 999]).keys() == {998}
    recent.add(7, {5: ("old", {}, "{}", None)})
    assert 5 not in recent.find(8, [5])


def test_large_metadata_are_not_remembered():
    recent = RecentRows(7, 20 * (ROW_BYTES + TEXT_FACTOR * MOST_TEXT))
    long, short = "x" * (MOST_TEXT + 1), "x" * MOST_TEXT
    recent.add(7, {1: ("long", {}, long, None), 2: ("short", {}, "{}", None)})
    assert recent.find(7, [1, 2]).keys() == {2}
    recent.add(7, {rid: ("id", {}, short, None) for rid in range(3, 100)})
    assert recent.find(7, [2]).keys() == {2}


def test_a_changed_condition_is_another_filter():
    """Conditions may be any mapping, whose repr need not show what it contains."""

    class Row(dict):
        __repr__ = object.__repr__

    condition = Row(key="label", match="cat")
    where = {"must": [condition]}
    assert parse(where).must[0].value == "cat"
    condition["match"] = "dog"
    assert parse(where).must[0].value == "dog"
