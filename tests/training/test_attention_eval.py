"""`nnclr eval attention`: pairs, maps, scores and intervals, compared with literal implementations."""

import json
import tempfile

import numpy as np
import pytest
from boxed_images import write_coco
from PIL import Image
from rich.console import Console
from sklearn.metrics import roc_auc_score
from tiny_runs import nnclr

from nnclr_hub.encoder.attention import Box
from nnclr_hub.encoder.loader import load_encoder
from training.evals.attention import (
    BASELINES,
    Baseline,
    BoxedEvaluation,
    EncoderMaps,
    attention,
    auroc,
    bootstrap,
    choose_pairs,
    pointing,
    score,
)
from training.evals.boxed_images import read_boxes

QUIET = Console(quiet=True)
SHAPES = [
    (300, 240, [(0, 20, 30, 120, 90), (1, 180, 100, 100, 120)]),
    (240, 320, [(0, 100, 150, 90, 130)]),
    (280, 260, [(1, 10, 10, 150, 100), (1, 150, 150, 60, 60), (2, 200, 20, 60, 90)]),
    (260, 250, [(2, 30, 120, 100, 100), (0, 140, 20, 90, 60)]),
]


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    return write_coco(tmp_path_factory.mktemp("sets") / "shapes", SHAPES, ("a", "b", "c"))


# ---- pairs


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
    large = {
        (number, box)
        for number, one in enumerate(boxed.images)
        for box, (x0, y0, x1, y1) in enumerate(one.boxes)
        if ((x1 - x0) * (y1 - y0)) ** 0.5 >= 32
    }
    expected = {
        ((number, box), other)
        for number, box in large
        for other, two in enumerate(boxed.images)
        if other != number and boxed.images[number].kinds[box] in two.kinds
    }
    assert {(one.query, one.target) for one in every} == expected
    assert len(every) == len(expected)
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


# ---- maps and scores


def literal(values, image, kind=None):
    """Pointing and AUROC of (H, W) values, pixel by pixel."""
    labels = np.zeros(values.shape, bool)
    for (x0, y0, x1, y1), own in zip(image.boxes, image.kinds, strict=True):
        for row in range(int(np.floor(y0)), int(np.ceil(y1))):
            for column in range(int(np.floor(x0)), int(np.ceil(x1))):
                labels[row, column] |= kind in (None, own)
    best = np.argwhere(values == values.max())
    return np.mean([labels[row, column] for row, column in best]), roc_auc_score(labels.ravel(), values.ravel())


@pytest.mark.parametrize(
    ("architecture", "args", "similarity"),
    [("resnet18", {"channels": [8, 16, 24, 32]}, "dot"), ("test_vit", {}, "cosine")],
)
def test_scores_are_those_of_the_encoders_maps(architecture, args, similarity, coco, make_model):
    encoder = load_encoder(make_model(architecture, args, 160), device="cpu")
    boxed = read_boxes(coco)
    pairs = choose_pairs(boxed, most=5, least=32, seed=0)
    assert len(pairs) >= 10
    with tempfile.TemporaryFile() as file:
        got = score(BoxedEvaluation(encoder, boxed, QUIET), pairs, EncoderMaps(encoder, 0, similarity, file), "test")
    for image, found in zip(boxed.images, got["within"], strict=True):
        shown = encoder.attention(image.path, similarity=similarity)
        expected = literal(shown.grid.upsampled(shown.values), image)
        np.testing.assert_allclose(found, expected, atol=1e-9)
    for number, pair in enumerate(pairs):
        target = boxed.images[pair.target]
        for found, (image, box) in ((got["across"][number], pair.query), (got["control"][number], pair.control)):
            query = Box(*boxed.images[image].boxes[box].tolist())
            shown = encoder.attention(boxed.images[image].path, query, target.path, similarity)
            expected = literal(shown.grid.upsampled(shown.values), target, pair.kind)
            np.testing.assert_allclose(found, expected, atol=1e-9)


def test_another_input_size_does_not_move_the_boxes(coco, model):
    encoder = load_encoder(model, device="cpu")
    first, target = read_boxes(coco).images[:2]
    with tempfile.TemporaryFile() as file:
        maps = EncoderMaps(encoder, 448, "dot", file)
        within, stored = maps.map_of(first)
        found = maps.cross_map(stored, first.boxes[1], maps.map_of(target)[1])
    large, other = (
        Image.open(one.path).resize(size, Image.Resampling.BICUBIC)
        for one, size in ((first, (560, 448)), (target, (448, 597)))
    )
    for got, shown in (
        (within, encoder.attention(large)),
        (found, encoder.attention(large, Box(*(first.boxes[1] * 448 / 240).tolist()), other)),
    ):
        assert shown.input_size in ((560, 448), (448, 597))
        height, width = got.shape
        assert (width, height) in (first.size, target.size)
        scaled = np.asarray(Image.fromarray(shown.scaled()).resize((width, height), Image.Resampling.BOX))
        np.testing.assert_allclose((got - got.min()) / np.ptp(got), scaled, atol=0.05)
        assert np.corrcoef(got.ravel(), scaled.ravel())[0, 1] > 0.999


def test_an_unreadable_image_and_its_pairs_have_no_scores(tmp_path):
    boxed = read_boxes(write_coco(tmp_path, SHAPES, ("a", "b", "c")))
    boxed.images[1].path.write_bytes(b"no image")

    class ReadingMaps(Baseline):
        def map_of(self, image):
            image.read()
            return super().map_of(image)

    subject = BoxedEvaluation(BASELINES["area"], boxed, QUIET)
    pairs = choose_pairs(boxed, most=50, least=32, seed=0)
    got = score(subject, pairs, ReadingMaps("area", BASELINES["area"].draw), "test")
    assert list(subject.broken) == [str(boxed.images[1].path)]
    assert np.isnan(got["within"][:, 0]).tolist() == [False, True, False, False]
    lost = [1 in (pair.query[0], pair.target) for pair in pairs]
    assert 0 < sum(lost) < len(pairs)
    assert np.isnan(got["across"][:, 0]).tolist() == lost


@pytest.mark.parametrize("levels", [2, 10**6])
def test_auroc_equals_scikit_learns_with_ties(levels):
    rng = np.random.default_rng(levels)
    for share in (0.02, 0.5, 0.97):
        values = (rng.integers(0, levels, (37, 53)) / levels).astype(np.float32)
        inside = rng.random((37, 53)) < share
        assert auroc(values, inside) == pytest.approx(roc_auc_score(inside.ravel(), values.ravel()), abs=1e-12)
    assert np.isnan([auroc(values, np.full((37, 53), all_inside)) for all_inside in (True, False)]).all()


def test_pointing_is_the_share_of_maxima_in_boxes():
    inside = np.zeros((4, 5), bool)
    inside[1:3, 2:] = True
    values = np.arange(20, dtype=np.float32).reshape(4, 5)
    assert pointing(values, inside) == 0
    values[2, 3] = 99
    assert pointing(values, inside) == 1
    values[0, 0] = 99
    assert pointing(values, inside) == 0.5
    assert pointing(np.zeros((4, 5)), inside) == pytest.approx(6 / 20)


def test_baselines_have_the_shape_of_their_names():
    inside = np.zeros((90, 130), bool)
    inside[45, 65] = True
    for name in ("center", "gaussian"):
        assert pointing(BASELINES[name].draw(130, 90), inside) == 1
    assert auroc(BASELINES["gaussian"].draw(130, 90), inside) == 1
    assert pointing(BASELINES["area"].draw(130, 90), inside) == pytest.approx(1 / (90 * 130))
    values = BASELINES["gaussian"].draw(128, 64)
    assert values[32, 64 + 32] == pytest.approx(values[32 + 16, 64]), "an ellipse of the image's proportions"


@pytest.mark.data
@pytest.mark.parametrize(
    ("file", "folder", "images", "boxes", "expected"),
    [
        ("boxes.tar", "coco128", 126, 929, 0.698),
        pytest.param("tiny64.tar.gz", "", 3980, 3980, 0.785, marks=pytest.mark.slow),
    ],
)
def test_the_center_pixel_is_in_a_box_as_often_as_counted_before(pack, file, folder, images, boxes, expected):
    boxed = read_boxes(pack(file) / folder)
    assert boxed.counts() == {"images": images, "boxes": boxes}
    inside = [pointing(BASELINES["center"].draw(*one.size), one.inside()) for one in boxed.images]
    assert np.mean(inside) == pytest.approx(expected, abs=5e-4)


# ---- intervals


def literal_interval(scores, images, classes, draws, seed):
    """One draw after another, one score after another, with the same random numbers."""
    distinct = sorted({int(one) for row in images for one in row})
    rng = np.random.default_rng(seed)
    found = []
    for counts in rng.multinomial(len(distinct), [1 / len(distinct)] * len(distinct), size=draws):
        times = dict(zip(distinct, counts.tolist(), strict=True))
        sums: dict[int, list[float]] = {}
        for value, row, kind in zip(scores, images, classes, strict=True):
            weight = np.prod([times[int(one)] for one in row])
            pair = sums.setdefault(int(kind), [0.0, 0.0])
            pair[0] += weight * value
            pair[1] += weight
        means = [total / weight for total, weight in sums.values() if weight]
        if means:
            found.append(sum(means) / len(means))
    return np.percentile(found, [2.5, 97.5])


def test_the_bootstrap_equals_a_literal_one():
    rng = np.random.default_rng(3)
    scores, classes = rng.random(40), rng.integers(0, 4, 40) * 3
    pairs = np.stack([rng.integers(0, 9, 40) * 7, rng.integers(0, 9, 40) * 7], axis=1)
    mean, *interval = bootstrap(scores, pairs, classes, 60, 5)
    assert mean == pytest.approx(np.mean([scores[classes == kind].mean() for kind in np.unique(classes)]))
    np.testing.assert_allclose(interval, literal_interval(scores, pairs, classes, 60, 5))
    alone, one_class = np.arange(40)[:, None], np.zeros(40)
    mean, *interval = bootstrap(scores, alone, one_class, 60, 5)
    assert mean == pytest.approx(scores.mean())
    np.testing.assert_allclose(interval, literal_interval(scores, alone, one_class, 60, 5))
    missing = np.insert(scores, 7, np.nan)
    assert bootstrap(missing, np.arange(41)[:, None], np.zeros(41), 60, 5) == bootstrap(scores, alone, one_class, 60, 5)


# ---- the protocol


def test_scores_are_means_over_images_and_over_classes_of_pairs(coco, model):
    encoder, boxed = load_encoder(model, device="cpu"), read_boxes(coco)
    settings = {"short_side": (0,), "pairs": 3, "draws": 100}
    subject = BoxedEvaluation(encoder, boxed, QUIET)
    found = dict(attention(subject, **settings))
    pairs = choose_pairs(boxed, most=3, least=32, seed=0)
    kinds = np.array([pair.kind for pair in pairs])
    with tempfile.TemporaryFile() as file:
        own = score(subject, pairs, EncoderMaps(encoder, 0, "dot", file), "test")
    place = score(subject, pairs, BASELINES["gaussian"], "test")
    start = "attention/shapes/own"

    def over_classes(scores):
        return np.mean([scores[kinds == kind, 1].mean() for kind in range(3)])

    assert found["attention/shapes"] == found[f"{start}/within/pointing"] == own["within"][:, 0].mean()
    assert found[f"{start}/within/auroc"] == pytest.approx(own["within"][:, 1].mean())
    assert found[f"{start}/across/auroc"] == pytest.approx(over_classes(own["across"]))
    assert found[f"{start}/control/auroc"] == pytest.approx(over_classes(own["control"]))
    assert found[f"{start}/across/auroc/over"] == pytest.approx(over_classes(own["across"] - place["across"]))
    assert found[f"{start}/across/auroc/over_control"] == pytest.approx(over_classes(own["across"] - own["control"]))
    for key, value in found.items():
        if f"{key}/low" in found:
            assert found[f"{key}/low"] <= value <= found[f"{key}/high"], key
    assert (found["attention/shapes/pairs"], found["attention/shapes/classes"]) == (8, 3)


def test_the_command_writes_a_table(coco, model, tmp_path):
    sources = (model, f"random:{model}", "gaussian", "center", "area")
    call = ("eval", "attention", *sources, "--data", coco, "--out", tmp_path, "--set", "draws=50", "--set", "pairs=4")
    code, _, err = nnclr(*call, "--set", "short_side=0,300")
    assert code == 0, err
    records = json.loads((tmp_path / "results.json").read_text())
    assert [one["source"] for one in records] == [str(one) for one in sources]
    assert records[0]["settings"]["short_side"] == [0, 300]
    assert records[0]["images"] == {"images": 4, "boxes": 8}
    page = (tmp_path / "attention.md").read_text()
    shown, gain = (records[0]["values"][f"attention/shapes/300/across/auroc{end}"] for end in ("", "/over_control"))
    assert page.count(f"| {model} | 300 |") == 2
    assert f"{shown:.3f} [" in page
    assert f"{gain:+.3f} [" in page
    assert page.count("| area | - |") == 1
    code, _, err = nnclr(*call, "--set", "short_side=0,300")
    assert code == 0
    assert "complete already" in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["attention", "pixels", "--data", "{coco}"], "feature map"),
        (["attention", "{model}", "--data", "{photos}"], "boxes"),
        (["attention", "{model}"], "--data"),
        (["attention", "{model}", "--data", "{coco}", "--set", "short_side=100"], "224 to 1024"),
        (["attention", "{model}", "--data", "{coco}", "--set", "short_side="], "short_side"),
        (["attention", "{model}", "--data", "{coco}", "--set", "similarity=l2"], "dot, cosine"),
        (["knn", "gaussian", "--data", "{data}"], "baseline"),
    ],
)
def test_invalid_calls_end_with_one_error(arguments, word, coco, model, photos, data, tmp_path):
    call = [one.format(coco=coco, model=model, photos=photos, data=data) for one in arguments]
    code, _, err = nnclr("eval", *call, "--out", tmp_path)
    assert code == 2
    assert word in err
    assert "Traceback" not in err
