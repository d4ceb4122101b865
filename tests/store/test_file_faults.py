"""Damaged snapshot files cost time and nothing else: whatever is done to them, the store opens whole.

Each fault is done to a fresh copy of one prepared store, which is then opened and held against what was written.
"""

import os
import random
import shutil
from pathlib import Path

import pytest
from store.crash.content import DIM, item_of
from store.crash.small import LONG, SEED, WITHOUT_SNAPSHOTS, open_small_store, repeated
from store.crash.world import read_collection

from nnclr_hub.store.base import CollectionSpec

INDEXES = ("hnsw", "ivf") if LONG else ("hnsw",)


@pytest.fixture(scope="module", params=INDEXES)
def prepared(request, tmp_path_factory) -> tuple[Path, dict[str, int]]:
    """A store with a snapshot and changes since, killed rather than closed; and what it holds."""
    folder = tmp_path_factory.mktemp("prepared") / "store"
    killed = folder.with_name("killed")
    held = {}
    with open_small_store(folder, settings=WITHOUT_SNAPSHOTS) as store:
        collection = store.create("c", CollectionSpec(DIM, index=request.param))

        def put(numbers: range, version: int) -> None:
            held.update({f"i{n}": version for n in numbers})
            collection.upsert([item_of(f"i{n}", version) for n in numbers])

        put(range(120), 1)
        collection.compact()
        collection.snapshot()
        put(range(40, 70), 2)
        collection.delete(["i1", "i50"])
        collection.compact()
        collection.snapshot()
        put(range(100, 140), 3)
        collection.delete(["i2", "i130"])
        for id in ("i1", "i50", "i2", "i130"):
            del held[id]
        other = store.create("other", CollectionSpec(DIM, index=request.param))
        other.upsert([item_of(f"i{n}", 9) for n in range(120)])
        other.compact()
        other.snapshot()
        shutil.copytree(folder, killed)
    return killed, held


@pytest.fixture
def store_with_faults(prepared, tmp_path):
    """damage(a function of the snapshot file, and of the other collection's) opens and checks."""
    source, held = prepared
    copies = iter(range(10**6))

    def check(damage) -> None:
        folder = tmp_path / f"copy{next(copies)}"
        shutil.copytree(source, folder)
        damage(*snapshot_files(folder))
        for _ in range(2):  # and what the first start leaves is whole as well
            with open_small_store(folder, settings=WITHOUT_SNAPSHOTS) as store:
                collection = store.get("c")
                assert read_collection(collection) == held
                collection.compact()  # a rebuilt index is exhaustive at first
                assert collection.info().index == collection.spec.index
                collection.snapshot()
        shutil.rmtree(folder)

    return check


def snapshot_files(folder: Path) -> list[Path]:
    """That of the collection, which is the second that was written, and that of the other."""
    return sorted(folder.glob("collections/*/index-*"), key=lambda path: path.name, reverse=True)


def truncated(path: Path, share: float) -> None:
    os.truncate(path, int(path.stat().st_size * share))


def zeroed(path: Path, share: float) -> None:
    data = bytearray(path.read_bytes())
    start = int(len(data) * share)
    data[start : start + 64] = bytes(len(data[start : start + 64]))
    path.write_bytes(data)


@pytest.mark.parametrize("fault", [truncated, zeroed])
def test_a_damaged_snapshot_loses_nothing(store_with_faults, fault):
    rng = random.Random(SEED)
    for _ in repeated(0.25):
        for share in (rng.uniform(0, 0.1), rng.uniform(0.1, 1)):
            store_with_faults(lambda ours, _, share=share: fault(ours, share))


def swap(one: Path, other: Path) -> None:
    held = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(held)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda ours, _: ours.unlink(), id="it is missing"),
        pytest.param(lambda ours, _: shutil.rmtree(ours.parent), id="its folder is missing"),
        pytest.param(lambda ours, other: shutil.copy(other, ours), id="another collection's in its place"),
        pytest.param(swap, id="swapped with another collection's"),
        pytest.param(lambda ours, _: ours.write_bytes(b""), id="it is empty"),
        pytest.param(lambda ours, _: (ours.unlink(), ours.mkdir()), id="a folder in its place"),
        pytest.param(lambda ours, _: ours.with_name("index-99.faiss").write_bytes(b"?"), id="one too many"),
        pytest.param(lambda ours, _: ours.with_name("index-3.faiss.part").write_bytes(b"?"), id="half a second"),
    ],
)
def test_snapshots_that_are_not_where_they_belong_lose_nothing(store_with_faults, damage):
    store_with_faults(damage)
