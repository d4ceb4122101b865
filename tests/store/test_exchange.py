"""Export and import: nothing is lost on the way, nothing damaged gets in."""

import hashlib
import json
import shutil
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from store.backups import contents

from nnclr_hub.errors import (
    CollectionExists,
    FingerprintMismatch,
    InvalidRequest,
    MissingDependency,
    NNCLRHubError,
    StoreError,
)
from nnclr_hub.store import exchange
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.exchange import export_collection, import_collection

DIM, COUNT = 16, 57


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Several shards of several batches, from a few items."""
    monkeypatch.setattr(exchange, "FILE_ITEMS", 20)
    monkeypatch.setattr(exchange, "BATCH", 5)


def items(count: int = COUNT) -> list[Item]:
    rng = np.random.default_rng(3)
    return [
        Item(
            f"item-{n:03}",
            rng.normal(size=DIM).astype(np.float32),
            {"label": "Katze 猫", "n": n, "nested": {"x": [1.5, None, True]}} if n % 3 else {},
            b"\xff\xd8\xff no real JPEG " + bytes([n]) if n % 2 else None,
        )
        for n in range(count)
    ]


def filled(store, name="photos", **spec):
    collection = store.create(name, CollectionSpec(DIM, fingerprint="f" * 64, model="m", **spec))
    collection.upsert(items())
    return collection


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_a_round_trip_brings_back_every_bit(store, tmp_path, metric, precision):
    original = filled(store, metric=metric, precision=precision, indexed=("label", "n"))
    seen = []
    manifest = export_collection(original, tmp_path / "out", progress=lambda done, total: seen.append((done, total)))
    assert (manifest.items, len(manifest.files), seen[-1]) == (COUNT, 3, (COUNT, COUNT))
    checked, stored = [], []
    report = import_collection(
        store, "copy", tmp_path / "out", checking=lambda *both: checked.append(both),
        progress=lambda *both: stored.append(both),
    )  # fmt: skip
    assert (report.items, report.written, report.created) == (COUNT, COUNT, True)
    assert (checked[-1], stored[-1]) == ((manifest.size, manifest.size), (COUNT, COUNT))
    copy = store.get("copy")
    assert copy.spec == original.spec
    assert contents(copy) == contents(original)
    # others read it with pandas or DuckDB
    kept = original.get([item.id for item in items()])
    tables = [pyarrow.parquet.read_table(path) for path in sorted((tmp_path / "out").glob("*.parquet"))]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [(row["id"], json.loads(row["metadata"]), row["thumbnail"]) for row in rows] == [
        (item.id, item.metadata, item.thumbnail) for item in kept
    ]
    assert {str(table.schema.field("vector").type.value_type) for table in tables} == {
        "float" if precision == "f32" else "halffloat"
    }
    np.testing.assert_array_equal([row["vector"] for row in rows], [item.vector for item in kept])


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


def test_an_interrupted_import_continues(store, tmp_path):
    original = filled(store)
    export_collection(original, tmp_path / "out")

    def stop(done, total):
        if done > 0.3 * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_collection(store, "copy", tmp_path / "out", progress=stop)
    there = store.get("copy").count()
    assert 0 < there < COUNT
    report = import_collection(store, "copy", tmp_path / "out")
    assert (report.written, report.created) == (COUNT - there, False)
    assert contents(store.get("copy")) == contents(original)
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


# ------------------------------------------------------------------------------ refusals


@pytest.fixture
def exported(store, tmp_path):
    """The store, and three shards of its collection in tmp_path / "out"."""
    export_collection(filled(store), tmp_path / "out")
    return store


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "flipped table": lambda out: flip(out / "items-00001.parquet"),
    "truncated": lambda out: (out / "items-00000.parquet").write_bytes(b"PAR1"),
    "missing": lambda out: (out / "items-00000.parquet").unlink(),
    "swapped": lambda out: (out / "items-00000.parquet").replace(out / "items-00001.parquet"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_export_is_refused_before_anything_is_written(exported, tmp_path, damage):
    DAMAGES[damage](tmp_path / "out")
    with pytest.raises(StoreError):
        import_collection(exported, "copy", tmp_path / "out")
    assert [info.name for info in exported.list()] == ["photos"]


@pytest.mark.parametrize("content", ["no table", "another dimension", "another column"])
def test_a_file_that_its_manifest_does_not_describe_is_reported(exported, tmp_path, content):
    """Size and hash agree, but the table is invalid."""
    file, path = tmp_path / "out" / "items-00000.parquet", tmp_path / "out" / "collection.json"
    table = pyarrow.parquet.read_table(file)
    if content == "no table":
        file.write_bytes(b"no table")
    elif content == "another dimension":
        shorter = pyarrow.array([vector[1:] for vector in table["vector"].to_pylist()])
        pyarrow.parquet.write_table(table.set_column(3, "vector", shorter), file)
    else:
        pyarrow.parquet.write_table(table.drop_columns(["metadata"]), file)
    manifest = json.loads(path.read_text())
    data = file.read_bytes()
    manifest["files"][0] |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    path.write_text(json.dumps(manifest))
    with pytest.raises(StoreError):
        import_collection(exported, "copy", tmp_path / "out")
    assert exported.get("copy").count() == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"version": 3}, "store_too_new"),
        ({"version": "x"}, "store_too_new"),
        ({"format": "else"}, "invalid_request"),
        ({"items": 1}, "store_error"),
        ({"spec": {"dim": -1, "indexed": []}}, "store_error"),
        ({"spec": {"dim": 16, "indexed": [], "evil": 1}}, "store_error"),
        ({"spec": None}, "store_error"),
        ({"files": 7}, "store_error"),
        (lambda manifest: {"files": manifest["files"][::-1]}, "store_error"),
        (
            lambda manifest: json.loads(json.dumps(manifest).replace("items-00000", "../items-00000")),
            "store_error",
        ),
    ],
)
def test_an_invalid_manifest_is_refused(exported, tmp_path, change, code):
    path = tmp_path / "out" / "collection.json"
    manifest = json.loads(path.read_text())
    shutil.copy(tmp_path / "out" / "items-00000.parquet", tmp_path)
    path.write_text(json.dumps(manifest | (change(manifest) if callable(change) else change)))
    with pytest.raises(NNCLRHubError) as refusal:
        import_collection(exported, "copy", tmp_path / "out")
    assert refusal.value.code == code
    assert [info.name for info in exported.list()] == ["photos"]


def test_without_pyarrow_the_error_names_the_extra(exported, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"nnclr_hub\[formats\]"):
        export_collection(exported.get("photos"), tmp_path / "again")
