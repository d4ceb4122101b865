"""Stores, collections, items, matches and probes describe themselves briefly."""

import numpy as np
import pytest

from nnclr_hub import CollectionSpec, Item, LinearProbe, Match, open_store


def test_items_and_matches_are_short():
    item = Item("a", np.zeros(256, np.float32), {"path": "x" * 200}, b"jpeg")
    assert repr(item).startswith("Item(id='a', vector=(256,) float32, metadata={'path': 'xxx")
    assert repr(item).endswith("thumbnail=4 bytes)")
    assert len(repr(item)) < 200
    match = Match("a", 0.98765, {"label": "<cat>"}, np.zeros(3, np.float32))
    assert repr(match) == "Match(id='a', score=0.9877, metadata={'label': '<cat>'}, vector=(3,) float32)"
    assert "<td>&lt;cat&gt;</td>" in match._repr_html_()


@pytest.mark.parametrize("file", ["store", "x.milvus.db"])
def test_stores_and_collections_name_what_they_hold(tmp_path, file):
    with open_store(str(tmp_path / file)) as store:
        collection = store.create("photos", CollectionSpec(2, model="m", index="flat"))
        collection.upsert([Item("a", np.ones(2))])
        assert str(tmp_path / file) in repr(store)
        assert all(part in repr(collection) for part in ("'photos'", "dim 2", "flat"))
        assert all(f"<td>{part}</td>" in collection._repr_html_() for part in ("photos", "1", "2", "m", "flat"))
    for closed in (store, collection):
        assert repr(closed).startswith("<")
    assert "closed" in collection._repr_html_()


def test_an_embedded_collection_counts_its_items(tmp_path):
    with open_store(str(tmp_path)) as store:
        collection = store.create("photos", CollectionSpec(2))
        collection.upsert([Item("a", np.ones(2)), Item("b", np.ones(2))])
        assert repr(collection) == "<EmbeddedCollection 'photos': 2 items, dim 2, flat index>"
        assert repr(store) == f"<EmbeddedStore {str(tmp_path)!r}: collections photos>"
    assert "closed" in repr(collection)
    assert "closed" in repr(store)


def test_a_probe_names_its_classes():
    probe = LinearProbe(np.zeros((7, 4), np.float32), np.zeros(7, np.float32), tuple("abcdefg"), 0.1, model="m")
    assert repr(probe) == "<LinearProbe: 7 classes (a, b, c, d, e, ...), dim 4, model m>"
