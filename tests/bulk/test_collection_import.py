"""Importing shards gives the collection of indexing, which can continue from it."""

import os
import shutil
import tarfile
import zipfile

import numpy as np
import pytest

from nnclr_hub import Item, load_encoder
from nnclr_hub.bulk import embed_shards, open_shards
from nnclr_hub.bulk.collection_import import collect
from nnclr_hub.errors import CollectionExists, FingerprintMismatch, InvalidRequest
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.workbench import Encoders, Workbench


@pytest.fixture
def shards(encoder, photos, tmp_path):
    embed_shards(tmp_path / "v", [photos], encoder, shard_size=25)
    return open_shards(tmp_path / "v")


def items(collection):
    return {item.id: item for page in collection.pages(limit=100) for item in page}


def test_importing_shards_gives_the_items_of_indexing_without_pixel_hashes(shards, store, photos, model):
    Workbench(Encoders(str(model), device="cpu"), store).index_folder("indexed", photos)
    assert collect(shards, store, "collected") == (60, 60)
    indexed, collected = items(store.get("indexed")), items(store.get("collected"))
    assert indexed.keys() == collected.keys()
    for id, item in collected.items():
        assert dict(item.metadata) == {k: v for k, v in indexed[id].metadata.items() if k != "pixel_sha256"}
        np.testing.assert_allclose(item.vector, indexed[id].vector, atol=1e-6)
    assert store.get("collected").spec.fingerprint == store.get("indexed").spec.fingerprint


def test_a_new_or_empty_collection_is_not_asked_for_items(shards, store, monkeypatch):
    empty = store.create("empty", CollectionSpec.of(shards.plan))
    for method in ("get", "scroll"):
        monkeypatch.setattr(type(empty), method, lambda *_, **__: pytest.fail("asked"))
    for name in ("new", "empty"):
        assert collect(shards, store, name) == (60, 60)


def test_an_image_whose_name_is_not_utf_8_is_left_out_with_a_warning(encoder, image_files, store, tmp_path, caplog):
    (tmp_path / "in").mkdir()
    for name in (b"a.jpg", b"caf\xe9.jpg"):
        shutil.copy(image_files[0], tmp_path / "in" / os.fsdecode(name))
    embed_shards(tmp_path / "v", [tmp_path / "in"], encoder)
    assert collect(open_shards(tmp_path / "v"), store, "c") == (1, 1)
    assert "UTF-8" in caplog.text
    assert [item.metadata["path"] for item in items(store.get("c")).values()] == ["a.jpg"]


def test_a_second_import_writes_only_missing_items(shards, store, photos, model):
    collect(shards, store, "photos")
    report = Workbench(Encoders(str(model), device="cpu"), store).index_folder("photos", photos)
    assert (report.added, report.updated, report.unchanged) == (0, 0, 60)
    some = list(items(store.get("photos")))[10:17]
    store.get("photos").delete(some)
    assert collect(shards, store, "photos") == (60, 7)
    assert store.get("photos").count() == 60
    store.get("photos").upsert([Item("another", np.ones(shards.plan.embed_dim, np.float32))])
    assert collect(shards, store, "photos", into=True) == (60, 0)
    with pytest.raises(CollectionExists):
        collect(shards, store, "photos")


def test_equal_paths_in_two_archives_are_different_items(encoder, photos, store, tmp_path):
    for name in ("a.tar", "b.tar"):
        with tarfile.open(tmp_path / name, "w") as tar:
            tar.add(photos / "cat", "cat")
    embed_shards(tmp_path / "w", [tmp_path / "a.tar", tmp_path / "b.tar"], encoder)
    assert collect(open_shards(tmp_path / "w"), store, "both") == (40, 40)
    found = store.get("both").scroll(limit=100).items
    assert {item.metadata["label"] for item in found} == {"cat"}
    assert {item.metadata["root"] for item in found} == {str(tmp_path / "a.tar"), str(tmp_path / "b.tar")}


@pytest.mark.filterwarnings("ignore:Duplicate name")  # of zipfile
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_the_last_of_the_same_paths_in_an_archive_counts(encoder, photos, model, store, tmp_path, kind):
    images = [(photos / "cat" / f"{n:02}.jpg", "a.jpg" if n % 3 else f"{n}.jpg") for n in range(6)]
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
            for path, name in images:
                file.write(path, name)
    else:
        with tarfile.open(tmp_path / "a.tar", "w") as file:
            for path, name in images:
                file.add(path, name)
    embed_shards(tmp_path / "w", [tmp_path / f"a.{kind}"], encoder, shard_size=2)
    assert collect(open_shards(tmp_path / "w"), store, "unpacked") == (3, 3)
    assert collect(open_shards(tmp_path / "w"), store, "unpacked") == (3, 0)
    found = {item.metadata["path"]: item for item in store.get("unpacked").scroll().items}
    for path, name in images[:1] + images[3:4] + images[5:]:
        np.testing.assert_allclose(found[name].vector, encoder.embed([path])[0], atol=1e-5)
    report = Workbench(Encoders(str(model), device="cpu"), store).index_folder("unpacked", tmp_path / f"a.{kind}")
    assert report.unchanged == 3


def test_two_images_with_the_same_path_are_refused_before_the_first_write(encoder, photos, store, tmp_path):
    for year in ("2023", "2024"):
        shutil.copytree(photos / "cat", tmp_path / year)
    embed_shards(tmp_path / "w", [tmp_path / "2023", tmp_path / "2024"], encoder)
    with pytest.raises(InvalidRequest):
        collect(open_shards(tmp_path / "w"), store, "years")
    assert list(store.list()) == []


def test_imports_of_another_encoder_or_folder_or_with_a_missing_shard_are_refused(
    shards, store, encoder, make_model, photos, tmp_path
):
    other = load_encoder(make_model(seed=2), device="cpu")
    embed_shards(tmp_path / "o", [photos], other)
    collect(shards, store, "photos")
    with pytest.raises(FingerprintMismatch):
        collect(open_shards(tmp_path / "o"), store, "photos")
    shutil.copytree(photos, tmp_path / "copy")
    embed_shards(tmp_path / "c", [tmp_path / "copy"], encoder)
    with pytest.raises(CollectionExists):
        collect(open_shards(tmp_path / "c"), store, "photos", into=True)
    next(iter(shards)).file.unlink()
    with pytest.raises(InvalidRequest):
        collect(open_shards(shards.folder), store, "part")
    assert [info.name for info in store.list()] == ["photos"]
