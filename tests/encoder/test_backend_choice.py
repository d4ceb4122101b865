"""The names of backends, and the choice of `auto`."""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from nnclr_hub import load_encoder
from nnclr_hub.encoder import loader
from nnclr_hub.encoder.backends import choice, parse_backend
from nnclr_hub.encoder.backends.choice import open_backend
from nnclr_hub.encoder.backends.probe_batch import probe_images
from nnclr_hub.errors import InvalidRequest, MissingDependency

ROOT = Path(__file__).parents[2]
STARTER = "nnclr_resnet18_free_starter"


# ---- names


@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [
        ("torch", None, ("torch", "fp32")),
        ("torch", "bf16", ("torch", "bf16")),
        ("openvino-bf16", None, ("openvino", "bf16")),
        ("openvino-bf16", "bf16", ("openvino", "bf16")),
        ("auto", None, ("auto", None)),
        ("auto", "fp32", ("auto", "fp32")),
    ],
)
def test_a_name_may_contain_the_precision(name, precision, expected):
    assert parse_backend(name, precision) == expected


@pytest.mark.parametrize(
    ("name", "precision"), [("tensorflow", None), ("torch", "fp8"), ("torch-bf16", "fp32"), ("onnx", "bf16")]
)
def test_an_unknown_backend_or_precision_is_refused(model, name, precision):
    with pytest.raises(InvalidRequest, match=precision or name):
        load_encoder(model, device="cpu", backend=name, precision=precision)


@pytest.mark.parametrize(("backend", "package"), [("openvino", "openvino"), ("onnx", "onnxscript")])
def test_a_missing_package_is_reported(model, monkeypatch, tmp_path, backend, package):
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path))  # a network that was exported before would need no exporter
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency):
        load_encoder(model, device="cpu", backend=backend)


@pytest.mark.parametrize("backend", ["openvino", "onnx"])
def test_cpu_backends_refuse_a_gpu(backend):
    with pytest.raises(InvalidRequest):
        open_backend(backend, torch.nn.Identity(), torch.device("cuda:0"))


# ---- auto


def opened(source, tmp_path, monkeypatch, hidden=(), **options):
    """Return the encoder that `auto` opens in an empty cache, without the hidden packages."""
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path))
    for module in (choice, loader):
        monkeypatch.setattr(module, "find_spec", lambda name: None if name in hidden else find_spec(name))
    return load_encoder(source, device="cpu", backend="auto", **options)


@pytest.mark.parametrize(
    ("hidden", "precision", "expected"),
    [
        ((), None, ("openvino-bf16", "openvino")),
        ((), "fp32", ("openvino",)),
        (("openvino",), None, ("onnx",)),
        (("openvino", "onnxruntime"), None, ("torch",)),
        (("openvino",), "bf16", ("torch-bf16",)),
    ],
)
def test_auto_follows_the_installed_packages_for_a_model_folder_with_its_graph(
    tmp_path, monkeypatch, image_files, hidden, precision, expected
):
    """The vectors are torch's to a cosine of 1e-4."""
    pytest.importorskip("openvino")
    encoder = opened(STARTER, tmp_path, monkeypatch, hidden, precision=precision)
    assert encoder.backend.name in expected
    assert not list(tmp_path.rglob("network.*")), "nothing is exported"
    wanted = load_encoder(STARTER, device="cpu", backend="torch").embed(image_files[:4])
    assert (encoder.embed(image_files[:4]) * wanted).sum(axis=1).min() >= 0.9999


@pytest.mark.parametrize("source", ["folder", "random:test_resnet"])
@pytest.mark.parametrize(("images", "exports"), [(None, False), (choice.FEW, False), (choice.MANY, True)])
def test_auto_exports_a_network_only_for_many_images(model, tmp_path, monkeypatch, source, images, exports):
    pytest.importorskip("openvino")
    encoder = opened(model if source == "folder" else source, tmp_path, monkeypatch, images=images)
    assert encoder.backend.name.startswith("openvino") == exports
    again = opened(model, tmp_path, monkeypatch)
    assert again.backend.name.startswith("openvino") == (exports and source == "folder"), "it was kept for later starts"


def test_auto_rejects_other_vectors(model, tmp_path, monkeypatch):
    pytest.importorskip("openvino")
    monkeypatch.setattr(choice, "MIN_COSINE", 1.1)
    assert opened(model, tmp_path, monkeypatch, images=choice.MANY).backend.name == "torch"


def test_the_default_is_a_variable_or_auto(tmp_path, monkeypatch):
    pytest.importorskip("openvino")
    for value, expected in (("torch", "torch"), ("onnx", "onnx"), ("", "openvino")):
        monkeypatch.setenv("NNCLR_BACKEND", value)
        assert load_encoder(STARTER, device="cpu").backend.name.partition("-")[0] == expected
    monkeypatch.setenv("NNCLR_BACKEND", "turbo")
    with pytest.raises(InvalidRequest):
        load_encoder(STARTER)


@pytest.mark.parametrize("backend", ["openvino", "onnx"])
def test_a_graph_whose_files_are_links_is_opened(tmp_path, monkeypatch, backend):
    """As in the cache of the Hub; it is not exported again."""
    pytest.importorskip("openvino")
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    for file in (ROOT / "weights" / STARTER).iterdir():
        (tmp_path / "model" / file.name).symlink_to(file)
    encoder = load_encoder(tmp_path / "model", device="cpu", backend=backend)
    torchs = load_encoder(STARTER, device="cpu", backend="torch")
    crops = probe_images(encoder.transform.preprocessing.input_size, 2)
    np.testing.assert_allclose(encoder.forward_crops(crops), torchs.forward_crops(crops), atol=1e-5)
    assert not list((tmp_path / "cache").rglob("network.*"))


def test_the_probe_images_are_reproducible_and_not_noise():
    """Adjacent pixels are similar, different images are not."""
    images = probe_images(64)
    np.testing.assert_array_equal(images, probe_images(64))
    assert images.shape == (8, 64, 64, 3)
    flat = images.astype(float)
    for one in flat:
        assert np.corrcoef(one[:, 1:].ravel(), one[:, :-1].ravel())[0, 1] > 0.6
    unlike = np.corrcoef(flat.reshape(8, -1))[np.triu_indices(8, 1)]
    assert abs(unlike).max() < 0.9
