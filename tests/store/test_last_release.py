"""A folder that an earlier release wrote opens completely, and can be written."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from store.crash.world import best_scores

from nnclr_hub.store import open_store
from nnclr_hub.store.base import Item

GOLDENS = Path(__file__).parent / "goldens"
SCHEMAS = sorted(path.name.removesuffix(".tar.gz") for path in GOLDENS.glob("store_v*.tar.gz"))


@pytest.fixture(params=[(schema, end) for schema in SCHEMAS for end in ("killed", "closed")], ids="-".join)
def golden(request, tmp_path) -> tuple[Path, dict]:
    """An unpacked folder and what it must hold."""
    schema, end = request.param
    with tarfile.open(GOLDENS / f"{schema}.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / end, json.loads((GOLDENS / "store.json").read_text())


def read(collection) -> dict:
    """Everything in a collection, in the words of the JSON."""
    ids = [item.id for item in collection.scroll(limit=10_000).items]
    return {
        item.id: {
            "vector": item.vector,
            "metadata": dict(item.metadata),
            "thumbnail": None if item.thumbnail is None else item.thumbnail.hex(),
        }
        for item in collection.get(ids)
    }


def check(collection, expected: dict) -> None:
    """The collection holds exactly that, and finds it."""
    items = expected["items"]
    held = read(collection)
    assert held.keys() == items.keys()
    metric = expected["spec"]["metric"]
    for id, wanted in items.items():
        vector = np.array(wanted["vector"], np.float32)
        kept = vector / np.linalg.norm(vector) if metric == "cosine" else vector
        np.testing.assert_allclose(held[id]["vector"], kept, rtol=1e-6, err_msg=id)
        assert {**held[id], "vector": None} == {**wanted, "vector": None}
        assert collection.thumbnail(id) == (wanted["thumbnail"] and bytes.fromhex(wanted["thumbnail"]))
    everything = np.stack([item["vector"] for item in held.values()])
    for query in everything[::3]:
        found = collection.search(query, 7)
        assert [m.score for m in found] == pytest.approx(best_scores(everything, query, metric)[:7], abs=1e-5)
    for label in ("cat", "dog", "übersee"):
        where = {"must": [{"key": "label", "match": label}]}
        wanted_ids = {id for id, item in items.items() if item["metadata"]["label"] == label}
        assert collection.count(where) == len(wanted_ids)
        assert {m.id for m in collection.search(everything[0], 40, where)} == wanted_ids
    assert collection.count() == len(items)
    assert collection.verify().ok


def test_it_holds_what_was_written(golden):
    folder, expected = golden
    with open_store(str(folder)) as store:
        assert [info.name for info in store.list()] == sorted(expected)
        for name, wanted in expected.items():
            collection = store.get(name)
            assert {key: getattr(collection.spec, key) for key in wanted["spec"]} == {
                key: tuple(value) if isinstance(value, list) else value for key, value in wanted["spec"].items()
            }
            assert collection.spec.index == "auto"
            assert collection.spec.precision == "f32"
            assert collection.info().durable_seq >= wanted["seq"]
            check(collection, wanted)


def test_it_can_be_written_to_and_opened_again(golden):
    folder, expected = golden
    for round_ in range(2):
        with open_store(str(folder)) as store:
            for name, wanted in expected.items():
                collection, items = store.get(name), wanted["items"]
                check(collection, wanted)
                gone = sorted(items)[round_]
                assert collection.delete([gone, f"new{round_}"]) == 1
                del items[gone]
                new = {"vector": [1.0 + round_] * (collection.spec.dim - 1) + [-3.0], "metadata": {"label": "cat"}}
                items[f"new{round_}"] = {**new, "thumbnail": b"small".hex()}
                vector = np.array(new["vector"], np.float32)
                collection.upsert([Item(f"new{round_}", vector, new["metadata"], b"small")])
                collection.snapshot()
                collection.compact()
                check(collection, wanted)


def test_it_can_be_read_while_its_format_is_the_old_one(golden):
    """`read_only` may not change the folder; it either reads it or reports what to do first."""
    folder, expected = golden
    before = {path: path.read_bytes() for path in folder.rglob("*.sqlite")}
    with open_store(str(folder), read_only=True) as store:
        for name, wanted in expected.items():
            check(store.get(name), wanted)
    assert before == {path: path.read_bytes() for path in before}


def test_its_names_can_be_given_new_meanings(golden):
    folder, expected = golden
    with open_store(str(folder)) as store:
        store.alias("pictures", "photos")
        store.rename("dots", "points")
    with open_store(str(folder)) as store:
        check(store.get("pictures"), expected["photos"])
        check(store.get("points"), expected["dots"])
        assert store.aliases() == {"pictures": "photos"}
