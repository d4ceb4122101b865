"""A data set as protocols see it: what counts, and what is reported and left out."""

import shutil

import numpy as np
import pytest

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.table_rows import LabelTable
from training.evals.task import read_pair, read_task


@pytest.fixture
def data(photos, tmp_path):
    for path in sorted(photos.rglob("*.jpg"))[::5]:
        split = "train" if int(path.stem) < 10 else "test"
        (tmp_path / "set" / split / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / "set" / split / path.parent.name)
    return tmp_path / "set"


def test_classes_are_those_of_train(data):
    task = read_task(data)
    assert task.classes == ("astronaut", "cat", "coffee")
    assert task.metric == "top1"
    assert task.counts() == {"train": 6, "test": 6}
    assert [task.classes[i] for i in task.test.labels] == [path.parent.name for path in task.test.paths]


def test_images_of_unknown_classes_and_classes_without_images_are_named(data):
    shutil.move(data / "train" / "cat", data / "train" / "dog")
    task = read_task(data)
    assert len(task.test.paths) == 4, "the cats are not scored as errors"
    unknown, missing = task.left_out
    assert "2 images" in unknown
    assert "(cat)" in unknown
    assert "dog" in missing


def test_val_chooses_and_is_scored_where_there_is_no_test(data):
    shutil.copytree(data / "test", data / "val")
    assert read_task(data).val is not None
    shutil.rmtree(data / "test")
    task = read_task(data)
    assert task.val is None
    assert task.counts() == {"train": 6, "test": 6}


def test_a_table_of_several_labels_is_scored_by_average_precision(data):
    names = sorted(path.relative_to(data) for path in data.rglob("*.jpg"))
    rows = [f"{path},{path.parts[1]}{';thing' if i % 2 else ''}," for i, path in enumerate(names)]
    (data / "labels.csv").write_text("\n".join(["path,labels,uncertain", *rows]) + "\n")
    task = read_task(data)
    assert task.metric == "map11"
    assert task.classes == ("astronaut", "cat", "coffee", "thing")
    assert task.train.labels.shape == (6, 4)
    assert task.train.labels.sum() > 6


def test_a_fifth_of_a_table_is_scored(photos, tmp_path):
    names = [path.relative_to(photos) for path in sorted(photos.rglob("*.jpg"))]
    table = tmp_path / "few.csv"
    table.write_text("\n".join(["path,label", *(f"{name},{name.parts[0]}" for name in names[::2])]) + "\n")
    task = read_task(photos, labels=table)
    assert task.counts() == {"train": 24, "test": 6}
    assert not set(task.train.paths) & set(task.test.paths)
    assert np.bincount(task.test.labels).tolist() == [2, 2, 2]
    assert [task.classes[i] for i in task.test.labels] == [path.parent.name for path in task.test.paths]
    with pytest.raises(InvalidRequest):
        read_task(photos, labels=LabelTable(table, tmp_path))


def test_sets_that_cannot_be_scored_are_rejected(data, photos):
    with pytest.raises(InvalidRequest, match="train/"):
        read_task(photos)
    for name in ("cat", "coffee"):
        shutil.rmtree(data / "train" / name)
    with pytest.raises(InvalidRequest, match="one class"):
        read_task(data)


def test_pairs_search_train_themselves_or_what_is_named(data, photos):
    assert read_pair(data).counts() == {"train": 6, "test": 6}
    alone = read_pair(photos)
    assert alone.train is alone.test
    assert len(alone.train.paths) == 60
    task = read_pair(data, "test", str(photos))
    assert len(task.train.paths) == 60
    assert len(task.test.paths) == 6
    np.testing.assert_array_equal(np.unique(task.test.labels), [0, 1, 2])
    with pytest.raises(InvalidRequest, match="both"):
        read_pair(data, "test")
    itself = read_pair(data, "test", "test")
    assert itself.train is itself.test, "a query must not find itself"
    table = data / "some.csv"
    table.write_text("path,label\n" + "".join(f"{p},{p.parent.name}\n" for p in task.test.paths[:3]))
    with pytest.raises(InvalidRequest, match="find itself"):
        read_pair(data, str(table), "test")
