"""Export and import: nothing is lost on the way, nothing damaged gets in."""

import json

import numpy as np
import pyarrow.parquet
import pytest
from safetensors.numpy import load_file

from nnclr_hub.errors import (
    CollectionExists,
    FingerprintMismatch,
    InvalidRequest,
    StoreError,
)
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.exchange import transfer as exchange
from nnclr_hub.store.exchange.transfer import export_collection, import_collection

DIM, COUNT = 16, 57


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Several shards of several batches, from a few items."""
    monkeypatch.setattr(exchange, "SHARD_ITEMS", 20)
    monkeypatch.setattr(exchange, "BATCH", 5)


@pytest.fixture
def store(tmp_path):
    with open_store(str(tmp_path / "store")) as opened:
        yield opened


def items(count: int = COUNT) -> list[Item]:
    rng = np.random.default_rng(3)
    return [
        Item(
            f"item-{n:03}",
            rng.normal(size=DIM).astype(np.float32),
            {"label": "Katze 猫", "n": n, "nested": {"x": [1.5, None, True]}} if n % 3 else {},
            b"\xff\xd8 no real JPEG " + bytes([n]) if n % 2 else None,
        )
        for n in range(count)
    ]


def filled(store, name="photos", **spec):
    collection = store.create(name, CollectionSpec(DIM, fingerprint="f" * 64, model="m", **spec))
    collection.upsert(items())
    return collection


def everything(collection) -> dict[str, tuple]:
    ids, cursor = [], None
    while True:
        page = collection.scroll(cursor, 100)
        ids += [item.id for item in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    return {i.id: (i.vector.tobytes(), json.dumps(dict(i.metadata)), i.thumbnail) for i in collection.get(ids)}


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_a_round_trip_brings_back_every_bit(store, tmp_path, metric, precision):
    original = filled(store, metric=metric, precision=precision, indexed=("label", "n"))
    seen = []
    manifest = export_collection(original, tmp_path / "out", progress=lambda done, total: seen.append((done, total)))
    assert (manifest.items, len(manifest.shards), seen[-1]) == (COUNT, 3, (COUNT, COUNT))
    report = import_collection(store, "copy", tmp_path / "out", progress=lambda *both: seen.append(both))
    assert (report.items, report.written, report.created) == (COUNT, COUNT, True)
    assert seen[-1] == (2 * manifest.size, 2 * manifest.size)
    copy = store.get("copy")
    assert copy.spec == original.spec
    assert everything(copy) == everything(original)


@pytest.mark.parametrize(("precision", "kind"), [("f32", np.float32), ("f16", np.float16)])
def test_others_read_it_with_pandas_and_safetensors(store, tmp_path, precision, kind):
    collection = filled(store, precision=precision)
    export_collection(collection, tmp_path / "out")
    tables = sorted((tmp_path / "out").glob("*.parquet"))
    rows = [row for path in tables for row in pyarrow.parquet.read_table(path).to_pylist()]
    tensors = [load_file(path)["vectors"] for path in sorted((tmp_path / "out").glob("*.safetensors"))]
    assert {one.dtype for one in tensors} == {np.dtype(kind)}
    kept = collection.get([item.id for item in items()])
    assert [row["id"] for row in rows] == [item.id for item in kept]
    assert [json.loads(row["metadata"]) for row in rows] == [item.metadata for item in kept]
    assert [row["thumbnail"] for row in rows] == [item.thumbnail for item in kept]
    np.testing.assert_array_equal(np.concatenate(tensors).astype(np.float32), [item.vector for item in kept])


def test_thumbnails_can_be_left_out(store, tmp_path):
    manifest = export_collection(filled(store), tmp_path / "out", thumbnails=False)
    import_collection(store, "copy", tmp_path / "out")
    assert not manifest.thumbnails
    assert {one[2] for one in everything(store.get("copy")).values()} == {None}


def test_an_empty_collection_comes_back_empty(store, tmp_path):
    export_collection(store.create("none", CollectionSpec(3)), tmp_path / "out")
    assert import_collection(store, "copy", tmp_path / "out").items == 0
    assert store.get("copy").spec == CollectionSpec(3)


def test_nothing_is_overwritten_and_nothing_half_written_stays(store, tmp_path):
    collection = filled(store)
    (tmp_path / "there").mkdir()
    with pytest.raises(InvalidRequest):
        export_collection(collection, tmp_path / "there")

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_collection(collection, tmp_path / "out", progress=stop)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        export_collection(collection, tmp_path / "file" / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "store", "there"]


def test_an_interrupted_import_goes_on_where_it_stopped(store, tmp_path):
    original = filled(store)
    manifest = export_collection(original, tmp_path / "out")

    def stop(done, total):
        if done > 1.3 * manifest.size:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_collection(store, "copy", tmp_path / "out", progress=stop)
    there = store.get("copy").count()
    assert 0 < there < COUNT
    report = import_collection(store, "copy", tmp_path / "out")
    assert (report.written, report.created) == (COUNT - there, False)
    assert everything(store.get("copy")) == everything(original)
    assert import_collection(store, "copy", tmp_path / "out").written == 0


def test_a_collection_with_other_content_is_refused_without_into(store, tmp_path):
    filled(store)
    export_collection(store.get("photos"), tmp_path / "out")
    spec = store.get("photos").spec
    changed = [
        Item("item-000", np.ones(DIM), {}),
        Item("item-000", items()[0].vector, {"other": 1}),
        Item("z", np.ones(DIM)),
    ]
    for number, item in enumerate(changed):
        other = store.create(f"other{number}", spec)
        other.upsert([item])
        with pytest.raises(CollectionExists, match="--into"):
            import_collection(store, other.name, tmp_path / "out")
        assert other.count() == 1
        import_collection(store, other.name, tmp_path / "out", into=True)
        assert other.count() == COUNT + (item.id == "z")
    more = store.get("photos")
    more.upsert([Item("z", np.ones(DIM))])
    with pytest.raises(CollectionExists):
        import_collection(store, "photos", tmp_path / "out")
    store.create("dot", CollectionSpec(DIM, "dot", "f" * 64))
    with pytest.raises(CollectionExists):
        import_collection(store, "dot", tmp_path / "out", into=True)
    store.create("foreign", CollectionSpec(DIM, fingerprint="e" * 64, model="n"))
    with pytest.raises(FingerprintMismatch):
        import_collection(store, "foreign", tmp_path / "out", into=True)
