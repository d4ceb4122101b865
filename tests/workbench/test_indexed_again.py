"""What a user has written into the metadata of an item stays when the same image is indexed or imported again."""

import os
import shutil
import tarfile
import zipfile

import pytest

from nnclr_hub.workbench import NewImage
from nnclr_hub.workbench.file_import import ImportRequest

NOTES = {"label": "MINE", "note": "keep", "inspection": {"reviewed": "x"}}


@pytest.fixture
def folder(tmp_path, image_files):
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    for number in range(3):
        shutil.copy(image_files[number], tmp_path / "photos" / "cat" / f"{number}.jpg")
    return tmp_path / "photos"


def by(bench, key: str) -> dict:
    return {item.metadata[key]: dict(item.metadata) for item in bench.collection("c").scroll().items}


def test_a_folder_whose_files_have_new_times_is_indexed_again(bench, folder, image_files):
    bench.index_folder("c", folder)
    before = by(bench, "path")
    bench.update_metadata("c", NOTES, where={"must": [{"key": "path", "in": ["cat/0.jpg", "cat/1.jpg"]}]})
    shutil.copy(image_files[10], folder / "cat" / "1.jpg")
    for path in folder.rglob("*.jpg"):
        os.utime(path, (1, 1))
    assert bench.index_folder("c", folder).updated == 3
    after = by(bench, "path")
    assert {one["mtime"] for one in after.values()} != {one["mtime"] for one in before.values()}
    state = {path: {key: one[key] for key in ("size", "mtime")} for path, one in after.items()}
    assert after["cat/0.jpg"] == before["cat/0.jpg"] | state["cat/0.jpg"] | NOTES
    assert after["cat/2.jpg"] == before["cat/2.jpg"] | state["cat/2.jpg"]
    changed = after["cat/1.jpg"]  # another image
    assert (changed["label"], changed.keys() & {"note", "inspection"}) == ("cat", set())
    assert changed["pixel_sha256"] != before["cat/1.jpg"]["pixel_sha256"]
    assert bench.index_folder("c", folder).unchanged == 3


def test_a_label_of_a_sample_is_new_unless_the_user_has_set_another(bench, folder, tmp_path):
    def pack(label: str) -> None:
        with tarfile.open(tmp_path / "c.tar", "w") as tar:
            for number in range(2):
                tar.add(folder / "cat" / f"{number}.jpg", f"{number}.jpg")
                (tmp_path / "cls").write_text(label)
                tar.add(tmp_path / "cls", f"{number}.cls")

    pack("3")
    bench.index_folder("c", tmp_path / "c.tar")
    assert {one["label"] for one in by(bench, "path").values()} == {"3"}
    bench.update_metadata("c", {"label": "MINE"}, where={"must": [{"key": "path", "in": ["0.jpg"]}]})
    for path in folder.rglob("*.jpg"):
        os.utime(path, (1, 1))
    pack("44")
    bench.index_folder("c", tmp_path / "c.tar")
    assert {path: one["label"] for path, one in by(bench, "path").items()} == {"0.jpg": "MINE", "1.jpg": "44"}


def test_an_archive_is_imported_again(bench, folder, tmp_path, image_files):
    def imported(names: dict[str, str]) -> tuple[int, int, int]:
        with zipfile.ZipFile(tmp_path / "c.zip", "w") as packed:
            for name, source in names.items():
                packed.write(folder / "cat" / source, name)
        report = bench.run("import", ImportRequest("c", str(tmp_path / "c.zip")))
        return report["added"], report["replaced"], report["unchanged"]

    bench.create_collection("c")
    same = {"cat/0.jpg": "0.jpg", "cat/1.jpg": "1.jpg", "dog/2.jpg": "2.jpg"}
    assert imported(same) == (3, 0, 0)
    before = by(bench, "name")
    [first] = [item for item in bench.collection("c").scroll().items if item.metadata["name"] == "0.jpg"]
    bench.update_metadata("c", NOTES, ids=[first.id])
    written = bench.collection("c").info().durable_seq
    assert imported(same) == (0, 0, 3)
    assert bench.collection("c").info().durable_seq == written
    assert by(bench, "name") == before | {"0.jpg": before["0.jpg"] | NOTES}
    assert imported({"dog/new.jpg": "0.jpg", "cat/1.jpg": "1.jpg"}) == (0, 1, 1)
    assert by(bench, "name")["new.jpg"] == before["0.jpg"] | NOTES | {"name": "new.jpg"}
    # another image under this id is replaced by that of the archive
    bench.add_images("c", [NewImage(first.id, image_files[10], {"name": "0.jpg", "note": "other"})])
    assert imported(same) == (0, 1, 2)
    assert by(bench, "name")["0.jpg"] == before["0.jpg"]
    # adding images replaces the metadata, as always
    bench.add_images("c", [NewImage(first.id, folder / "cat" / "0.jpg", {"name": "0.jpg"})])
    assert by(bench, "name")["0.jpg"].keys() == {"name", "pixel_sha256"}
