"""Shapes and colors in addition to the vectors of a network."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.color import rgb2hsv
from skimage.feature import hog
from tiny_runs import nnclr

from nnclr_hub import load_encoder, open_store
from nnclr_hub.encoder.descriptors import BINS, PARTS
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.publish.export import export_onnx

SETTINGS = {"orientations": 9, "cells_per_block": (2, 2), "block_norm": "L2-Hys"}


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def shape(crop: np.ndarray) -> np.ndarray:
    """Describe a crop with scikit-image."""
    image = Image.fromarray(crop).resize((64, 64), Image.Resampling.BILINEAR)
    return unit(hog(np.asarray(image.convert("L")), pixels_per_cell=(16, 16), **SETTINGS))


def color(image: np.ndarray) -> np.ndarray:
    index = np.minimum((rgb2hsv(image) * BINS).astype(int), np.array(BINS) - 1).reshape(-1, 3)
    counts = np.bincount(np.ravel_multi_index(tuple(index.T), BINS), minlength=int(np.prod(BINS)))
    return np.sqrt(counts / counts.sum())


@pytest.mark.parametrize("cell", [8, 16, 12])
def test_histograms_of_gradients_are_those_of_scikit_image(cell, image_files):
    from nnclr_hub.encoder.descriptors import hog as ours

    images = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in image_files[:4]])
    images[3] = 7  # without any gradient
    grays = [np.asarray(Image.fromarray(one).convert("L")) for one in images]
    expected = [hog(gray, pixels_per_cell=(cell, cell), **SETTINGS) for gray in grays]
    assert ours(images, cell) == pytest.approx(np.stack(expected), abs=1e-6)


def test_histograms_of_colors_are_those_of_scikit_image():
    """Up to some pixels at the borders of bins, where scikit-image rounds."""
    images = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
    images[2] = [[0, 0, 0]]
    difference = PARTS["color"].describe(images) ** 2 - np.stack([color(one) for one in images]) ** 2
    assert np.abs(difference).sum(axis=1).max() < 0.01


def test_vectors_join_the_network_and_the_parts(model, image_files):
    network, joined = load_encoder(model), load_encoder(f"{model}+shape+color")
    assert joined.embed_dim == network.embed_dim + 324 + 256
    crops = [network.prepare(path) for path in image_files[:3]]
    length = PARTS["color"].length
    whole = np.sqrt(2 + length**2)
    expected = np.hstack([network.embed(image_files[:3]), np.stack([shape(crop) for crop in crops])]) / whole
    found = joined.embed(image_files[:3])
    assert found[:, :-256] == pytest.approx(expected, abs=1e-5)
    assert np.linalg.norm(found[:, -256:], axis=1) == pytest.approx(np.full(3, length / whole), abs=1e-5)
    parts = joined.features_each(image_files[:1])[0]
    assert np.linalg.norm(parts[: network.embed_dim]) == pytest.approx(1, abs=1e-5)
    assert joined.embed(image_files[:2], crops=3).shape == (2, joined.embed_dim)
    pixels = torch.from_numpy(np.stack([np.asarray(Image.open(path)) for path in image_files[:3]])).permute(0, 3, 1, 2)
    assert joined.embed(pixels) == pytest.approx(found, abs=1e-5)
    assert joined.tokens(image_files[:1]).shape == network.tokens(image_files[:1]).shape


def test_the_parts_belong_to_the_identity_of_the_vectors(model, monkeypatch):
    sources = ["", "+shape", "+color", "+shape+color", "+shape?channels=2,1,0"]
    encoders = [load_encoder(f"{model}{one}") for one in sources]
    assert len({one.fingerprint for one in encoders}) == len(sources)
    assert load_encoder(f"{model}+color+shape").fingerprint == encoders[3].fingerprint
    assert load_encoder(encoders[4].name).fingerprint == encoders[4].fingerprint
    assert load_encoder(f"{model}+shape", backend="torch-bf16").fingerprint == encoders[1].fingerprint
    before = [one.fingerprint for one in encoders[1:3]]
    monkeypatch.setitem(PARTS, "color", replace(PARTS["color"], length=0.5))
    after = [load_encoder(f"{model}{one}").fingerprint for one in sources[1:3]]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False]


def test_a_folder_whose_name_ends_like_a_part_is_itself(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "mine+color")
    shutil.copytree(model, tmp_path / "mine")
    for source in (folder, f"local-dir:{folder}"):
        assert load_encoder(source).fingerprint == load_encoder(model).fingerprint
    assert load_encoder(f"{folder}+shape").fingerprint == load_encoder(f"{model}+shape").fingerprint


@pytest.mark.parametrize("source", ["{model}+shape+shape", "python:{file}:encoder+shape"])
def test_parts_that_do_not_fit_are_refused(source, model, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "import torch\nfrom nnclr_hub import wrap_encoder\n"
        "encoder = wrap_encoder(lambda x: x.mean((2, 3)), lambda image: torch.zeros(3, 8, 8), 'mean', 3)\n"
    )
    with pytest.raises(InvalidRequest):
        load_encoder(source.format(model=model, file=file))


def test_float_tensors_and_exported_files_have_no_parts(model, tmp_path):
    with pytest.raises(InvalidRequest):
        load_encoder(f"{model}+shape").embed(torch.zeros(1, 3, 48, 48))
    with pytest.raises(InvalidRequest):
        export_onnx(f"{model}+shape", tmp_path / "joined.onnx")
    assert not (tmp_path / "joined.onnx").exists()


def test_a_collection_is_indexed_and_searched_with_them(model, photos, image_files, tmp_path):
    source, store = f"{model}+shape", tmp_path / "store"
    code, _, err = nnclr("index", photos, "--collection", "photos", "--store", store, "--model", source)
    assert code == 0, err
    code, shown, err = nnclr("search", image_files[0], "--collection", "photos", "--store", store, "--json")
    assert code == 0, err
    assert json.loads(shown)["matches"][0]["score"] == pytest.approx(1, abs=1e-3)
    with open_store(store) as opened:
        spec = opened.get("photos").spec
    assert (spec.dim, spec.fingerprint) == (load_encoder(source).embed_dim, load_encoder(source).fingerprint)
    code, _, err = nnclr("index", photos, "--collection", "photos", "--store", store, "--model", model)
    assert code == 1, err
