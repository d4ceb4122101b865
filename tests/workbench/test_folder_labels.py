"""Folders, zips and tars: the labels of their images are the same for every verb, and what has become of the images."""

import io
import logging
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.images.labels import read_labeled
from nnclr_hub.images.listing import find_images
from nnclr_hub.workbench.folder_changes import find_changes, list_images_of
from nnclr_hub.workbench.inspection.subject import inspected_files
from training.data.image_index import training_files
from training.evals.task import read_task

KINDS = ("folder", "zip", "tar")


def image(number: int = 0) -> bytes:
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 255, (8, 8, 3), np.uint8)).save(data, "PNG")
    return data.getvalue()


def place_of(kind: str, files: dict[str, bytes], folder: Path) -> Path:
    """Write files as a folder, a zip or a tar, in their order."""
    if kind == "folder":
        for name, data in files.items():
            path = folder / "set" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder / "set"
    if kind == "zip":
        with zipfile.ZipFile(folder / "set.zip", "w") as zip:
            for name, data in files.items():
                zip.writestr(name, data)
        return folder / "set.zip"
    with tarfile.open(folder / "set.tar", "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return folder / "set.tar"


def indexed_labels(place: Path) -> dict[str, str | None]:
    listing = list_images_of(place)
    items = (listing.item(id, one).described() for id, one in listing.images.items())
    return {item.metadata["path"]: item.metadata.get("label") for item in items}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("layout", "labels", "learned"),
    [
        # classes with the names of splits
        ("bus car train", {"bus": "bus", "car": "car", "train": "train"}, "bus car train"),
        ("control test", {"control": "control", "test": "test"}, "control test"),
        ("val bus", {"val": "val", "bus": "bus"}, "val bus"),
        ("cat unlabeled", {"cat": "cat", "unlabeled": "unlabeled"}, "cat unlabeled"),
        ("vehicles/bus vehicles/train", {"vehicles/bus": "bus", "vehicles/train": "train"}, None),
        # splits: with classes inside, or next to another split
        ("train/a train/b test/a test/b", {"train/a": "a", "test/b": "b"}, "train/a train/b"),
        ("train/a train/b other", {"train/a": "a", "other": "other"}, "train/a train/b"),
        ("train test", {"train": None, "test": None}, "train"),
        ("train unlabeled other", {"train": None, "unlabeled": None, "other": "other"}, "train unlabeled"),
        ("train/a train/b unlabelled/x", {"train/a": "a", "unlabelled/x": None}, "train/a train/b unlabelled/x"),
        ("set/train/a set/train/b set/val/a", {"set/train/a": "a", "set/val/a": "a"}, "set/train/a set/train/b"),
        ("set/train set/val", {"set/train": None, "set/val": None}, "set/train"),
        # a system folder inside does not make a class a split
        ("bus train train/@eaDir", {"bus": "bus", "train": "train"}, "bus train"),
    ],
)
def test_a_split_has_classes_inside_or_stands_next_to_another_split(kind, layout, labels, learned, tmp_path):
    folders = layout.split()
    place = place_of(kind, {f"{name}/{i}.png": image(i) for name in folders for i in range(5)}, tmp_path)
    found = indexed_labels(place)
    assert {name: found[f"{name}/0.png"] for name in labels} == labels
    read = read_labeled(place)
    assert sorted(one for (one,) in filter(None, read.labels)) == sorted(filter(None, found.values()))
    names = {str(Path(str(path)).parent.relative_to(place)) for path in training_files([place])}
    assert names == set((learned or layout).split())
    if len(set(filter(None, found.values()))) > 1:  # inspected as labels, too
        inspected = inspected_files(place)
        assert dict(zip(inspected.names, inspected.labels, strict=True)) == found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("above", ["", "set/"])
def test_images_next_to_the_splits_are_counted_when_pretraining_leaves_them_out(kind, above, tmp_path, caplog):
    counts = {"train/a": 3, "test/a": 4, "cat": 2, "dog/brown": 5}
    files = {f"{above}{name}/{i}.png": image(i) for name, count in counts.items() for i in range(count)}
    assert len(training_files([place_of(kind, files, tmp_path)])) == 3
    (warning,) = (one for one in caplog.messages if "left out" in one)
    assert all(count in warning for count in ("7 images", "5 in dog", "2 in cat"))


@pytest.mark.parametrize("kind", KINDS)
def test_only_splits_are_evaluated(kind, tmp_path):
    classes = place_of(kind, {f"{name}/{i}.png": image(i) for name in ("bus", "test") for i in range(5)}, tmp_path)
    with pytest.raises(InvalidRequest):
        read_task(classes)
    (tmp_path / "other").mkdir()
    parts = ("train/bus", "train/test", "test/bus", "test/test")
    splits = place_of(kind, {f"{name}/{i}.png": image(i) for name in parts for i in range(5)}, tmp_path / "other")
    assert read_task(splits).classes == ("bus", "test")


FILES = {"cat/0.jpg": "7", "cat/1.b.jpg": "8", "dog/2.jpg": "9"}


@pytest.mark.parametrize("order", [sorted, lambda names: sorted(names, key=lambda name: name[::-1])])
def test_texts_belong_to_their_image_in_any_order_of_the_archive(order, tmp_path, caplog):
    files = {name: image(i) for i, name in enumerate(FILES)}
    files |= {f"{name.removesuffix('.jpg')}.cls": text.encode() for name, text in FILES.items()}
    files |= {"cat/0.seg.png": image(5), "dog/3.jpg": image(6), "dog/4.cls": b"1", "pair.l.jpg": b"", "pair.r.jpg": b""}
    files |= {"pair.cls": b"2"}
    place = place_of("tar", {name: files[name] for name in order(files)}, tmp_path)
    unlabeled = dict.fromkeys(["cat/0.seg.png", "dog/3.jpg", "pair.l.jpg", "pair.r.jpg"])
    assert indexed_labels(place) == FILES | unlabeled
    images = find_images([place])
    labels = {one.path: one.label for one in images}
    assert labels == FILES | unlabeled
    assert sum(dict(images[0].place.left_out).values()) == 2  # texts without an image, or of which it is not clear
    assert "4 of the 7 images" in caplog.text


def test_texts_in_another_folder_than_the_images_are_reported(tmp_path, caplog):
    place = place_of("tar", {"images/0.jpg": image(), "labels/0.cls": b"7"}, tmp_path)
    assert list_images_of(place).left_out == {"texts without an image": 1}
    assert "1 texts without an image" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["@eaDir", "#recycle", "$RECYCLE.BIN", "lost+found", "__MACOSX", ".thumbnails"])
def test_folders_of_the_system_are_left_out_and_counted(kind, name, tmp_path, caplog):
    files = {
        "cat/a.png": image(),
        f"cat/{name}/a.png/SYNO.png": image(1),
        f"{name}/b.png": image(2),
        ".hidden.png": b"",
    }
    place = place_of(kind, files, tmp_path)
    listing = list_images_of(place)
    assert [one.path for one in listing.images.values()] == ["cat/a.png"]
    assert listing.left_out == {name: 2}
    assert f"2 in {name}" in caplog.text
    assert len(training_files([place])) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_names_with_many_suffixes_are_counted_together(kind, tmp_path):
    place = place_of(kind, {"a.png": image(), **{f"{number}.s{number}": b"" for number in range(70)}}, tmp_path)
    counts = list_images_of(place).left_out
    assert (len(counts), sum(counts.values()), counts["other suffixes"]) == (51, 70, 20)


@pytest.mark.parametrize("hide", ["a link", "a mount point", "a place below a mount point", "nothing"])
def test_only_certainly_deleted_files_are_pruned(tmp_path, caplog, hide):
    """Files behind a link or on an unmounted disk are kept, and the log reports them."""
    folder = place_of("folder", {"cat/a.png": image(), "disk/dog/b.png": image(1)}, tmp_path)
    deep = folder / "disk" / "dog"
    found = list_images_of(folder).images.items()
    known = {id: {"root": "r", "path": image.path} for id, image in found}
    deep.rename(tmp_path / "dog")
    place = deep
    if hide == "a link":
        deep.symlink_to(tmp_path / "nowhere")
    elif hide == "a mount point":
        deep.mkdir()
    elif hide == "a place below a mount point":
        place = deep.parent
    else:
        deep.parent.rmdir()
    (folder / "cat" / "a.png").unlink()
    (folder / "cat" / "b.png").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        changes = find_changes(list_images_of(folder, origin=lambda source: "r"), known, prune=True)
    gone = ["cat/a.png"] if hide != "nothing" else ["cat/a.png", "disk/dog/b.png"]
    assert [known[id]["path"] for id in changes.gone] == gone
    messages = [record.getMessage().split(" so ")[0] for record in caplog.records]
    cause = {"a link": "is a link to a folder, and such links are not followed", "nothing": ""}
    kept = f"{place} {cause.get(hide, 'is empty, which may mean that its disk is not mounted')},"
    assert messages == ([] if hide == "nothing" else [kept])
    assert changes.kept == len(messages)
