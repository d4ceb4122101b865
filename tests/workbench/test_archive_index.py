"""Archives and addresses are indexed, inspected, evaluated and labeled like the folder that was packed."""

import io
import json
import shutil
import tarfile
import zipfile
from pathlib import PurePath

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nnclr_hub.bulk import embed_shards, open_shards
from nnclr_hub.bulk.collection_import import collect
from nnclr_hub.encoder.hand_crafted import FLOORS
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import InvalidRequest, NNCLRHubError, NoImages
from nnclr_hub.images.labels import read_labeled
from nnclr_hub.images.listing import find_images, is_packed
from nnclr_hub.remote_files import RemoteBytes
from nnclr_hub.table_rows import LabelTable
from nnclr_hub.workbench import FolderRequest
from nnclr_hub.workbench.inspection.findings import inspect_subject
from nnclr_hub.workbench.inspection.subject import folder_subject, inspected_files
from nnclr_hub.workbench.reembedding import reembed
from nnclr_hub.workbench.sources import read_original
from training.evals.task import read_task

KINDS = ("tar", "stored.zip", "deflated.zip", "address")


def pack(archive, folder, leave_out=()):
    paths = [path for path in sorted(folder.rglob("*.*")) if path.name not in leave_out]
    if archive.suffix == ".tar":
        with tarfile.open(archive, "w") as tar:
            for path in paths:
                tar.add(path, path.relative_to(folder))
        return
    method = zipfile.ZIP_STORED if "stored" in archive.name else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(archive, "w", method) as zip:
        for path in paths:
            zip.write(path, path.relative_to(folder))


@pytest.fixture
def folder(image_files, tmp_path):
    """Four images of two classes, and a file that is not an image."""
    for number, name in enumerate(("cat/a.jpg", "cat/b.jpg", "dog/a.jpg", "dog/ü 2.jpg")):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(image_files[number * 9], path)
    (tmp_path / "photos" / "film.mp4").write_bytes(b"no image")
    return tmp_path / "photos"


def place_of(kind, folder, tmp_path, leave_out=()):
    path = tmp_path / ("photos.tar" if kind == "address" else f"photos.{kind}")
    pack(path, folder, leave_out)
    return f"file://{path}" if kind == "address" else str(path)


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_is_indexed_like_its_folder(kind, bench, folder, tmp_path):
    place = place_of(kind, folder, tmp_path)
    bench.index_folder("folder", folder)
    report = bench.index_folder("packed", place)
    assert (report.added, report.broken) == (4, ())
    expected = {item.metadata["path"]: item for item in bench.collection("folder").scroll().items}
    found = {item.metadata["path"]: item for item in bench.collection("packed").scroll().items}
    assert found.keys() == expected.keys()
    for path, item in found.items():
        np.testing.assert_array_equal(item.vector, expected[path].vector)
        same = ("label", "size", "pixel_sha256")
        assert [item.metadata[key] for key in same] == [expected[path].metadata[key] for key in same]
        assert item.metadata["root"] == place
        original = read_original(bench.collection("packed"), item.id, [tmp_path])
        if kind != "address":
            assert (original.of, original.data) == ("source", (folder / path).read_bytes())
            assert read_original(bench.collection("packed"), item.id, [folder]).of == "thumbnail"
    assert bench.index_folder("packed", place).unchanged == 4
    place_of(kind, folder, tmp_path, leave_out=["b.jpg"])
    report = bench.index_folder("packed", FolderRequest(place, prune=True))
    assert (report.unchanged, report.removed) == (3, 1)
    for item in bench.collection("packed").scroll().items:  # most are now elsewhere in the archive
        original = read_original(bench.collection("packed"), item.id, [tmp_path])
        assert original.of == ("thumbnail" if kind == "address" else "source")


@pytest.mark.parametrize("remote", [False, True])
def test_the_labels_of_a_table_become_those_of_its_items(remote, bench, folder, tmp_path):
    paths = sorted(folder.rglob("*.jpg"))
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    table = pa.table(
        {
            "image": [{"bytes": path.read_bytes(), "path": path.name} for path in paths],
            "label": [["cat", "dog"].index(path.parent.name) for path in paths[:-1]] + [-1],  # as Hugging Face does
        }
    )
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}),
                   tmp_path / "t.parquet", row_group_size=2)  # fmt: skip
    place = f"file://{tmp_path}/t.parquet" if remote else str(tmp_path / "t.parquet")
    expected = [path.parent.name for path in paths[:-1]] + [None]
    assert bench.index_folder("table", place).added == len(paths)
    items = {item.metadata["path"]: item for item in bench.collection("table").scroll().items}
    assert [items[path].metadata.get("label") for path in sorted(items)] == expected
    assert inspected_files(place, labels=None).labels == [None] * 4  # too few per class
    assert [(one or [None])[0] for one in read_labeled(place).labels] == expected

    embed_shards(tmp_path / "vectors", [place], bench.models.get(None))
    collect(open_shards(tmp_path / "vectors"), bench.store, "shards")
    stored = bench.collection("shards").get(sorted(item.id for item in items.values()))
    assert {one.metadata["path"]: one.metadata.get("label") for one in stored} == dict(
        zip(sorted(items), expected, strict=True)
    )


@pytest.mark.parametrize("damage", ["head", "cut", "middle"])
def test_a_damaged_table_is_an_invalid_request(damage, bench, folder, tmp_path):
    paths = sorted(folder.rglob("*.jpg"))
    pq.write_table(pa.table({"image": [path.read_bytes() for path in paths]}), tmp_path / "t.parquet")
    data = bytearray((tmp_path / "t.parquet").read_bytes())
    if damage == "head":
        data[:] = b"not a table"
    elif damage == "cut":
        del data[-100:]
    else:
        data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
    (tmp_path / "t.parquet").write_bytes(data)
    with pytest.raises(InvalidRequest):
        bench.index_folder("table", tmp_path / "t.parquet")


@pytest.mark.parametrize("error", [pa.ArrowMemoryError, pa.ArrowCancelled, pa.ArrowInvalid])
def test_a_table_that_pyarrow_refuses_is_an_error_of_the_library(error, folder, tmp_path, monkeypatch):
    paths = sorted(folder.rglob("*.jpg"))
    pq.write_table(pa.table({"image": [path.read_bytes() for path in paths]}), tmp_path / "t.parquet")

    def fail(*_, **__):
        raise error("refused")

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", fail)
    image = find_images([tmp_path / "t.parquet"])[0]
    with pytest.raises(NNCLRHubError) as refused:
        image.read()
    assert ("not a valid" in str(refused.value)) == (error is pa.ArrowInvalid)


def test_a_collection_of_an_archive_is_embedded_again_from_it(bench, folder, tmp_path, make_model):
    other_model = make_model(seed=5)
    bench.index_folder("packed", place_of("deflated.zip", folder, tmp_path))
    reembed(bench, "packed", str(other_model))
    expected = load_encoder(other_model, device="cpu").embed([folder / "cat/a.jpg"])[0]
    items = {item.metadata["path"]: item.vector for item in bench.collection("packed").scroll().items}
    np.testing.assert_allclose(items["cat/a.jpg"], expected, atol=1e-5)


def test_several_archives_are_one_source(bench, folder, tmp_path):
    for name in ("d-0.tar", "d-1.zip"):
        pack(tmp_path / name, folder)
    assert bench.index_folder("two", str(tmp_path / "d-{0.tar,1.zip}")).added == 8
    (tmp_path / "shards" / "deep").mkdir(parents=True)
    for name in ("e-0.tar", "deep/e-0.tar"):
        pack(tmp_path / "shards" / name, folder)
    with pytest.raises(InvalidRequest):  # an item would replace another
        bench.index_folder("shards", tmp_path / "shards")
    (tmp_path / "shards" / "e-0.tar").rename(tmp_path / "shards" / "e-1.tar")
    assert bench.index_folder("shards", tmp_path / "shards").added == 8
    (tmp_path / "shards" / "deep" / "e-0.tar").unlink()  # its folder is empty, so its disk may not be mounted
    report = bench.index_folder("shards", FolderRequest(tmp_path / "shards", prune=True))
    assert (report.unchanged, report.removed, report.kept) == (4, 0, 4)
    (tmp_path / "shards" / "deep").rmdir()
    assert bench.index_folder("shards", tmp_path / "shards").removed == 0
    report = bench.index_folder("shards", FolderRequest(tmp_path / "shards", prune=True))
    assert (report.unchanged, report.removed, report.kept) == (4, 4, 0)
    (tmp_path / "elsewhere").mkdir()
    pack(tmp_path / "elsewhere" / "d-0.tar", folder)
    with pytest.raises(InvalidRequest):
        bench.index_folder("two", tmp_path / "elsewhere" / "d-0.tar")


def test_texts_are_read_with_their_image_and_a_deleted_image_is_reported(bench, folder, tmp_path, monkeypatch):
    with tarfile.open(tmp_path / "texts.tar", "w") as tar:
        for number, path in enumerate((folder / "cat/a.jpg", folder / "dog/a.jpg")):
            for suffix, data in (("jpg", path.read_bytes()), ("cls", b"%d" % number), ("txt", b"a photo")):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    requests, before, read = [], [], RemoteBytes.read
    monkeypatch.setattr(RemoteBytes, "read", lambda part: requests.append(part) or read(part))
    address = f"file://{tmp_path}/texts.tar"
    assert bench.index_folder("texts", address, begin=lambda _: before.extend(requests)).added == 2
    assert (len(before), len(requests), len(set(requests))) == (0, 6, 6)
    items = {item.metadata["path"]: item.metadata for item in bench.collection("texts").scroll().items}
    assert [(one["label"], one["cls"], one["txt"]) for _, one in sorted(items.items())] == [
        ("0", 0, "a photo"),
        ("1", 1, "a photo"),
    ]

    report = bench.index_folder("there", f"file://{folder}", begin=lambda _: (folder / "cat/a.jpg").unlink())
    assert (report.added, [path for path, _ in report.broken]) == (3, [f"file://{folder}/cat/a.jpg"])


def test_archives_are_inspected_labeled_and_evaluated_like_folders(folder, model, tmp_path):
    place = place_of("deflated.zip", folder, tmp_path)
    encoder = load_encoder(model, device="cpu")
    packed, plain = (folder_subject(one, encoder) for one in (place, folder))
    assert packed.items == plain.items
    np.testing.assert_allclose(packed.vectors, plain.vectors, atol=1e-6)
    (tmp_path / "labels.csv").write_text("path,label\ncat/a.jpg,x\ndog/a.jpg,y\n")
    assert folder_subject(place, encoder, labels=tmp_path / "labels.csv").labels == ("x", None, "y", None)
    assert read_labeled(place).labels == read_labeled(folder).labels == (("cat",), ("cat",), ("dog",), ("dog",))
    assert read_labeled(place, tmp_path / "labels.csv").labels == (("x",), ("y",))
    for part in ("train", "test"):
        shutil.copytree(folder, tmp_path / "set" / part)
    task = read_task(place_of("tar", tmp_path / "set", tmp_path))
    assert (task.classes, task.counts()) == (("cat", "dog"), {"train": 4, "test": 4})
    assert task.digest() != read_task(tmp_path / "set").digest()
    with pytest.raises(InvalidRequest):
        read_task(place)


@pytest.fixture
def same_names(folder, image_files, tmp_path):
    """Archives of the same name with the same paths: train/0.tar, and test/0.tar, whose 1.jpg is that of the other."""
    for part, numbers in (("train", (0, 1)), ("test", (20, 1))):
        (tmp_path / "shards" / part).mkdir(parents=True)
        with tarfile.open(tmp_path / "shards" / part / "0.tar", "w") as tar:
            for name, number in enumerate(numbers):
                tar.add(image_files[number], f"{name}.jpg")
    return tmp_path / "shards"


def test_archives_of_the_same_name_stay_apart_in_an_inspection(same_names):
    (same_names / "labels.csv").write_text("path,label\ntrain/0.tar/0.jpg,a\ntest/0.tar/0.jpg,b\n")
    for given in (same_names, f"{same_names}/{{train,test}}/0.tar", f"file://{same_names}"):
        subject = folder_subject(given, FLOORS["color"], labels=same_names / "labels.csv")
        labels = dict(zip(subject.items, subject.labels, strict=True))
        assert labels == {
            "test/0.tar/0.jpg": "b",
            "test/0.tar/1.jpg": None,
            "train/0.tar/0.jpg": "a",
            "train/0.tar/1.jpg": None,
        }
        [leak] = inspect_subject(subject, 1).findings["leaks"]
        assert sorted(leak["items"]) == ["test/0.tar/1.jpg", "train/0.tar/1.jpg"]


def test_a_row_of_a_table_names_one_image_of_several_archives(same_names, tmp_path):
    table, pattern = tmp_path / "table.csv", f"{same_names}/{{train,test}}/0.tar"
    table.write_text("path,label\ntest/0.tar/0.jpg,b\ntrain/0.tar/0.jpg,a\n")
    for given in (pattern, same_names):
        images = read_labeled(given, table)
        assert [one.read() for one in images.paths] == [
            one.read() for name in ("test", "train") for one in find_images([same_names / name / "0.tar"])[:1]
        ]
        assert images.labels == (("b",), ("a",))
        assert read_labeled(given, LabelTable(table, same_names)).labels == images.labels
        with pytest.raises(InvalidRequest):
            read_labeled(given, LabelTable(table, tmp_path))
    shutil.copy(table, same_names / "labels.csv")
    assert read_labeled(same_names).labels == images.labels
    for row in ("0.jpg", "0.tar/0.jpg"):
        table.write_text(f"path,label\n{row},a\n")
        for read in (read_labeled, inspected_files):
            with pytest.raises(InvalidRequest):
                read(pattern, table)


def test_hidden_and_empty_archives_are_left_out_and_other_files_counted(bench, folder, tmp_path, caplog):
    shards = tmp_path / "shards"
    (shards / ".cache").mkdir(parents=True)
    for name in ("a.tar", "b.deflated.zip", ".cache/p.zip", ".hidden.tar"):
        pack(shards / name, folder)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "x.mp4").write_bytes(b"no image")
    pack(shards / "0.tar", tmp_path / "texts")
    (shards / "a.parquet").write_bytes(b"the captions of a.tar")
    for number, given in enumerate((shards, f"file://{shards}")):
        images = find_images([given])
        assert {PurePath(one.place.given).name for one in images} == {"a.tar", "b.deflated.zip"}
        assert len(images) == 8
        assert "0.tar" in caplog.text
        caplog.clear()
        assert inspected_files(given).left_out == {".mp4": 3}
        assert bench.index_folder(f"shards{number}", given).left_out == {".mp4": 3}
        assert "no image" not in caplog.text, "the same warning appears once"
    with pytest.raises(NoImages):
        find_images([shards / "0.tar"])
    shutil.copy(folder / "cat/a.jpg", shards / "cover.jpg")
    assert len(find_images([shards])) == 1
    assert "zip: 3" in caplog.text


def test_names_of_files_are_not_taken_for_patterns_or_archives(folder, tmp_path):
    table = tmp_path / "labels[1].csv"
    table.write_text("path,label\nphotos/cat/a.jpg,x\n")
    assert read_labeled(table).labels == (("x",),)
    for given in (table, folder, tmp_path / "collection.zip"):
        assert not is_packed(given)
    for given in (place_of("tar", folder, tmp_path), "memory://x", f"{tmp_path}/*.tar", "d-{0..1}.tar"):
        assert is_packed(given)
