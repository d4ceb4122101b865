"""The image of an item: its file while it is the same, or the original of an upload, kept until its last item goes."""

import io
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nnclr_hub.errors import CollectionNotFound, DiskFull, InvalidRequest, ItemNotFound, StoreCorrupt
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.where import MAX_IN
from nnclr_hub.workbench import Encoders, NewImage, Workbench
from nnclr_hub.workbench.reembedding import reembed
from nnclr_hub.workbench.source_folders import SourceFolders
from nnclr_hub.workbench.sources import read_original, read_source


def photo(seed: int, format: str = "PNG") -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (300, 320, 3), np.uint8)
    Image.fromarray(pixels).save(file, format, **({"lossless": True} if format == "WEBP" else {}))
    return file.getvalue()


@pytest.fixture
def bench(model, tmp_path):
    with open_store(str(tmp_path / "store")) as store:
        made = Workbench(Encoders(str(model), device="cpu"), store, originals_bytes=2_000_000)
        for name in ("one", "two"):
            store.create(name, CollectionSpec.of(made.models.get()))
        yield made


@pytest.fixture
def indexed(bench, image_files, tmp_path):
    """A collection of two images of a folder, and the folder."""
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(image_files[0], folder / "a.jpg")
    Image.open(image_files[1]).save(folder / "b.tiff")
    bench.index_folder("photos", folder)
    return bench.collection("photos"), folder


def item_of(collection, name):
    return next(item for item in collection.scroll().items if item.metadata["path"] == name)


def test_the_file_is_returned_or_converted_to_png_for_browsers(indexed):
    collection, folder = indexed
    original = read_original(collection, item_of(collection, "a.jpg").id, [folder])
    assert (original.of, original.media_type, original.reason) == ("source", "image/jpeg", "")
    assert original.data == (folder / "a.jpg").read_bytes()
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


def test_source_folders_have_names_and_may_be_missing(tmp_path):
    """Each message names its folder, also one without a name, and the second of two with the same."""
    for parent in ("a", "b"):
        (tmp_path / parent / "photos").mkdir(parents=True)
    (tmp_path / "file").touch()
    given = [Path("/"), tmp_path / "a" / "photos", tmp_path / "b" / "photos", tmp_path / "nowhere", tmp_path / "file"]
    folders = SourceFolders(given)
    assert folders.names == ["/", "photos", "photos (2)", "nowhere", "file"]
    assert folders.missing == [tmp_path / "nowhere", tmp_path / "file"]
    for name in folders.names:
        with pytest.raises(InvalidRequest) as refused:
            folders.find(name, "nothing")
        assert repr(name) in str(refused.value)
    with pytest.raises(InvalidRequest):
        SourceFolders([tmp_path]).again("/", ".")


# ---- originals


def files(bench) -> int:
    return sum(path.is_file() for path in (bench.store.folder / "originals").rglob("*"))


def test_an_original_is_kept_once_and_deleted_with_its_last_item(bench):
    data = photo(0)
    for name, id in (("one", "a"), ("one", "b"), ("two", "c")):
        assert bench.add_images(name, [NewImage(id, data, {})]) == [None]
    assert (files(bench), bench.originals.used) == (1, len(data))
    found = read_original(bench.collection("one"), "b", [], bench.originals)
    assert (found.data, found.of) == (data, "source")
    bench.delete("one", ["a"])
    bench.delete("two", where={"must": [{"key": "pixel_sha256", "exists": True}]})
    assert files(bench) == 1
    bench.delete("one", ["b"])
    assert (files(bench), bench.originals.used) == (0, 0)


def test_a_replaced_item_and_a_dropped_collection_leave_no_files(bench):
    bench.add_images("one", [NewImage("a", photo(0), {}), NewImage("b", photo(1), {})])
    bench.add_images("one", [NewImage("a", photo(2), {})])
    assert files(bench) == 2
    bench.drop("one")
    assert files(bench) == 0


def test_the_quota_refuses_an_image_whole(bench):
    many = [NewImage(str(seed), photo(seed), {}) for seed in range(8)]  # 300 kB each
    with pytest.raises(DiskFull):
        bench.add_images("one", many)
    assert bench.collection("one").count() == 0
    assert files(bench) == 0


def test_files_without_an_item_are_swept(bench):
    data = photo(0)
    bench.add_images("one", [NewImage("a", data, {})])
    with bench.originals.changing:
        bench.originals.put("0" * 64, data)
    bench.originals.sweep()
    assert files(bench) == 1
    assert bench.originals.used == len(data)


def keep_many(bench, count: int) -> list[str]:
    """Store items in "one", each with a kept file; return the hashes."""
    hashes = [f"{n:064x}" for n in range(count)]
    vector = np.ones(bench.collection("one").spec.dim, np.float32)
    with bench.originals.changing:
        for one in hashes:
            bench.originals.put(one, b"file")
        bench.upsert("one", [Item(one[-8:], vector, {"file_sha256": one}) for one in hashes])
    return hashes


@pytest.mark.parametrize("way", ["delete", "sweep"])
def test_more_originals_than_a_filter_takes_are_removed(bench, way):
    hashes = keep_many(bench, MAX_IN + 1)
    if way == "delete":
        assert bench.delete("one", [one[-8:] for one in hashes]) == len(hashes)
    else:
        bench.store.drop("one")
        bench.originals.sweep()
    assert (files(bench), bench.originals.used) == (0, 0)


@pytest.mark.parametrize("error", [StoreCorrupt, CollectionNotFound])
def test_originals_are_kept_while_a_collection_cannot_be_read(bench, monkeypatch, caplog, error):
    """A deletion that is committed succeeds, and the next sweep removes its files."""
    bench.add_images("one", [NewImage("a", photo(0), {})])
    get = bench.store.get

    def failing(name: str):
        if name == "two":
            raise error("unreadable")
        return get(name)

    monkeypatch.setattr(bench.store, "get", failing)
    assert bench.delete("one", ["a"]) == 1
    bench.drop("one")
    assert (files(bench), "unreadable" in caplog.text) == (1, True)
    monkeypatch.undo()
    bench.originals.sweep()
    assert files(bench) == 0


def test_a_change_of_metadata_keeps_the_link_to_the_original(bench):
    data = photo(0)
    bench.add_images("one", [NewImage("a", data, {"label": "cat"})])
    bench.update_metadata("one", {"label": "dog"}, ids=["a"], replace=True)
    bench.update_metadata("one", {"file_sha256": None}, where={"must": [{"key": "label", "match": "dog"}]})
    bench.update_each("one", {"a": {"file_sha256": "0" * 64, "n": 1}})
    bench.originals.sweep()
    assert read_original(bench.collection("one"), "a", [], bench.originals).data == data
    [item] = bench.collection("one").get(["a"])
    assert item.metadata.keys() - {"pixel_sha256", "file_sha256"} == {"label", "n"}


def test_replaced_vectors_and_pruned_files_leave_no_originals(bench, tmp_path):
    bench.add_images("one", [NewImage("a", photo(0), {}), NewImage("b", photo(1), {})])
    [item] = bench.collection("one").get(["a"])
    bench.upsert("one", [Item("a", item.vector, {})])
    assert files(bench) == 1
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, seed in (("b.png", 1), ("c.png", 2)):
        (folder / name).write_bytes(photo(seed))
    bench.index_folder("two", folder)
    bench.delete("one", ["b"])
    assert files(bench) == 0  # b.png has the same pixels, and is read from its folder


def with_exif(pixels: Image.Image, owner: str) -> bytes:
    exif = Image.Exif()
    exif[0x013B] = owner
    pixels.save(file := io.BytesIO(), "PNG", exif=exif)
    return file.getvalue()


def animation(second: str) -> bytes:
    frames = [Image.new("RGB", (32, 32), color) for color in ("red", second)]
    frames[0].save(file := io.BytesIO(), "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        [with_exif(Image.new("RGB", (32, 32), "red"), owner) for owner in ("first", "second")],
        [animation(second) for second in ("blue", "green")],
        [photo(0, "PNG"), photo(0, "WEBP")],
    ],
    ids=["exif", "frames", "formats"],
)
def test_each_item_has_its_own_file_though_the_pixels_are_equal(bench, data):
    """Also across collections, and after the item of the first owner was deleted, replaced or embedded again."""
    for name, id, content in (
        ("one", "a", data[0]),
        ("one", "b", data[1]),
        ("two", "c", data[1]),
        ("two", "d", data[0]),
    ):
        assert bench.add_images(name, [NewImage(id, content, {"file_sha256": "f" * 64})]) == [None]
    assert files(bench) == 2

    def original(name: str, id: str) -> bytes:
        return bench.originals.read(bench.collection(name).get([id])[0].metadata["file_sha256"])

    assert [original("one", "a"), original("one", "b"), original("two", "c")] == [data[0], data[1], data[1]]
    bench.delete("one", ["a"])
    bench.add_images("two", [NewImage("d", data[1], {})])
    assert files(bench) == 1
    assert original("one", "b") == original("two", "d") == data[1]


def test_the_used_bytes_do_not_wait_for_an_upload(bench):
    bench.add_images("one", [NewImage("a", photo(0), {})])
    with bench.originals.changing, ThreadPoolExecutor(1) as thread:
        assert thread.submit(lambda: bench.originals.used).result(timeout=120) == len(photo(0))


def test_uploads_are_reembedded_from_their_originals(bench, make_model):
    bench.add_images("one", [NewImage(str(seed), photo(seed, "WEBP"), {"n": seed}) for seed in range(3)])
    other = str(make_model(seed=1))
    done = reembed(bench, "one", other, folders=[])
    assert (done.items, done.skipped) == (3, ())
    expected = bench.models.get(other).embed([photo(0, "WEBP")])[0]
    [item] = bench.collection("one").get(["0"])
    assert item.metadata["n"] == 0
    np.testing.assert_allclose(item.vector, expected, atol=1e-5)


def test_without_a_quota_nothing_is_kept_and_what_was_kept_is_still_read(bench):
    data = photo(0)
    bench.add_images("one", [NewImage("a", data, {})])
    later = Workbench(bench.models, bench.store)
    later.add_images("one", [NewImage("b", photo(1), {})])
    assert files(bench) == 1
    assert read_original(later.collection("one"), "a", [], later.originals).data == data
    assert read_original(later.collection("one"), "b", [], later.originals).of == "thumbnail"
    with pytest.raises(ItemNotFound):
        read_original(later.collection("one"), "c", None)
