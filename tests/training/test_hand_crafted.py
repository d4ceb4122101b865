"""The floors of `nnclr eval`: vectors that nobody trained."""

import colorsys
import json

import numpy as np
import pytest
from PIL import Image, ImageDraw
from tiny_runs import nnclr

from nnclr_hub.encoder.descriptors import BINS
from nnclr_hub.encoder.hand_crafted import FLOORS


def striped(angle: str, color: tuple[int, int, int], side: int = 96) -> Image.Image:
    image = Image.new("RGB", (side, side), "white")
    draw = ImageDraw.Draw(image)
    for place in range(0, side, 12):
        draw.line([(place, 0), (place, side)] if angle == "|" else [(0, place), (side, place)], fill=color, width=5)
    return image


@pytest.mark.parametrize("name", FLOORS)
def test_vectors_have_the_stated_length_for_images_of_any_mode_and_size(name):
    floor = FLOORS[name]
    images = [striped("|", (200, 0, 0)), striped("-", (0, 0, 200), 33)]
    vectors = floor.features_each([np.asarray(one) for one in images])
    assert [one.shape for one in vectors] == [(floor.embed_dim,)] * 2
    assert all(one.dtype == np.float32 for one in vectors)
    assert np.isfinite(vectors).all()


def cosine(floor: str, one: Image.Image, other: Image.Image) -> float:
    a, b = (FLOORS[floor].describe(image) for image in (one, other))
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_hog_sees_shapes_and_color_sees_colors():
    red, blue, across = striped("|", (200, 0, 0)), striped("|", (0, 0, 200)), striped("-", (200, 0, 0))
    assert cosine("hog", red, blue) > 0.9 > cosine("hog", red, across)
    assert cosine("color", red, across) > 0.9 > cosine("color", red, blue)


def test_the_histogram_counts_each_pixel_in_its_bin():
    color = (30, 140, 220)
    vector = FLOORS["color"].describe(Image.new("RGB", (64, 64), color)).reshape(BINS)
    expected = tuple(
        min(int(value * bins), bins - 1)
        for value, bins in zip(colorsys.rgb_to_hsv(*(one / 255 for one in color)), BINS, strict=True)
    )
    assert np.argwhere(vector).tolist() == [list(expected)]
    assert vector[expected] == 1


def test_eval_compares_an_encoder_with_the_floors_on_the_same_images(data, model, tmp_path):
    sources = (model, "hog", "color", "hog+color")
    call = ("eval", "knn", *sources, "--data", data, "--out", tmp_path, "--json")
    code, shown, err = nnclr(*call)
    assert code == 0, err
    assert [one["source"] for one in json.loads(shown)][1:] == list(sources[1:])
    code, shown, err = nnclr(*call, "--set", "vectors=whiten")
    assert code == 0, err
    code, shown, err = nnclr("eval", "knn", model, "--data", data, "--out", tmp_path, "--json", "--crops", "3")
    assert code == 0, err
    assert "3 crops" in json.loads(shown)[0]["source"]
    page = (tmp_path / "results.md").read_text()
    assert all(f"| {name} |" in page for name in (*sources[1:], "hog, whiten"))
    assert page.count(", p ") == 8, "each other row is compared with the first one"
