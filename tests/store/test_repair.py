"""What is damaged inside a whole file is seen, named, and taken out alone."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from nnclr_hub.errors import StoreCorrupt
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item

DIM = 16
VECTORS = np.random.default_rng(0).normal(size=(300, DIM)).astype(np.float32)


@pytest.fixture
def folder(tmp_path) -> Path:
    """With the closed collection c of three hundred items, with an index on `label`."""
    with open_store(str(tmp_path)) as store:
        items = [Item(f"i{i:03}", v, {"n": i, "label": "cat"}, b"\xff\xd8\xffjpeg") for i, v in enumerate(VECTORS)]
        store.create("c", CollectionSpec(DIM)).upsert(items)
    return tmp_path


def change(folder: Path, statement: str) -> None:
    """As SQL, past all that looks after the file."""
    (file,) = folder.glob("collections/*.sqlite")
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement)


def turn_bit(folder: Path, text: bytes, bit: int, nth: int = 0) -> None:
    """Turns a bit of the first character of a text in the file, which SQLite does not notice."""
    (file,) = folder.glob("collections/*.sqlite")
    data = bytearray(file.read_bytes())
    assert data.count(text) == 1
    data[data.index(text) + nth] ^= bit
    file.write_bytes(data)


OF_I007 = "(SELECT rid FROM items WHERE id = 'i007')"


@pytest.mark.parametrize("bit", [0x01, 0x80], ids=["still text", "no text"])
@pytest.mark.parametrize("nth", [0, 2], ids=["no JSON", "another key"])
def test_damaged_metadata_of_an_item_are_named_and_cost_that_item_alone(folder, bit, nth):
    """A bit of the brace makes it no JSON; one of the key makes it other JSON, or no text. The checksum shows both."""
    turn_bit(folder, b'{"n":7,"label"', bit, nth)
    with open_store(str(folder)) as store:
        collection = store.get("c")
        for ask in (
            lambda: collection.get(["i007"]),
            lambda: collection.scroll(limit=300),
            lambda: collection.search(VECTORS[7], 300),
        ):
            with pytest.raises(StoreCorrupt):
                ask()
        if nth == 0:
            with pytest.raises(StoreCorrupt):
                collection.search(VECTORS[7], 3, {"must": [{"key": "n", "range": {"gte": 0}}]})
        if bit == 0x01:
            with pytest.raises(StoreCorrupt, match="i007"):
                collection.search(VECTORS[7], 300)
        if (bit, nth) == (0x01, 0):
            with pytest.raises(StoreCorrupt):
                collection.count({"must": [{"key": "n", "range": {"gte": 0}}]})
        assert collection.verify().damaged == ("i007",)
        repaired = collection.repair()
        assert (repaired.items, repaired.removed) == (299, ("i007",))
        assert "label" in json.loads(Path(repaired.kept_in).read_text())["metadata"]
        assert len(collection.search(VECTORS[7], 300)) == 299
        assert collection.count({"must": [{"key": "label", "match": "cat"}]}) == 299
        assert collection.verify().ok


def test_repair_keeps_an_item_that_was_indexed_during_the_repair(folder):
    change(folder, DAMAGES[0][0])
    with open_store(str(folder)) as store:
        collection = store.get("c")

        def meanwhile(done: int, total: int) -> None:
            if collection.count() == 300:
                collection.upsert([Item("i007", VECTORS[7], {"n": 7, "again": True}), Item("more", VECTORS[0])])

        repaired = collection.repair(meanwhile)
        assert (repaired.items, repaired.removed) == (301, ())
        assert collection.get(["i007"])[0].metadata["again"]


def test_an_id_that_is_not_the_one_in_the_index_is_damage_of_the_file(folder):
    (file,) = folder.glob("collections/*.sqlite")
    data = file.read_bytes()
    at = data.index(b'i007{"n":7,')
    file.write_bytes(data[:at] + b"j" + data[at + 1 :])
    with open_store(str(folder)) as store:
        for ask in (store.get("c").verify, store.get("c").repair):
            with pytest.raises(StoreCorrupt):
                ask()
        salvaged = store.salvage("c")
        assert (salvaged.saved, salvaged.lost) == (299, ("i007",))
        assert store.get("c").verify().ok


DAMAGES = [
    (f"UPDATE vectors SET vector = zeroblob({4 * DIM}) WHERE rid = {OF_I007}", "vector"),
    (f"UPDATE vectors SET vector = substr(vector, 1, 31) WHERE rid = {OF_I007}", None),
    (f"DELETE FROM vectors WHERE rid = {OF_I007}", None),
    (f"UPDATE items SET metadata = '[1]' WHERE rid = {OF_I007}", "metadata"),
    (f"UPDATE items SET metadata = '{{}}' WHERE rid = {OF_I007}", "id, metadata or thumbnail"),
]


@pytest.mark.parametrize(("statement", "part"), DAMAGES)
def test_repair_takes_out_what_is_damaged_and_keeps_its_metadata(folder, statement, part):
    change(folder, statement)
    with open_store(str(folder)) as store:
        collection = store.get("c")
        report = collection.verify()
        assert (report.damaged, report.ok) == (("i007",), False)
        assert part is None or report.parts == (part,)
        with pytest.raises(StoreCorrupt):
            collection.get(["i007"])
        repaired = collection.repair()
        assert (repaired.items, repaired.removed) == (299, ("i007",))
        kept = json.loads(Path(repaired.kept_in).read_text())
        assert kept["id"] == "i007"
        if "vector" in statement:
            assert kept["metadata"] == {"n": 7, "label": "cat"}
        assert collection.verify().ok
        assert collection.repair().kept_in is None
