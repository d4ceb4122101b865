"""Reading images with boxes, and sampling pairs."""

import csv
import json

import numpy as np
import pytest
from boxed_images import write_coco
from PIL import Image

from nnclr_hub.errors import ImageError, InvalidRequest
from training.evals.boxes.boxed import read_boxes
from training.evals.boxes.maps import center
from training.evals.boxes.scoring import choose_pairs, large_boxes, pointing


def test_coco_boxes_are_corner_and_sides(tmp_path):
    folder = write_coco(tmp_path / "set", [(400, 300, [(1, 10, 20, 30.5, 40)]), (300, 300, [])])
    boxed = read_boxes(folder)
    assert boxed.name == "set"
    assert boxed.classes == ("cat", "dog")
    (image,) = boxed.images
    np.testing.assert_array_equal(image.boxes, [[10, 20, 40.5, 60]])
    assert image.kinds.tolist() == [1]
    assert "1 images without a box" in boxed.left_out[0]
    assert boxed.counts() == {"images": 1, "boxes": 1}
    assert read_boxes(folder / "annotations.json").images[0].path == image.path


def test_a_small_image_counts_as_enlarged_with_its_boxes(tmp_path):
    (image,) = read_boxes(write_coco(tmp_path, [(112, 56, [(0, 10, 20, 30, 10)])])).images
    assert image.file_size == (112, 56)
    assert image.size == (448, 224)
    np.testing.assert_allclose(image.boxes, [[40, 80, 160, 120]])


def test_boxes_are_cut_at_the_edge_and_empty_ones_and_crowds_dropped(tmp_path):
    boxes = [(0, -10, 5, 40, 400), (0, 5, 5, 0, 9), (1, 1, 1, 50, 50)]
    folder = write_coco(tmp_path, [(300, 300, boxes)])
    coco = json.loads((folder / "annotations.json").read_text())
    coco["annotations"][2]["iscrowd"] = 1
    (folder / "annotations.json").write_text(json.dumps(coco))
    np.testing.assert_array_equal(read_boxes(folder).images[0].boxes, [[0, 5, 30, 300]])


def test_pixels_are_inside_by_their_centers(tmp_path):
    boxes = [(0, 10.5, 20.4, 3, 2), (1, 250, 0, 50, 1.5)]
    (image,) = read_boxes(write_coco(tmp_path, [(300, 240, boxes)])).images
    for kind in (None, 0, 1):
        expected = np.zeros((240, 300), bool)
        for row in range(240):
            for column in range(300):
                for own, x, y, width, height in boxes:
                    hit = x <= column + 0.5 < x + width and y <= row + 0.5 < y + height
                    expected[row, column] |= hit and kind in (None, own)
        np.testing.assert_array_equal(image.inside(kind), expected)


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
    ("content", "word"),
    [
        (None, "has no boxes"),
        ("file,x0,y0,x1,y1\n,1,2,3,4\n", "cannot be read as boxes"),
        ("{", "cannot be read as boxes"),
        ("[]", "cannot be read as boxes"),
        ('{"images": []}', "categories"),
        ('{"images": [{"id": 1, "width": 0, "height": 9}], "annotations": [], "categories": []}', "file_name"),
        ('{"images": [], "annotations": [], "categories": []}', "box"),
        (
            '{"images": [], "categories": [{"id": 0, "name": "a"}], '
            '"annotations": [{"image_id": 5, "category_id": 0, "bbox": [0, 0, 1, 1]}]}',
            "5",
        ),
    ],
)
def test_an_invalid_set_of_boxes_is_rejected(content, word, tmp_path):
    if content is not None:
        (tmp_path / ("boxes.csv" if content.startswith("file") else "annotations.json")).write_text(content)
    with pytest.raises(InvalidRequest, match=word):
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


def test_pairs_have_one_class_and_their_controls_another(tmp_path):
    rng = np.random.default_rng(1)
    images = []
    for _ in range(12):
        boxes = [
            (int(rng.integers(3)), *rng.integers(0, 100, 2).tolist(), *rng.integers(8, 120, 2).tolist())
            for _ in range(int(rng.integers(1, 5)))
        ]
        images.append((240, 240, boxes))
    boxed = read_boxes(write_coco(tmp_path, images, classes=("a", "b", "c")))
    every = choose_pairs(boxed, most=10**6, least=32, seed=0)
    expected = set()
    for number, one in enumerate(boxed.images):
        for box, (x0, y0, x1, y1) in enumerate(one.boxes):
            for other, two in enumerate(boxed.images):
                if ((x1 - x0) * (y1 - y0)) ** 0.5 >= 32 and other != number and one.kinds[box] in two.kinds:
                    expected.add(((number, box), other))
    assert {(one.query, one.target) for one in every} == expected
    assert len(every) == len(expected)
    large = set(large_boxes(boxed, 32))
    some = choose_pairs(boxed, most=7, least=32, seed=0)
    assert some == choose_pairs(boxed, most=7, least=32, seed=0)
    assert some != choose_pairs(boxed, most=7, least=32, seed=1)
    assert all(sum(one.kind == kind for one in some) == 7 for kind in range(3))
    assert {(one.query, one.target) for one in some} < expected
    for one in some:
        assert boxed.images[one.query[0]].kinds[one.query[1]] == one.kind
        assert one.control in large
        assert one.control[0] != one.target
        assert boxed.images[one.control[0]].kinds[one.control[1]] != one.kind


def test_a_set_of_one_class_has_no_controls(tmp_path):
    boxed = read_boxes(write_coco(tmp_path, [(240, 240, [(0, 0, 0, 99, 99)])] * 4, classes=("a",)))
    pairs = choose_pairs(boxed, most=2000, least=32, seed=0)
    assert len(pairs) == 12
    assert {one.control for one in pairs} == {None}


@pytest.mark.parametrize(("width", "height"), [(0, 0), (4, 300), (1, 3000)])
def test_images_without_possible_maps_are_left_out_and_reported(width, height, tmp_path):
    folder = write_coco(tmp_path, [(300, 240, [(0, 1, 1, 50, 50)])] * 2)
    coco = json.loads((folder / "annotations.json").read_text())
    coco["images"][1] |= {"width": width, "height": height}
    (folder / "annotations.json").write_text(json.dumps(coco))
    boxed = read_boxes(folder)
    assert len(boxed.images) == 1
    assert "1.png" in boxed.left_out[0]


@pytest.mark.data
@pytest.mark.parametrize(
    ("file", "folder", "images", "boxes", "expected"),
    [
        ("boxes.tar", "coco128", 126, 929, 0.698),
        ("boxes.tar", "raccoon", 193, 210, 0.953),
        pytest.param("tiny64.tar.gz", "", 3980, 3980, 0.785, marks=pytest.mark.slow),
    ],
)
def test_the_center_pixel_is_in_a_box_as_often_as_counted_before(pack, file, folder, images, boxes, expected):
    boxed = read_boxes(pack(file) / folder)
    assert boxed.counts() == {"images": images, "boxes": boxes}
    hits = [pointing(center(*one.size), one.inside()) for one in boxed.images]
    assert np.mean(hits) == pytest.approx(expected, abs=5e-4)
