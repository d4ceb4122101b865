"""What `store.base.VectorStore` promises, on every store: names and aliases, promotion, opening, refusals."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from contract.places import DIM, N, items, refused

from nnclr_hub.errors import StoreReadOnly
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item

ONE = np.ones(2, np.float32)


def ids(store, name):
    return [item.id for item in store.get(name).scroll().items]


def created(store) -> list[str]:
    """Return the names of the collections that the test made."""
    return [info.name for info in store.list() if info.name != "photos"]


# ------------------------------------------------------------------------------ names


def test_an_alias_means_a_collection_and_can_mean_another(names):
    names.alias("best", "a")
    assert ids(names, "best") == ["a"]
    names.alias("top", "best")  # means the collection, not the alias
    names.alias("best", "b")
    assert (ids(names, "best"), ids(names, "top")) == (["b"], ["a"])
    assert names.aliases() == {"best": "b", "top": "a"}
    names.unalias("best")
    for gone in (names.get, names.unalias):
        with refused("collection_not_found"):
            gone("best")
    assert created(names) == ["a", "b"]


IMPOSSIBLE = [
    ("collection_exists", lambda s: s.create("a", CollectionSpec(2))),
    ("collection_exists", lambda s: s.create("best", CollectionSpec(2))),
    ("collection_exists", lambda s: s.alias("a", "b")),
    ("collection_exists", lambda s: s.rename("a", "b")),
    ("collection_exists", lambda s: s.rename("b", "best")),
    ("collection_not_found", lambda s: s.get("absent")),
    ("collection_not_found", lambda s: s.drop("absent")),
    *(
        ("collection_not_found", lambda s, name=name, call=call, more=more: getattr(s, call)(name, *more))
        for call, *more in (("get",), ("drop",), ("rename", "there"))
        for name in ("", "a/b")
    ),
    ("collection_not_found", lambda s: s.rename("absent", "there")),
    ("collection_not_found", lambda s: s.alias("x", "absent")),
    ("collection_not_found", lambda s: s.write("absent", lambda c: c.delete(["a"]))),
    ("invalid_request", lambda s: s.drop("best")),
    ("invalid_request", lambda s: s.rename("best", "there")),
    ("invalid_request", lambda s: s.rename("a", "a/b")),
    ("invalid_request", lambda s: s.alias("../x", "a")),
    *(
        ("invalid_request", lambda s, name=name: s.create(name, CollectionSpec(2)))
        for name in ("", " a", "a/b", "a\nb", "e\u0301", "..", "x" * 129, "ü" * 65, 'a"b')
    ),
]


def test_what_cannot_be_done_with_a_name_is_refused_and_changes_nothing(names):
    names.alias("best", "a")
    for code, call in IMPOSSIBLE:
        with refused(code):
            call(names)
    assert (created(names), names.aliases()) == (["a", "b"], {"best": "a"})
    assert (ids(names, "a"), ids(names, "b")) == (["a"], ["b"])


@pytest.mark.parametrize("name", ["A~-._z", "a" * 128, ".-~_" * 20, "Ferien 2024", "हिन्दी", "猫" * 27])
def test_every_valid_name_can_be_used(store, name):
    store.create(name, CollectionSpec(2)).upsert([Item("x", ONE)])
    store.create("other", CollectionSpec(2))
    alias = f"x{name[:20]}"
    store.alias(alias, name)
    assert created(store) == sorted([name, "other"])
    assert (store.aliases(), ids(store, alias)) == ({alias: name}, ["x"])
    store.rename(name, f"{name[:20]}~2")
    assert (store.aliases(), ids(store, f"{name[:20]}~2")) == ({alias: f"{name[:20]}~2"}, ["x"])
    store.drop(f"{name[:20]}~2")
    assert (created(store), store.aliases()) == (["other"], {})


def test_renaming_and_dropping_take_the_aliases_along(names):
    names.alias("best", "a")
    names.rename("a", "z")
    assert (names.get("z").name, ids(names, "best"), names.aliases()) == ("z", ["a"], {"best": "z"})
    with refused("collection_not_found"):
        names.get("a")
    names.drop("z")
    assert (names.aliases(), created(names)) == ({}, ["b"])
    assert names.create("a", CollectionSpec(3)).count() == 0  # the name is free again
    assert names.get("a").spec.dim == 3


def test_only_a_folder_replaces_a_collection(names, kind):
    with refused("invalid_request" if kind != "folder" else "collection_not_found"):
        names.promote("absent", "a")


def test_promotion_keeps_what_was_there_and_takes_the_aliases_along(folder_names):
    names = folder_names
    with refused("invalid_request"):
        names.promote("a", "a")
    names.create("c", CollectionSpec(2))
    for alias in ("x", "y"):
        names.alias(alias, "a")
    names.alias("other", "c")
    assert names.promote("b", "x") is None
    assert names.aliases() == {"x": "b", "y": "b", "other": "c"}
    names.alias("z", "a")
    assert names.promote("b", "a") == "a.old"
    assert (ids(names, "a"), ids(names, "a.old"), names.get("a.old").name) == (["b"], ["a"], "a.old")
    assert names.aliases() == {"x": "a", "y": "a", "z": "a", "other": "c"}
    names.create("d", CollectionSpec(2))
    names.create("d.old", CollectionSpec(2))
    assert names.promote("a", "d") == "d.old2"
    assert names.promote("d", "new") is None
    assert created(names) == ["a.old", "c", "d", "d.old", "d.old2"]
    assert names.aliases()["new"] == "d"
    for now, old in ([], ["b"]), (["b"], []):  # swapped and swapped back, with their aliases
        assert names.promote("d.old2", "d") == "d.old2"
        assert (ids(names, "d"), ids(names, "d.old2"), names.get("d").name) == (now, old, "d")
        assert names.aliases()["x"] == "d"


def test_a_promotion_that_cannot_finish_changes_nothing(folder_names):
    names = folder_names
    for error in (KeyError, StoreReadOnly):  # an error of the store, too, is not one of the collection

        def finish(error=error):
            assert ids(names, "a") == ["a"]
            raise error

        with pytest.raises(error):
            names.promote("b", "a", finish)
    assert (ids(names, "a"), created(names)) == (["a"], ["a", "b"])
    names.get("a").upsert([Item("late", ONE)])
    assert names.promote("b", "a", lambda: None) == "a.old"
    assert (ids(names, "a"), ids(names, "a.old")) == (["b"], ["a", "late"])


def test_a_write_goes_to_the_collection_that_the_name_means_when_it_is_committed(folder):
    """Also one that waits while a promotion finishes, and one whose collection is replaced while it is prepared."""
    for name in "abc":
        folder.create(name, CollectionSpec(2))
    folder.alias("live", "a")
    calls, begun = [], threading.Event()

    def work(collection):
        calls.append(collection.name)
        begun.set()
        if calls == ["a"]:
            folder.promote("b", "live")
        return collection.upsert([Item(f"{len(calls)}", ONE)])

    assert folder.write("live", work) > 0
    assert (calls, ids(folder, "a"), ids(folder, "b")) == (["a", "b"], [], ["2"])
    begun.clear()
    writer = threading.Thread(target=folder.write, args=["live", work])

    def finish():
        writer.start()
        assert begun.wait(60)

    folder.promote("c", "live", finish)
    writer.join()
    assert (ids(folder, "b"), ids(folder, "c")) == (["2"], [f"{len(calls)}"])

    def write_elsewhere(collection):
        calls.append(collection.name)
        folder.promote("a", "live")
        return collection.upsert([Item("once", ONE)])

    calls.clear()
    folder.write("b", write_elsewhere)  # a promotion to another name repeats nothing
    assert (calls, ids(folder, "b")) == (["b"], ["2", "once"])


# ------------------------------------------------------------------------------ opening


SPECS = [
    CollectionSpec(DIM),
    CollectionSpec(DIM, metric="dot", index="flat", indexed=()),
    CollectionSpec(DIM, "l2", "f" * 64, "nnclr_vit", ("label", "n"), "ivf"),
    CollectionSpec(DIM, index="hnsw"),
]


def test_everything_is_there_when_a_store_is_opened_again(place):
    with open_store(place) as store:
        for i, spec in enumerate(SPECS):
            store.create(f"c{i}", spec).upsert(items(0, 10 * i))
        store.alias("best", "c3")
        store.rename("c0", "z")
    for read_only in (True, False):
        with open_store(place, read_only=read_only) as store:
            found = [(info.name, info.spec, info.count) for info in store.list()]
            assert found == [*((f"c{i}", SPECS[i], 10 * i) for i in (1, 2, 3)), ("z", SPECS[0], 0)]
            assert [store.get(name).spec for name, *_ in found] == [*SPECS[1:], SPECS[0]]
            assert store.aliases() == {"best": "c3"}
            assert [match.id for match in store.get("c3").search(items()[7].vector, 1)] == [items()[7].id]
            assert place in repr(store)


def test_a_reader_reads_and_is_refused_every_change(place):
    with open_store(place) as store:
        store.create("c", CollectionSpec(2)).upsert([Item("a", ONE)])
    with open_store(place, read_only=True) as store:
        collection = store.get("c")
        for call in (
            lambda: collection.upsert([Item("b", ONE)]),
            lambda: collection.delete(["a"]),
            lambda: collection.update_metadata({"x": 1}, ids=["a"]),
            lambda: collection.update_each({"a": {"x": 1}}),
            lambda: collection.change_indexed(["x"]),
            collection.snapshot,
            collection.compact,
            collection.repair,
            lambda: store.create("d", CollectionSpec(2)),
            lambda: store.drop("c"),
            lambda: store.rename("c", "d"),
            lambda: store.alias("d", "c"),
            lambda: store.unalias("d"),
        ):
            with refused("read_only"):
                call()
        assert (collection.count(), [match.id for match in collection.search(ONE)]) == (1, ["a"])
        assert collection.verify().ok
        assert store.read_only
    with refused("store_closed"):
        store.list()


def test_a_store_that_is_not_there_is_not_made_by_a_reader(place):
    with refused("invalid_request"):
        open_store(place, read_only=True)


@pytest.mark.parametrize("uri", ["", None, "ftp://x", "file:///tmp/x"])
def test_an_invalid_location_is_refused(uri):
    with refused("invalid_request"):
        open_store(uri)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"dim": dim} for dim in (0, 4.5, True, "x")),
        *({"metric": "manhattan"}, {"index": "tree"}, {"precision": "f8"}, {"vectors": "pca"}),
        *({"indexed": ["k"] * 40}, {"indexed": "label"}),
        *({"vectors": "whiten", "metric": "l2"}, {"vectors": "center", "metric": "dot"}),
        {"vectors": "half_whiten", "dim": 5000},
    ],
)
def test_an_impossible_specification_is_refused(wrong):
    with refused("invalid_request"):
        CollectionSpec(**{"dim": 8, **wrong})


@pytest.mark.parametrize(
    ("spec", "decided"),
    [
        (CollectionSpec(8, fingerprint="f", vectors="auto"), "half_whiten"),
        (CollectionSpec(8, vectors="auto"), "raw"),  # vectors of unknown origin
        (CollectionSpec(8, "l2", "f", vectors="auto"), "raw"),
        (CollectionSpec(5000, fingerprint="f", vectors="auto"), "raw"),
        (CollectionSpec(8, fingerprint="f"), "raw"),
    ],
)
def test_the_store_decides_what_is_compared(store, kind, spec, decided):
    assert store.create("c", spec).spec == replace(spec, vectors=decided if kind == "folder" else "raw")


def test_items_and_matches_describe_themselves_briefly(photos):
    item = replace(items()[3], metadata={"path": "x" * 200})
    assert len(repr(item)) < 200
    assert repr(item).startswith(f"Item(id={item.id!r}, vector=({DIM},) float32, metadata={{'path': 'xxx")
    match = photos.search(item.vector, 1, with_vector=True)[0]
    assert repr(match).startswith(f"Match(id={item.id!r}, score=1.0000, metadata={{'n': 3, ")
    html = replace(match, metadata={"label": "<cat>"})._repr_html_()
    assert "&lt;cat&gt;" in html
    assert "<cat>" not in html
    assert photos.count() == N
