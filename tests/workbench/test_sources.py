"""The image that an item was made of, while it is the same."""

import io
import shutil

import numpy as np
import pytest
from PIL import Image

from nnclr_hub.errors import ItemNotFound
from nnclr_hub.store import open_store
from nnclr_hub.store.base import Item
from nnclr_hub.workbench import Encoders, NewImage, Workbench
from nnclr_hub.workbench.sources import read_original, read_source


@pytest.fixture
def indexed(model, image_files, tmp_path):
    """A collection of two images of a folder, and the folder."""
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(image_files[0], folder / "a.jpg")
    Image.open(image_files[1]).save(folder / "b.tiff")
    with open_store(str(tmp_path / "store")) as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        bench.index_folder("photos", folder)
        yield bench.collection("photos"), folder


def item_of(collection, name):
    return next(item for item in collection.scroll().items if item.metadata["path"] == name)


def test_the_file_is_returned_while_its_pixels_are_unchanged(indexed):
    collection, folder = indexed
    original = read_original(collection, item_of(collection, "a.jpg").id, [folder])
    assert (original.of, original.media_type, original.reason) == ("source", "image/jpeg", "")
    assert original.data == (folder / "a.jpg").read_bytes()


def test_a_format_without_browser_support_is_converted_to_png(indexed):
    collection, folder = indexed
    original = read_original(collection, item_of(collection, "b.tiff").id, None)
    assert original.media_type == "image/png"
    with Image.open(io.BytesIO(original.data)) as shown, Image.open(folder / "b.tiff") as there:
        assert np.array_equal(np.asarray(shown), np.asarray(there))


def test_a_missing_file_gives_the_thumbnail_and_the_reason(indexed, image_files, tmp_path):
    collection, folder = indexed
    item = item_of(collection, "a.jpg")
    thumbnail = collection.thumbnail(item.id)
    elsewhere = read_original(collection, item.id, [tmp_path / "other"])
    assert (elsewhere.of, elsewhere.data) == ("thumbnail", thumbnail)
    assert "NNCLR_SOURCE_FOLDERS" in elsewhere.reason
    shutil.copy(image_files[30], folder / "a.jpg")
    assert read_original(collection, item.id, [folder]).reason == "its file has changed"
    (folder / "a.jpg").write_bytes(b"nonsense")
    assert read_original(collection, item.id, [folder]).of == "thumbnail"
    (folder / "a.jpg").unlink()
    assert read_original(collection, item.id, [folder]).reason == "its file is missing"


def test_metadata_cannot_name_a_file_to_read(indexed, tmp_path, image_files):
    """What a client says of an item is held against the folders, symbolic links and .. included, and the pixels."""
    collection, folder = indexed
    secret = tmp_path / "secret.jpg"
    shutil.copy(image_files[40], secret)
    (folder / "link.jpg").symlink_to(secret)
    vector = collection.get([item_of(collection, "a.jpg").id])[0].vector
    for root, path in ((str(tmp_path), "secret.jpg"), (str(folder), "../secret.jpg"), (str(folder), "link.jpg")):
        collection.upsert([Item("evil", vector, {"root": root, "path": path, "size": 1, "mtime": 1})])
        with pytest.raises(ItemNotFound):
            read_original(collection, "evil", [folder])
    collection.upsert([Item("evil", vector, {"root": str(folder), "path": "a.jpg", "pixel_sha256": "0" * 64})])
    assert read_source({"root": str(folder), "path": "a.jpg", "pixel_sha256": "0" * 64}, [folder]) == (
        "its file has changed"
    )


def test_an_upload_has_only_its_thumbnail(model, image_files, tmp_path):
    with open_store(str(tmp_path / "store")) as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        bench.ensure_collection("photos")
        bench.add_images("photos", [NewImage("a", image_files[0])])
        collection = bench.collection("photos")
        assert read_original(collection, "a", None).of == "thumbnail"
        with pytest.raises(ItemNotFound):
            read_original(collection, "b", None)
