"""Labels from folders and tables."""

import numpy as np
import pytest
from PIL import Image

from nnclr_hub.encoder.labeled import read_labeled
from nnclr_hub.errors import InvalidRequest, NoImages


@pytest.fixture
def folder(tmp_path):
    for name in ("train/cat/a.png", "train/dog/b.png", "train/c.png", "test/cat/d.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path)
    return tmp_path


def test_folders_are_labels(folder):
    images = read_labeled(folder / "train")
    assert [(path.name, label) for path, label in zip(images.paths, images.labels, strict=True)] == [
        ("c.png", ()),
        ("a.png", ("cat",)),
        ("b.png", ("dog",)),
    ]
    assert images.labeled.numbers(images.classes).tolist() == [0, 1]


def test_a_table_next_to_the_parts_takes_precedence_over_folders(folder):
    (folder / "labels.csv").write_text("path,label\ntrain/cat/a.png,tabby\ntest/cat/d.png,siamese\ntrain/c.png,\n")
    train = read_labeled(folder / "train")
    assert train.labels == (("tabby",), ())
    assert train.labeled.labels == (("tabby",),)
    assert read_labeled(folder / "test").labels == (("siamese",),)


def test_several_labels_and_uncertain_ones_become_a_matrix(folder):
    table = folder / "voc.csv"
    table.write_text("path,labels,uncertain\ntrain/c.png,cat; dog,\ntrain/cat/a.png,,dog\ntrain/dog/b.png,,\n")
    images = read_labeled(table).labeled
    assert images.several
    assert images.classes == ("cat", "dog")
    np.testing.assert_array_equal(images.numbers(("cat", "dog")), [[1, 1], [0, np.nan], [0, 0]])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("file,label\na.png,cat\n", "column"),
        ("path,label\n", "rows"),
        ("path,label\na.png,cat\n,dog\n", "Line 3"),
    ],
)
def test_an_invalid_table_is_refused(tmp_path, text, word):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InvalidRequest, match=word):
        read_labeled(tmp_path / "t.csv")


def test_missing_tables_classes_and_images_are_refused(folder):
    with pytest.raises(NoImages):
        read_labeled(folder / "none.csv")
    with pytest.raises(InvalidRequest, match="dog"):
        read_labeled(folder / "train").labeled.numbers(["cat"])
    (folder / "labels.csv").write_text("path,label\ntrain/c.png,cat\n")
    with pytest.raises(NoImages):
        read_labeled(folder / "test")


def test_unlabeled_images_have_no_number(folder):
    images = read_labeled(folder)
    with pytest.raises(InvalidRequest):
        images.numbers(images.classes)
