"""Reading images with boxes: COCO's JSON and a table."""

import csv
import json

import numpy as np
import pytest
from boxed_images import write_coco
from PIL import Image

from nnclr_hub.errors import ImageError, InvalidRequest
from training.evals.boxed_images import read_boxes


def test_coco_boxes_are_corner_and_sides_cut_at_the_edge_without_crowds(tmp_path):
    boxes = [(1, 10, 20, 30.5, 40), (0, -10, 5, 40, 400), (0, 5, 5, 0, 9), (1, 1, 1, 50, 50)]
    folder = write_coco(tmp_path / "set", [(400, 300, boxes), (300, 300, []), (9, 9, boxes), (9, 9, boxes)])
    coco = json.loads((folder / "annotations.json").read_text())
    coco["annotations"][3]["iscrowd"] = 1
    coco["images"][2] |= {"width": 0, "height": 0}  # no pixels
    coco["images"][3] |= {"width": 1, "height": 3000}  # a strip has no useful map
    (folder / "annotations.json").write_text(json.dumps(coco))
    boxed = read_boxes(folder)
    assert (boxed.name, boxed.classes) == ("set", ("cat", "dog"))
    (image,) = boxed.images
    np.testing.assert_array_equal(image.boxes, [[10, 20, 40.5, 60], [0, 5, 30, 300]])
    assert image.kinds.tolist() == [1, 0]
    assert boxed.counts() == {"images": 1, "boxes": 2}
    assert len(boxed.left_out) == 2
    assert "2.png, 3.png" in boxed.left_out[1]
    assert read_boxes(folder / "annotations.json").images[0].path == image.path


def test_a_small_image_counts_as_enlarged_with_its_boxes(tmp_path):
    (image,) = read_boxes(write_coco(tmp_path, [(112, 56, [(0, 10, 20, 30, 10)])])).images
    assert (image.file_size, image.size) == ((112, 56), (448, 224))
    np.testing.assert_allclose(image.boxes, [[40, 80, 160, 120]])


def test_pixels_are_inside_by_their_centers(tmp_path):
    boxes = [(0, 10.5, 20.4, 3, 2), (1, 250, 0, 50, 1.5)]
    (image,) = read_boxes(write_coco(tmp_path, [(300, 240, boxes)])).images
    column, row = np.meshgrid(np.arange(300) + 0.5, np.arange(240) + 0.5)
    for kind in (None, 0, 1):
        own = [box[1:] for box in boxes if kind in (None, box[0])]
        expected = [(x <= column) & (column < x + w) & (y <= row) & (row < y + h) for x, y, w, h in own]
        np.testing.assert_array_equal(image.inside(kind), np.any(expected, axis=0))


def test_a_table_has_inclusive_ends_and_only_test_counts(tmp_path):
    for part in ("train", "test"):
        for kind in ("b", "a"):
            (tmp_path / part / kind).mkdir(parents=True)
            Image.new("RGB", (64, 64)).save(tmp_path / part / kind / "0.png")
    with (tmp_path / "boxes.csv").open("w", newline="") as file:
        rows = [[f"{part}/{kind}/0.png", 0, 3, 63, 31] for part in ("train", "test") for kind in "ba"]
        csv.writer(file).writerows([["file", "x0", "y0", "x1", "y1"], *rows, ["test/a/gone.png", 0, 0, 1, 1]])
    boxed = read_boxes(tmp_path)
    assert boxed.classes == ("a", "b")
    assert [one.path.parent.name for one in boxed.images] == ["b", "a"]
    np.testing.assert_allclose(boxed.images[0].boxes, [[0, 3 * 3.5, 224, 32 * 3.5]])
    assert "gone.png" in boxed.left_out[0]


@pytest.mark.parametrize(
    "content",
    [
        None,
        "file,x0,y0,x1,y1\n,1,2,3,4\n",
        "{",
        "[]",
        '{"images": []}',
        '{"images": [], "annotations": [], "categories": []}',
        '{"images": [], "categories": [{"id": 0}], "annotations": [{"image_id": 5, "bbox": [0, 0, 1, 1]}]}',
    ],
)
def test_an_invalid_set_of_boxes_is_rejected(content, tmp_path):
    if content is not None:
        (tmp_path / ("boxes.csv" if content.startswith("file") else "annotations.json")).write_text(content)
    with pytest.raises(InvalidRequest):
        read_boxes(tmp_path)


def test_an_image_whose_size_differs_from_its_boxes_is_rejected(tmp_path):
    folder = write_coco(tmp_path, [(300, 240, [(0, 1, 1, 50, 50)])])
    boxed = read_boxes(folder)
    before = boxed.digest()
    assert boxed.images[0].read().size == (300, 240)
    Image.new("RGB", (240, 300)).save(folder / "0.png")
    with pytest.raises(ImageError, match="240 x 300"):
        boxed.images[0].read()
    assert boxed.digest() != before
