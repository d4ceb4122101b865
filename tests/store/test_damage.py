"""A flipped bit in any file of a collection is reported at open or by `verify`, or it changes nothing."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from store.backups import contents
from store.crash.small import LONG, SEED, WITHOUT_SNAPSHOTS, open_small_store, repeated

from nnclr_hub.errors import StoreError
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.folder import EmbeddedStore
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.sqlite import CommitRecord

N, DIM = 500, 4
VECTORS = np.random.default_rng(0).normal(size=(N, DIM)).astype(np.float32)


@pytest.fixture(scope="module", params=["closed", "killed"])
def damaged_store(request, tmp_path_factory) -> tuple[Path, dict]:
    """A store of one collection, closed or as a kill leaves it; and what it holds."""
    folder = tmp_path_factory.mktemp("intact") / "store"
    with open_small_store(folder, settings=WITHOUT_SNAPSHOTS) as store:
        collection = store.create("c", CollectionSpec(DIM, "l2", indexed=("label",), index="hnsw"))
        everything = [
            Item(f"i{n}", v, {"label": "cd"[n % 2], "path": f"{n}.jpg"}, b"\xff\xd8\xffjpeg%d" % n if n % 3 else None)
            for n, v in enumerate(VECTORS)
        ]
        collection.upsert(everything[:300])
        collection.compact()
        collection.snapshot()
        for n in range(300, N, 60):  # some commits are only in the log
            collection.upsert(everything[n : n + 60])
        collection.delete([f"i{n}" for n in range(0, N, 10)])
        held = contents(collection)
        if request.param == "killed":
            shutil.copytree(folder, folder.with_name("killed"))
    return folder.with_name("killed") if request.param == "killed" else folder, held


def flips(files: list[Path], rng: random.Random) -> Iterator[tuple[Path, int]]:
    """Yield files and numbers of bits: some in the first 100 bytes, and one in each region of a file."""
    for _ in repeated(0.5):
        for file in files:
            regions = 5 if "sqlite" in file.name else 1
            size = file.stat().st_size
            some = [
                rng.randrange(60),
                rng.randrange(60, 100),
                *(int(size * (n + rng.random()) / regions) for n in range(regions)),
            ]
            yield from ((file, 8 * byte + rng.randrange(8)) for byte in some)


def test_a_flipped_bit_is_reported_or_changes_nothing(damaged_store, tmp_path):
    source, held = damaged_store
    files = sorted(path for path in source.glob("collections/**/*") if path.is_file())
    assert {path.suffix for path in files} >= {".sqlite", ".faiss", ""}
    if source.name == "killed" and not LONG:
        files = [path for path in files if path.suffix == ".sqlite-wal"]
    reported = 0
    for number, (file, bit) in enumerate(flips(files, random.Random(SEED))):
        folder = tmp_path / str(number)
        shutil.copytree(source, folder)
        target = folder / file.relative_to(source)
        data = bytearray(target.read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        target.write_bytes(data)
        where = f"bit {bit % 8} of byte {bit // 8} of {file.relative_to(source)}"
        try:
            with open_small_store(folder, settings=WITHOUT_SNAPSHOTS) as store:
                collection = store.get("c")
                if collection.verify().ok:
                    assert contents(collection) == held, where
                    assert collection.count({"must": [{"key": "label", "match": "c"}]}) == sum(
                        metadata["label"] == "c" for _, metadata, _ in held.values()
                    ), where
                    assert collection.spec.fingerprint == "", where
                else:
                    reported += 1
        except StoreError:
            reported += 1
        shutil.rmtree(folder)
    assert reported


def test_a_damaged_snapshot_costs_time_alone(damaged_store, tmp_path):
    source, held = damaged_store
    folder = shutil.copytree(source, tmp_path / "store")
    (file,) = folder.glob("collections/*/*.faiss")
    data = file.read_bytes()
    file.write_bytes(data[:-2000] + bytes(2000))  # vectors
    with open_small_store(folder, settings=WITHOUT_SNAPSHOTS) as store:
        assert store.get("c").verify().ok
        assert contents(store.get("c")) == held


def test_a_flipped_bit_of_the_record_of_the_last_commit_gives_the_one_before_or_none(damaged_store, tmp_path):
    (file,) = damaged_store[0].glob("collections/*/commit")
    data = file.read_bytes()
    valid = {None}
    for slot in (0, 512):  # without the newer record, the older one remains
        (tmp_path / "commit").write_bytes(data[:slot] + bytes(28) + data[slot + 28 :])
        valid.add(CommitRecord(tmp_path / "commit").read())
    assert len(valid) == 3
    for bit in [*range(0, 8 * 40, 3), *range(8 * 508, 8 * len(data), 3)]:
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / "commit").write_bytes(flipped)
        assert CommitRecord(tmp_path / "commit").read() in valid


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("number", [1e6, 3e38, np.inf])
def test_a_number_that_damage_made_huge_neither_ends_the_process_nor_hides_other_items(tmp_path, metric, number):
    """faiss ends the process if a vector that it learns lists from is infinitely far from all others."""
    number *= 1e15 if metric == "l2" and number == 1e6 else 1  # longer than any vector that is accepted
    settings = StoreSettings(memory=1 << 30, flat_below=100, points_per_list=8)
    rows = np.random.default_rng(0).normal(size=(600, 16)).astype(np.float32)
    with EmbeddedStore(tmp_path, settings=settings) as store:
        collection = store.create("c", CollectionSpec(16, metric, index="ivf"))
        collection.upsert([Item(f"i{n}", row) for n, row in enumerate(rows)])
    (file,) = tmp_path.glob("collections/*.sqlite")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE vectors SET vector = ? WHERE rid = 5", [np.full(16, number, "<f4").tobytes()])
        connection.commit()
    with EmbeddedStore(tmp_path, settings=settings) as store:
        collection = store.get("c")
        collection.compact()
        assert collection.info().index == "ivf"
        others = [n for n in range(600) if n != 4]
        found = collection.search_each(rows[others], 1)
        assert [matches[0].id for matches in found] == [f"i{n}" for n in others]
        assert not collection.verify().ok
