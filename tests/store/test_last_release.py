"""A folder that an earlier release wrote opens completely, and can be written."""

import tarfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from store.crash.world import best_scores
from store.goldens.make import LAST_CHANGE, SPECS, written

from nnclr_hub.store import open_store
from nnclr_hub.store.base import Item

GOLDENS = Path(__file__).parent / "goldens"
ARCHIVES = sorted(path.name for path in GOLDENS.glob("store_v*.tar.gz"))


@pytest.fixture(params=[(archive, end) for archive in ARCHIVES for end in ("killed", "closed")], ids="-".join)
def golden(request, tmp_path) -> Path:
    """An unpacked folder."""
    archive, end = request.param
    with tarfile.open(GOLDENS / archive) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / end


@pytest.fixture
def expected() -> dict[str, dict[str, Item]]:
    """The items of each collection, by id."""
    return {name: written(spec.dim) for name, spec in SPECS.items()}


def check(collection, items: dict[str, Item]) -> None:
    """The collection holds exactly these items, and finds them."""
    ids = [item.id for item in collection.scroll(limit=10_000).items]
    held = {item.id: item for item in collection.get(ids)}
    assert held.keys() == items.keys()
    metric = collection.spec.metric
    for id, wanted in items.items():
        kept = wanted.vector / np.linalg.norm(wanted.vector) if metric == "cosine" else wanted.vector
        np.testing.assert_allclose(held[id].vector, kept, rtol=1e-6, err_msg=id)
        assert (held[id].metadata, held[id].thumbnail) == (wanted.metadata, wanted.thumbnail)
        assert collection.thumbnail(id) == wanted.thumbnail
    everything = np.stack([item.vector for item in held.values()])
    for query in everything[::3]:
        found = collection.search(query, 7)
        assert [m.score for m in found] == pytest.approx(best_scores(everything, query, metric)[:7], abs=1e-5)
    for label in ("cat", "dog", "übersee"):
        where = {"must": [{"key": "label", "match": label}]}
        wanted_ids = {id for id, item in items.items() if item.metadata["label"] == label}
        assert collection.count(where) == len(wanted_ids)
        assert {m.id for m in collection.search(everything[0], 40, where)} == wanted_ids
    assert collection.count() == len(items)
    assert collection.verify().ok


def test_it_holds_what_was_written(golden, expected):
    with open_store(str(golden)) as store:
        assert [info.name for info in store.list()] == sorted(SPECS)
        for name, spec in SPECS.items():
            collection = store.get(name)
            assert asdict(collection.spec) == asdict(spec) | {"vectors": "raw", "index": "auto", "precision": "f32"}
            assert collection.info().durable_seq >= LAST_CHANGE
            check(collection, expected[name])


def test_it_can_be_written_to_and_opened_again(golden, expected):
    for round_ in range(2):
        with open_store(str(golden)) as store:
            for name, items in expected.items():
                collection = store.get(name)
                check(collection, items)
                gone = sorted(items)[round_]
                assert collection.delete([gone, f"new{round_}"]) == 1
                del items[gone]
                vector = np.array([1.0 + round_] * (collection.spec.dim - 1) + [-3.0], np.float32)
                items[f"new{round_}"] = Item(f"new{round_}", vector, {"label": "cat"}, b"small")
                collection.upsert([items[f"new{round_}"]])
                collection.snapshot()
                collection.compact()
                check(collection, items)


def test_it_can_be_read_while_its_format_is_the_old_one(golden, expected):
    """`read_only` may not change the folder; it either reads it or reports what to do first."""
    before = {path: path.read_bytes() for path in golden.rglob("*.sqlite")}
    with open_store(str(golden), read_only=True) as store:
        for name, items in expected.items():
            check(store.get(name), items)
    assert before == {path: path.read_bytes() for path in before}


def test_its_names_can_be_given_new_meanings(golden, expected):
    with open_store(str(golden)) as store:
        store.alias("pictures", "photos")
        store.rename("dots", "points")
    with open_store(str(golden)) as store:
        check(store.get("pictures"), expected["photos"])
        check(store.get("points"), expected["dots"])
        assert store.aliases() == {"pictures": "photos"}
