"""Import refuses damaged files, wrong contents and invalid manifests before anything is written."""

import json
import shutil
import sys

import numpy as np
import pyarrow.parquet
import pytest
from safetensors.numpy import save_file

from nnclr_hub.errors import InvalidRequest, MissingDependency, NNCLRHubError, StoreError
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.exchange import transfer as exchange
from nnclr_hub.store.exchange.manifest import ExportedFile
from nnclr_hub.store.exchange.transfer import export_collection, import_collection

DIM, COUNT = 16, 57


@pytest.fixture
def store(tmp_path, monkeypatch):
    """With three shards in tmp_path / "out"."""
    monkeypatch.setattr(exchange, "SHARD_ITEMS", 20)
    monkeypatch.setattr(exchange, "BATCH", 5)
    with open_store(str(tmp_path / "store")) as opened:
        collection = opened.create("photos", CollectionSpec(DIM))
        rows = np.random.default_rng(3).normal(size=(COUNT, DIM)).astype(np.float32)
        collection.upsert([Item(f"item-{n:03}", row, {"n": n}) for n, row in enumerate(rows)])
        export_collection(collection, tmp_path / "out")
        yield opened


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "flipped table": lambda out: flip(out / "items-00001.parquet"),
    "flipped vectors": lambda out: flip(out / "vectors-00002.safetensors"),
    "truncated": lambda out: (out / "items-00000.parquet").write_bytes(b"PAR1"),
    "missing": lambda out: (out / "vectors-00000.safetensors").unlink(),
    "swapped": lambda out: (out / "items-00000.parquet").replace(out / "items-00001.parquet"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_export_is_refused_before_anything_is_written(store, tmp_path, damage):
    DAMAGES[damage](tmp_path / "out")
    with pytest.raises(StoreError):
        import_collection(store, "copy", tmp_path / "out")
    assert [info.name for info in store.list()] == ["photos"]


def rewrite(out, number: int, kind: str, tensor=None, **columns):
    """Another file in place of an exported one, with size and hash corrected."""
    path = out / (f"vectors-{number:05}.safetensors" if kind == "vectors" else f"items-{number:05}.parquet")
    if tensor is not None:
        save_file(tensor, path)
    elif columns:
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    else:
        path.write_bytes(b"neither table nor tensor")
    manifest = json.loads((out / "collection.json").read_text())
    manifest["shards"][number][kind] = vars(ExportedFile.of(path))
    (out / "collection.json").write_text(json.dumps(manifest))


LIES = {
    "another dimension": {"kind": "vectors", "tensor": {"vectors": np.zeros((20, DIM + 1), np.float32)}},
    "another precision": {"kind": "vectors", "tensor": {"vectors": np.zeros((20, DIM), np.float16)}},
    "another tensor": {"kind": "vectors", "tensor": {"x": np.zeros((20, DIM), np.float32)}},
    "no tensor": {"kind": "vectors"},
    "no table": {"kind": "items"},
    "other columns": {"kind": "items", "id": ["a"]},
}


@pytest.mark.parametrize("lie", LIES)
def test_files_that_do_not_hold_what_the_manifest_says_are_refused(store, tmp_path, lie):
    rewrite(tmp_path / "out", 0, **LIES[lie])
    with pytest.raises(StoreError):
        import_collection(store, "copy", tmp_path / "out")
    assert [info.name for info in store.list()] == ["photos"]


def test_shards_in_another_order_are_refused(store, tmp_path):
    path = tmp_path / "out" / "collection.json"
    manifest = json.loads(path.read_text())
    manifest["shards"].reverse()
    path.write_text(json.dumps(manifest))
    with pytest.raises(StoreError):
        import_collection(store, "copy", tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"version": 2}, "store_too_new"),
        ({"version": "x"}, "store_error"),
        ({"format": "else"}, "invalid_request"),
        ({"items": 1}, "store_error"),
        ({"spec": {"dim": -1, "indexed": []}}, "store_error"),
        ({"spec": {"dim": "many", "indexed": []}}, "store_error"),
        ({"spec": {"dim": 16, "indexed": [], "evil": 1}}, "store_error"),
        ({"spec": None}, "store_error"),
        ({"shards": 7}, "store_error"),
        ({"shards": [{"count": True}]}, "store_error"),
        ({"name": 3}, "store_error"),
    ],
)
def test_an_invalid_manifest_is_refused(store, tmp_path, change, code):
    path = tmp_path / "out" / "collection.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(NNCLRHubError) as refusal:
        import_collection(store, "copy", tmp_path / "out")
    assert refusal.value.code == code


def test_a_manifest_leads_to_no_file_outside_its_folder(store, tmp_path):
    path = tmp_path / "out" / "collection.json"
    shutil.move(tmp_path / "out" / "items-00000.parquet", tmp_path / "items-00000.parquet")
    path.write_text(path.read_text().replace("items-00000.parquet", "../items-00000.parquet"))
    with pytest.raises(StoreError):
        import_collection(store, "copy", tmp_path / "out")


def test_what_is_no_export_is_refused(store, tmp_path, monkeypatch):
    with pytest.raises(InvalidRequest):
        import_collection(store, "copy", tmp_path)
    with pytest.raises(InvalidRequest):
        import_collection(store, "copy", tmp_path / "nowhere")
    for text in ("", "{", "[" * 100_000, "[]"):
        (tmp_path / "collection.json").write_text(text)
        with pytest.raises((StoreError, InvalidRequest)):
            import_collection(store, "copy", tmp_path)
    monkeypatch.setattr("nnclr_hub.store.exchange.manifest.MAX_MANIFEST", 10)
    (tmp_path / "collection.json").write_text(" " * 11)
    with pytest.raises(StoreError):
        import_collection(store, "copy", tmp_path)
    assert [info.name for info in store.list()] == ["photos"]


def test_without_pyarrow_the_error_names_the_extra(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"nnclr_hub\[parquet\]"):
        export_collection(store.get("photos"), tmp_path / "again")
