"""Labels from folders and tables."""

import numpy as np
import pytest
from PIL import Image

from nnclr_hub.errors import InvalidRequest, NoImages
from nnclr_hub.images.labels import read_labeled


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
        ('path,label\na.png,cat\n"b.png,dog\nc.png,dog\n', "line 3"),
        ("path,label\na.png,cat\nb.png,dog\n./a.png,dog\n", "a.png.*cat.*dog"),
    ],
)
def test_an_invalid_table_is_refused(tmp_path, text, word):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InvalidRequest, match=word):
        read_labeled(tmp_path / "t.csv")


@pytest.mark.parametrize("separator", ",;\t")
def test_columns_are_separated_by_commas_semicolons_or_tabs(folder, separator):
    table = folder / "t.csv"
    table.write_text(f' path {separator} label\ntrain/c.png{separator}"a,b;c"\n')
    assert read_labeled(table).labels == (("a,b;c",),)
    table.write_text(
        f'\ufeffpath{separator}"note of{separator}\nthe day"{separator}label\ntrain/c.png{separator}x{separator}cat\n'
    )
    assert read_labeled(table).labels == (("cat",),), "the name of a column has a line break"


def test_rows_of_one_image_count_once(folder, caplog):
    table = folder / "t.csv"
    table.write_text("path,label\ntrain/c.png,\ntrain/cat/a.png,cat\ntrain/cat//a.png,cat\ntrain/c.png,dog\n")
    images = read_labeled(table)
    assert ([path.name for path in images.paths], images.labels) == (["c.png", "a.png"], (("dog",), ("cat",)))
    assert len(caplog.records) == 1
    table.write_text("path,labels\ntrain/c.png,dog\ntrain/c.png,cat; dog\n")
    assert read_labeled(table).labels == (("dog", "cat"),)


def test_missing_tables_classes_and_images_are_refused(folder):
    with pytest.raises(NoImages):
        read_labeled(folder / "none.csv")
    with pytest.raises(InvalidRequest, match="dog"):
        read_labeled(folder / "train").labeled.numbers(["cat"])
    images = read_labeled(folder)
    with pytest.raises(InvalidRequest):  # some are unlabeled
        images.numbers(images.classes)
    (folder / "labels.csv").write_text("path,label\ntrain/c.png,cat\n")
    with pytest.raises(InvalidRequest):
        read_labeled(folder / "test")
