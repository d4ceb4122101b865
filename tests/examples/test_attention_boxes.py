"""examples/attention_boxes.py: boxes, pairs, scores and intervals, compared with literal implementations."""

import csv
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from boxed_images import write_coco
from PIL import Image

from nnclr_hub import Box, load_encoder

EXAMPLE = Path(__file__).parents[2] / "examples" / "attention_boxes.py"
example = type("example", (), {k: staticmethod(v) for k, v in runpy.run_path(str(EXAMPLE)).items() if callable(v)})
SHAPES = [
    (300, 240, [(0, 20, 30, 120, 90), (1, 180, 100, 100, 120)]),
    (240, 320, [(0, 100, 150, 90, 130)]),
    (280, 260, [(1, 10, 10, 150, 100), (1, 150, 150, 60, 60), (2, 200, 20, 60, 90)]),
    (260, 250, [(2, 30, 120, 100, 100), (0, 140, 20, 90, 60)]),
]


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    return write_coco(tmp_path_factory.mktemp("sets") / "shapes", SHAPES, ("a", "b", "c"))


def test_boxes_are_cut_at_the_edge_enlarged_with_small_images_and_without_crowds(tmp_path):
    folder = write_coco(tmp_path, [(112, 56, [(0, 10, 20, 30, 10), (1, -5, 5, 20, 400), (1, 1, 1, 50, 50)])])
    content = json.loads((folder / "annotations.json").read_text())
    content["annotations"][2]["iscrowd"] = 1
    (folder / "annotations.json").write_text(json.dumps(content))
    (image,) = example.read_boxes(folder)
    assert image.image.size == (448, 224)
    np.testing.assert_allclose(image.boxes, [[40, 80, 160, 120], [0, 20, 60, 224]])
    assert image.kinds.tolist() == ["cat", "dog"]
    assert image.inside("cat").sum() == 120 * 40
    assert image.inside().sum() == 120 * 40 + 60 * 204 - 20 * 40


def test_a_table_has_inclusive_ends_and_only_test_counts(tmp_path):
    with (tmp_path / "boxes.csv").open("w", newline="") as file:
        rows = [[f"{part}/b/0.png", 0, 3, 63, 31] for part in ("train", "test")]
        csv.writer(file).writerows([["file", "x0", "y0", "x1", "y1"], *rows])
    (tmp_path / "test" / "b").mkdir(parents=True)
    Image.new("RGB", (64, 64)).save(tmp_path / "test" / "b" / "0.png")
    (image,) = example.read_boxes(tmp_path)
    np.testing.assert_allclose(image.boxes, [[0, 3 * 3.5, 224, 32 * 3.5]])
    assert image.kinds.tolist() == ["b"]


def test_pairs_have_one_class_and_their_controls_another(coco):
    images = example.read_boxes(coco)
    pairs = example.choose_pairs(images, most=10**6)
    expected = {
        ((number, box), other)
        for number, one in enumerate(images)
        for box in range(len(one.boxes))
        for other, two in enumerate(images)
        if other != number and one.kinds[box] in two.kinds
    }
    assert {(one.query, one.target) for one in pairs} == expected
    assert len(pairs) == len(expected)
    assert len(example.choose_pairs(images, most=2)) == 6
    for one in pairs:
        assert one.control[0] != one.target
        assert images[one.control[0]].kinds[one.control[1]] != one.kind


def test_scores_are_those_of_the_encoders_maps(coco, model):
    images = example.read_boxes(coco)
    pairs = example.choose_pairs(images, most=2)
    found = example.evaluate(example.encoder_maps(str(model), images), images, pairs)
    encoder = load_encoder(model, device="cpu")
    for number, image in enumerate(images):
        shown = encoder.attention(image.image)
        best = np.unravel_index(shown.grid.upsampled(shown.values).argmax(), image.inside().shape)
        assert found["within"][number, 0] == image.inside()[best]
    for number, pair in enumerate(pairs):
        box = Box(*images[pair.query[0]].boxes[pair.query[1]].tolist())
        shown = encoder.attention(images[pair.query[0]].image, box, images[pair.target].image)
        values, inside = shown.grid.upsampled(shown.values), images[pair.target].inside(pair.kind)
        above = (values[inside][:, None] > values[~inside][None, ::97]).mean()
        assert found["across"][number, 1] == pytest.approx(above, abs=0.02)


def test_equal_maxima_count_by_their_share_and_full_boxes_have_no_auroc():
    inside = np.zeros((4, 5), bool)
    inside[1:3, 2:] = True
    values = np.zeros((4, 5))
    assert example.scores_of(values, inside) == (pytest.approx(6 / 20), 0.5)
    values[2, 3] = values[0, 0] = 1
    assert example.scores_of(values, inside)[0] == 0.5
    assert np.isnan(example.scores_of(values, np.ones((4, 5), bool))[1])


def test_the_bootstrap_equals_a_literal_one():
    rng = np.random.default_rng(3)
    scores, classes = rng.random(40), rng.integers(0, 4, 40) * 3
    images = np.stack([rng.integers(0, 9, 40) * 7, rng.integers(0, 9, 40) * 7], axis=1)
    mean, low, high = example.bootstrap(
        np.append(scores, np.nan), np.append(images, [[0, 0]], 0), np.append(classes, 0)
    )
    assert mean == pytest.approx(np.mean([scores[classes == kind].mean() for kind in np.unique(classes)]))
    distinct = sorted({int(one) for row in images for one in row})
    draws, found = np.random.default_rng(0), []
    draws.multinomial(len(distinct), [1 / len(distinct)] * len(distinct))
    for counts in draws.multinomial(len(distinct), [1 / len(distinct)] * len(distinct), size=1000):
        times = dict(zip(distinct, counts.tolist(), strict=True))
        sums: dict[int, list[float]] = {}
        for value, row, kind in zip(scores, images, classes, strict=True):
            pair = sums.setdefault(int(kind), [0.0, 0.0])
            weight = times[int(row[0])] * times[int(row[1])]
            pair[0] += weight * value
            pair[1] += weight
        found.append(np.mean([total / weight for total, weight in sums.values() if weight]))
    np.testing.assert_allclose([low, high], np.percentile(found, [2.5, 97.5]))


@pytest.mark.data
def test_the_center_pixel_is_in_a_box_as_often_as_counted_before(pack):
    images = example.read_boxes(pack("boxes.tar") / "coco128")
    maps = example.baseline_maps("center", images)
    inside = [one.inside()[maps(number, None) == 1].all() for number, one in enumerate(images)]
    assert (len(images), np.mean(inside)) == (126, pytest.approx(0.698, abs=5e-4))


def test_the_program_prints_a_table(coco, model, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["x", str(model), "gaussian", "area", "--data", str(coco), "--pairs", "2"])
    example.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 images, 6 pairs"
    assert [line.split(" | ")[0] for line in lines[-3:]] == [f"| {model}", "| gaussian", "| area"]
    assert lines[-1].count("[") == 6
