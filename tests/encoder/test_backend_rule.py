"""The names of backends, the rule of `auto`, and networks that embed without torch."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nnclr_hub import load_encoder
from nnclr_hub.encoder import backends
from nnclr_hub.encoder.backends import open_backend, parse_backend
from nnclr_hub.errors import InvalidRequest, MissingDependency, TamperedModel
from nnclr_hub.hub.layout import CONFIG, GRAPH, read_arrays
from nnclr_hub.publish.export import export_run, probe_images

ROOT = Path(__file__).parents[2]
CROPS = probe_images(48, 3)
STARTER = "nnclr_resnet18_free_starter"
# embeds images in a new process; prints the vectors and whether that imported torch
CHILD = """
import json, sys
import numpy as np
from nnclr_hub import load_encoder
encoder = load_encoder(sys.argv[1], backend=sys.argv[2])
vectors = encoder.embed(list(np.load(sys.argv[3])))
about = [encoder.backend.name, encoder.fingerprint, encoder.embed_dim, encoder.heads, repr(encoder)]
print(json.dumps({"vectors": vectors.tolist(), "about": about, "torch": "torch" in sys.modules}))
"""


@pytest.fixture(scope="module")
def with_graph(model, tmp_path_factory) -> Path:
    """Export the model in fp16 with its graph, which takes seconds, by default; copy the folder before changing it."""
    pytest.importorskip("onnxscript")
    return export_run(model, tmp_path_factory.mktemp("graph") / "model", dtype="fp16")


def child(model: Path | str, backend: str, tmp_path: Path) -> dict:
    """Return what a new process prints that embeds CROPS; it writes nothing into the home folder.

    ONNX Runtime would write a device id there, and report to its maker.
    """
    np.save(tmp_path / "crops.npy", CROPS)
    (home := tmp_path / "home").mkdir()
    inherited = {name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")}
    environment = inherited | {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    command = [sys.executable, "-c", CHILD, str(model), backend, str(tmp_path / "crops.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    assert not [path for path in home.rglob("*") if path.is_file()]
    return json.loads(done.stdout)


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
def test_a_missing_package_and_a_gpu_are_reported(model, monkeypatch, backend, package):
    with pytest.raises(InvalidRequest):
        open_backend(backend, torch.nn.Identity(), torch.device("cuda:0"))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency):
        load_encoder(model, device="cpu", backend=backend)


# ---- auto


@pytest.mark.parametrize(
    ("hidden", "precision", "expected"),
    [
        ((), None, ("openvino-bf16", "onnx")),
        ((), "fp32", ("onnx",)),
        (("openvino",), None, ("onnx",)),
        (("openvino", "onnxruntime"), None, ("torch",)),
        (("openvino",), "bf16", ("torch-bf16",)),
    ],
)
def test_auto_follows_the_installed_packages(monkeypatch, image_files, hidden, precision, expected):
    """The vectors are torch's to a cosine of 1e-4."""
    monkeypatch.setattr(backends, "find_spec", lambda name: None if name in hidden else find_spec(name))
    encoder = load_encoder(STARTER, device="cpu", backend="auto", precision=precision)
    assert encoder.backend.name in expected
    wanted = load_encoder(STARTER, device="cpu", backend="torch").embed(image_files[:4])
    assert (encoder.embed(image_files[:4]) * wanted).sum(axis=1).min() >= 0.9999


@pytest.mark.parametrize("source", ["folder", "random:test_resnet"])
def test_auto_is_torch_for_a_network_without_a_graph(model, source):
    assert load_encoder(model if source == "folder" else source, device="cpu").backend.name == "torch"


def test_the_default_is_a_variable_or_auto(monkeypatch):
    pytest.importorskip("openvino")
    for value, expected in (("torch", "torch"), ("onnx", "onnx"), ("openvino", "openvino")):
        monkeypatch.setenv("NNCLR_BACKEND", value)
        assert load_encoder(STARTER, device="cpu").backend.name.partition("-")[0] == expected
    monkeypatch.setenv("NNCLR_BACKEND", "turbo")
    with pytest.raises(InvalidRequest):
        load_encoder(STARTER)


@pytest.mark.parametrize("backend", ["openvino", "onnx"])
def test_a_graph_whose_files_are_links_is_opened(tmp_path, backend):
    """As in the cache of the Hub."""
    pytest.importorskip("openvino")
    (tmp_path / "model").mkdir()
    for file in (ROOT / "weights" / STARTER).iterdir():
        (tmp_path / "model" / file.name).symlink_to(file)
    encoder = load_encoder(tmp_path / "model", device="cpu", backend=backend)
    torchs = load_encoder(STARTER, device="cpu", backend="torch")
    crops = probe_images(encoder.transform.preprocessing.input_size, 2)
    np.testing.assert_allclose(encoder.forward_crops(crops), torchs.forward_crops(crops), atol=1e-5)


@pytest.mark.parametrize("backend", ["openvino", "onnx"])
def test_a_model_folder_with_its_graph_needs_no_torch(with_graph, tmp_path, backend):
    """The graph refers to the weights. What it cannot do itself, such as maps, runs in torch with the same result."""
    pytest.importorskip(backend.replace("onnx", "onnxruntime"))
    folder = with_graph
    assert (folder / GRAPH).stat().st_size < 60_000
    torchs = load_encoder(folder, device="cpu", backend="torch")
    found = child(folder, backend, tmp_path)
    assert (found["torch"], found["about"][1:4]) == (False, [torchs.fingerprint, torchs.embed_dim, torchs.heads])
    np.testing.assert_allclose(found["vectors"], torchs.embed(list(CROPS)), atol=1e-5)
    other = load_encoder(folder, device="cpu", backend=backend)
    np.testing.assert_array_equal(other.tokens(list(CROPS)), torchs.tokens(list(CROPS)))
    map, wanted = (encoder.attention(CROPS[0]) for encoder in (other, torchs))
    np.testing.assert_array_equal(map.values, wanted.values)
    assert not (export_run(folder, tmp_path / "without", graph=False) / GRAPH).exists()


def test_a_graph_is_not_used_with_other_preprocessing_or_other_bytes(with_graph, tmp_path):
    """The graph contains the colors, so an edited config.json must not use it."""
    pytest.importorskip("openvino")
    folder = shutil.copytree(with_graph, tmp_path / "model")
    config = json.loads((folder / CONFIG).read_text())
    config["pretrained_cfg"]["mean"] = [0.1, 0.2, 0.3]
    (folder / CONFIG).write_text(json.dumps(config))
    torchs, other = load_encoder(folder, device="cpu"), load_encoder(folder, backend="openvino")
    assert other.fingerprint == torchs.fingerprint != load_encoder(with_graph, device="cpu").fingerprint
    np.testing.assert_allclose(other.embed(list(CROPS)), torchs.embed(list(CROPS)), atol=1e-5)
    content = bytearray((folder / GRAPH).read_bytes())
    content[-20] ^= 1
    (folder / GRAPH).write_bytes(content)
    with pytest.raises(TamperedModel):
        load_encoder(folder, backend="onnx")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int64", "uint8", "bool"])
def test_weights_are_read_without_torch_as_with_it(tmp_path, dtype):
    values = torch.arange(-6, 6).reshape(3, 4).to(getattr(torch, dtype))
    save_file({"a": values, "b": values[:0].contiguous(), "c": values[0, 0].clone()}, tmp_path / "model.safetensors")
    for name, wanted in load_file(tmp_path / "model.safetensors").items():
        found = read_arrays(tmp_path)[name]
        assert found.shape == tuple(wanted.shape)
        np.testing.assert_array_equal(found, wanted.float().numpy() if dtype == "bfloat16" else wanted.numpy())
