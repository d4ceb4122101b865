"""`nnclr eval attention` scores the maps of `Encoder.attention` and writes them to a page."""

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
from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.encoder import load_encoder
from training.evals.attention import BoxedEvaluation, attention, idle_blocks
from training.evals.boxes.boxed import read_boxes
from training.evals.boxes.maps import BASELINES, BaselineMaps, EncoderMaps
from training.evals.boxes.scoring import choose_pairs, score

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


def literal(values, image, kind=None):
    """Pointing and AUROC of (H, W) values, pixel by pixel."""
    labels = np.zeros(values.shape, bool)
    for (x0, y0, x1, y1), own in zip(image.boxes, image.kinds, strict=True):
        for row in range(int(np.floor(y0)), int(np.ceil(y1))):
            for column in range(int(np.floor(x0)), int(np.ceil(x1))):
                labels[row, column] |= kind in (None, own)
    best = np.argwhere(values == values.max())
    return np.mean([labels[row, column] for row, column in best]), roc_auc_score(labels.ravel(), values.ravel())


@pytest.mark.parametrize(("architecture", "args"), [("resnet18", {"channels": [8, 16, 24, 32]}), ("test_vit", {})])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_scores_are_those_of_the_encoders_maps(architecture, args, similarity, coco, make_model):
    encoder = load_encoder(make_model(architecture, args, 160), device="cpu")
    boxed = read_boxes(coco)
    pairs = choose_pairs(boxed, most=5, least=32, seed=0)
    assert len(pairs) >= 10
    with tempfile.TemporaryFile() as file:
        got = score(boxed, pairs, EncoderMaps(encoder, 0, similarity, file), "test", {}, QUIET)
    for image, found in zip(boxed.images, got.within, strict=True):
        shown = encoder.attention(image.path, similarity=similarity)
        expected = literal(shown.grid.upsampled(shown.values), image)
        np.testing.assert_allclose(found, expected, atol=1e-9)
    for number, pair in enumerate(pairs):
        target = boxed.images[pair.target]
        for found, (image, box) in ((got.across[number], pair.query), (got.control[number], pair.control)):
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


def test_boxes_of_a_small_image_are_in_pixels_of_the_enlarged_one(tmp_path, model):
    encoder = load_encoder(model, device="cpu")
    folder = write_coco(tmp_path, [(64, 64, [(0, 8, 8, 40, 40)]), (64, 64, [(0, 20, 8, 40, 40)])], ("a",))
    first, target = read_boxes(folder).images
    with tempfile.TemporaryFile() as file:
        maps = EncoderMaps(encoder, 0, "dot", file)
        got = maps.cross_map(maps.map_of(first)[1], first.boxes[0], maps.map_of(target)[1])
    shown = encoder.attention(first.path, Box(8, 8, 48, 48), target.path)
    assert got.shape == (224, 224)
    np.testing.assert_array_equal(np.unravel_index(got.argmax(), got.shape)[0] // 32, shown.peak[1] * 3.5 // 32)
    # cell centers at 0, 32, ... of the network's 224 pixels: there nothing is interpolated but half a pixel
    np.testing.assert_allclose(got[::32, ::32], shown.values, atol=0.02 * np.ptp(shown.values))


def test_an_unreadable_image_and_its_pairs_have_no_scores(tmp_path):
    folder = write_coco(tmp_path, SHAPES, ("a", "b", "c"))
    boxed = read_boxes(folder)
    boxed.images[1].path.write_bytes(b"no image")
    broken: dict[str, str] = {}

    class ReadingMaps(BaselineMaps):
        def map_of(self, image):
            image.read()
            return super().map_of(image)

    pairs = choose_pairs(boxed, most=50, least=32, seed=0)
    got = score(boxed, pairs, ReadingMaps(BASELINES["area"]), "test", broken, QUIET)
    assert list(broken) == [str(boxed.images[1].path)]
    assert np.isnan(got.within[:, 0]).tolist() == [False, True, False, False]
    lost = [1 in (pair.query[0], pair.target) for pair in pairs]
    assert 0 < sum(lost) < len(pairs)
    assert np.isnan(got.across[:, 0]).tolist() == lost


def test_scores_are_means_over_images_and_over_classes_of_pairs(coco, model):
    encoder, boxed = load_encoder(model, device="cpu"), read_boxes(coco)
    settings = {"short_side": (0,), "pairs": 3, "draws": 100}
    found = dict(attention(BoxedEvaluation(encoder, boxed, QUIET), **settings))
    pairs = choose_pairs(boxed, most=3, least=32, seed=0)
    kinds = np.array([pair.kind for pair in pairs])
    with tempfile.TemporaryFile() as file:
        own = score(boxed, pairs, EncoderMaps(encoder, 0, "dot", file), "test", {}, QUIET)
    place = score(boxed, pairs, BaselineMaps(BASELINES["gaussian"]), "test", {}, QUIET)
    start = "attention/shapes/own"

    def over_classes(scores):
        return np.mean([scores[kinds == kind].mean() for kind in range(3)])

    assert found["attention/shapes"] == found[f"{start}/within/pointing"] == own.within[:, 0].mean()
    assert found[f"{start}/within/auroc"] == pytest.approx(own.within[:, 1].mean())
    assert found[f"{start}/across/auroc"] == pytest.approx(over_classes(own.across[:, 1]))
    assert found[f"{start}/control/auroc"] == pytest.approx(over_classes(own.control[:, 1]))
    assert found[f"{start}/across/auroc/over"] == pytest.approx(over_classes((own.across - place.across)[:, 1]))
    assert found[f"{start}/across/auroc/over_control"] == pytest.approx(over_classes((own.across - own.control)[:, 1]))
    for key, value in found.items():
        if f"{key}/low" in found:
            assert found[f"{key}/low"] <= value <= found[f"{key}/high"], key
    assert found["attention/shapes/pairs"] == 8
    assert found["attention/shapes/classes"] == 3


def test_idle_blocks_of_a_new_resnet_are_counted(model):
    assert idle_blocks(create_backbone("resnet18", model_args={"channels": [8, 16, 24, 32]})) == 1
    assert idle_blocks(create_backbone("test_resnet")) == 1
    assert idle_blocks(create_backbone("test_vit")) == 0
    assert idle_blocks(load_encoder(model, device="cpu").backbone) == 0


def test_the_command_writes_a_table_and_a_figure(coco, model, tmp_path):
    sources = (model, f"random:{model}", "gaussian", "center", "area")
    call = ("eval", "attention", *sources, "--data", coco, "--out", tmp_path, "--set", "draws=50", "--set", "pairs=4")
    code, _, err = nnclr(*call, "--set", "short_side=0,300")
    assert code == 0, err
    records = json.loads((tmp_path / "results.json").read_text())
    assert [one["source"] for one in records] == [str(one) for one in sources]
    assert records[0]["settings"]["short_side"] == [0, 300]
    assert records[0]["images"] == {"images": 4, "boxes": 8}
    page = (tmp_path / "attention.md").read_text()
    shown = records[0]["values"]["attention/shapes/300/across/auroc"]
    assert f"| {model} | 300 |" in page
    assert f"{shown:.3f} [" in page
    assert page.count("| area | - |") == 1
    assert f"random:{model}: the last norm of 100% of its residual blocks has weight 0" in page
    assert f"\n{model}: the last norm" not in page
    with Image.open(tmp_path / "attention.png") as figure:
        assert figure.width > 1000
    code, _, err = nnclr(*call, "--set", "short_side=0,300")
    assert code == 0
    assert "complete already" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["attention", "pixels", "--data", "{coco}"], "feature map"),
        (["attention", "{model}", "--data", "{photos}"], "has no boxes"),
        (["attention", "{model}"], "--data"),
        (["attention", "{model}", "--data", "{coco}", "--set", "short_side=100"], "224 to 1024"),
        (["attention", "{model}", "--data", "{coco}", "--set", "short_side="], "short_side"),
        (["attention", "{model}", "--data", "{coco}", "--set", "similarity=l2"], "dot, cosine"),
        (["knn", "gaussian", "--data", "{data}"], "baseline"),
    ],
)
def test_invalid_calls_end_with_one_error(arguments, sentence, coco, model, photos, data, tmp_path):
    call = [one.format(coco=coco, model=model, photos=photos, data=data) for one in arguments]
    code, _, err = nnclr("eval", *call, "--out", tmp_path)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err
