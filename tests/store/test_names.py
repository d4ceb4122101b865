"""Names and aliases of collections."""

import threading
import time

import numpy as np
import pytest

from nnclr_hub.errors import CollectionExists, CollectionNotFound, InvalidRequest, StoreReadOnly
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.embedded.names import rebuild_catalog

ONE = np.array([1.0, 0.0], np.float32)


@pytest.fixture
def store(tmp_path):
    with open_store(str(tmp_path / "store")) as opened:
        for name in ("a", "b"):
            opened.create(name, CollectionSpec(2)).upsert([Item(name, ONE)])
        yield opened


def ids(store, name):
    return [item.id for item in store.get(name).scroll().items]


def test_an_alias_means_a_collection_and_can_mean_another(store):
    store.alias("photos", "a")
    assert ids(store, "photos") == ["a"]
    store.alias("photos", "b")
    assert ids(store, "photos") == ["b"]
    assert store.aliases() == {"photos": "b"}
    store.unalias("photos")
    with pytest.raises(CollectionNotFound, match="'photos'"):
        store.get("photos")
    with pytest.raises(CollectionNotFound):
        store.unalias("photos")


def test_an_alias_of_an_alias_means_the_collection(store):
    store.alias("photos", "a")
    store.alias("pictures", "photos")
    store.alias("photos", "b")
    assert ids(store, "pictures") == ["a"]


def test_names_and_aliases_do_not_collide(store):
    with pytest.raises(CollectionExists, match="'a'"):
        store.alias("a", "b")
    store.alias("photos", "a")
    with pytest.raises(CollectionExists):
        store.create("photos", CollectionSpec(2))
    with pytest.raises(CollectionExists, match="'b'"):
        store.rename("a", "b")
    with pytest.raises(InvalidRequest):
        store.drop("photos")
    with pytest.raises(InvalidRequest):
        store.alias("../x", "a")


def test_promotion_swaps_in_one_step_and_keeps_what_was_there(store, tmp_path):
    assert store.promote("b", "a") == "a.old"
    assert ids(store, "a") == ["b"]
    assert ids(store, "a.old") == ["a"]
    assert store.get("a.old").name == "a.old"
    with pytest.raises(CollectionNotFound):
        store.get("b")
    store.alias("x", "a.old")
    assert store.promote("a", "x") is None
    assert ids(store, "x") == ["b"]
    with pytest.raises(InvalidRequest):
        store.promote("a", "a")
    store.close()
    with open_store(str(tmp_path / "store"), read_only=True) as again:
        assert again.aliases() == {"x": "a"}
        assert [info.name for info in again.list()] == ["a", "a.old"]


def test_promotion_takes_the_other_aliases_along(store):
    store.create("c", CollectionSpec(2))
    for alias in ("photos", "pictures"):
        store.alias(alias, "a")
    store.alias("other", "c")
    assert store.promote("b", "photos") is None
    assert store.aliases() == {"photos": "b", "pictures": "b", "other": "c"}
    store.alias("best", "a")
    assert store.promote("c", "a") == "a.old"
    assert store.aliases() == {"best": "a", "other": "a", "photos": "b", "pictures": "b"}


def test_a_promotion_that_cannot_finish_changes_nothing_and_writes_go_on(store):
    """While it finishes, a write to the old collection waits; afterwards it is done there."""
    old, waiting = store.get("a"), threading.Event()
    writer = threading.Thread(target=lambda: (waiting.set(), old.upsert([Item("late", ONE)])))

    def finish():
        writer.start()
        waiting.wait()
        time.sleep(0.05)
        assert ids(store, "a") == ["a"]
        raise KeyError

    with pytest.raises(KeyError):
        store.promote("b", "a", finish)
    writer.join()
    assert ids(store, "a") == ["a", "late"]
    assert store.promote("b", "a", lambda: None) == "a.old"
    assert (ids(store, "a"), ids(store, "a.old")) == (["b"], ["a", "late"])
    assert old.name == "a.old"


def test_a_name_changes_although_its_collection_cannot_be_opened(store, tmp_path):
    store.close()
    for file in (tmp_path / "store" / "collections").glob("*.sqlite"):
        file.write_bytes(b"no database")
    with open_store(str(tmp_path / "store")) as again:
        again.rename("a", "z")
        assert again.promote("z", "b") == "b.old"
        assert [info.name for info in again.list()] == ["b", "b.old"]


def test_renaming_and_dropping_take_the_aliases_along(store):
    store.alias("photos", "a")
    held = store.get("a")
    store.rename("a", "z")
    assert held.name == "z"
    assert ids(store, "photos") == ["a"]
    store.drop("z")
    assert store.aliases() == {}
    with pytest.raises(CollectionNotFound):
        held.count()


def test_a_reader_follows_the_names_of_a_writer(store, tmp_path):
    with open_store(str(tmp_path / "store"), read_only=True) as reader:
        assert ids(reader, "a") == ["a"]
        store.promote("b", "a")
        assert ids(reader, "a") == ["b"]
        with pytest.raises(StoreReadOnly):
            reader.alias("x", "a")


def test_using_a_dropped_collection_is_refused(store):
    held = store.create("gone", CollectionSpec(2))
    held.upsert([Item("a", np.ones(2, np.float32))])
    store.drop("gone")
    item = Item("b", np.ones(2, np.float32))
    for use in (held.count, held.snapshot, held.compact, lambda: held.upsert([item]), lambda: held.search(item.vector)):
        with pytest.raises(CollectionNotFound):
            use()


@pytest.mark.parametrize("name", ["Ferien 2024", "ünï", "写真", "हिन्दी", "ü" * 64])
def test_names_may_have_letters_of_any_script(tmp_path, name):
    folder = tmp_path / "store"
    with open_store(str(folder)) as opened:
        opened.create(name, CollectionSpec(2)).upsert([Item("x", ONE)])
        opened.alias(f"{name[:20]}~new", name)
    assert all(path.name.isascii() and " " not in path.name for path in folder.rglob("*"))  # safe on every disk
    (folder / "catalog.sqlite").unlink()
    assert list(rebuild_catalog(folder)) == [name]
    with open_store(str(folder)) as opened:
        opened.rename(name, f"{name[:20]}~2")
        assert ids(opened, f"{name[:20]}~2") == ["x"]
