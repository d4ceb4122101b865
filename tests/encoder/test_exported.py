"""A network that was exported once: the next process embeds without torch, with the same vectors."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nnclr_hub import load_encoder
from nnclr_hub.encoder.backends.probe_batch import probe_images
from nnclr_hub.errors import InvalidRequest, TamperedModel
from nnclr_hub.hub.layout import CONFIG, GRAPH, read_arrays, read_config
from nnclr_hub.publish.export import export_run

CROPS = probe_images(48, 3)
STARTER = "nnclr_resnet18_free_starter"
# embeds images in a new process; prints the vectors and whether that imported torch
CHILD = """
import json, sys
import numpy as np
from nnclr_hub import load_encoder
encoder = load_encoder(sys.argv[1], backend=sys.argv[2], images=int(sys.argv[3]) or None)
images = list(np.load(sys.argv[4]))
vectors = encoder.embed(images)
about = [encoder.backend.name, encoder.fingerprint, encoder.embed_dim, encoder.heads, repr(encoder)]
print(json.dumps({"vectors": vectors.tolist(), "about": about, "torch": "torch" in sys.modules}))
"""


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def with_graph(model, tmp_path_factory) -> Path:
    """Export the model with its graph, which takes seconds; copy the folder before changing it."""
    pytest.importorskip("onnxscript")
    return export_run(model, tmp_path_factory.mktemp("graph") / "model", graph=True)


def child(model: Path | str, backend: str, tmp_path: Path, images: int = 0) -> dict:
    """Return what a new process prints that embeds CROPS."""
    np.save(tmp_path / "crops.npy", CROPS)
    command = [sys.executable, "-c", CHILD, str(model), backend, str(images), str(tmp_path / "crops.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    return json.loads(done.stdout)


def exported(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "networks").glob("*/network.*"))


@pytest.mark.parametrize("backend", ["openvino", pytest.param("onnx", marks=pytest.mark.slow)])
def test_the_second_process_embeds_without_torch(model, tmp_path, backend):
    pytest.importorskip(backend if backend == "openvino" else "onnxscript")
    torchs = load_encoder(model, device="cpu")
    first = load_encoder(model, backend=backend)
    found = child(model, backend, tmp_path)
    assert not found["torch"]
    assert found["about"] == [backend, torchs.fingerprint, torchs.embed_dim, torchs.heads, repr(first)]
    np.testing.assert_allclose(found["vectors"], torchs.embed(list(CROPS)), atol=1e-5)


@pytest.mark.parametrize("architecture", [("resnet18", {"channels": [8, 16, 24, 32]}, 48), ("test_vit", {}, 160)])
def test_an_exported_network_does_all_that_torch_does(make_model, image_files, architecture):
    """What it cannot do itself, such as maps and tensors, runs in torch, with the same result."""
    pytest.importorskip("openvino")
    model = make_model(*architecture)
    load_encoder(model, backend="openvino")
    torchs, other = load_encoder(model, device="cpu"), load_encoder(model, backend="openvino")
    assert (other.heads, other.weight_bytes, str(other.device)) == (torchs.heads, torchs.weight_bytes, "cpu")
    np.testing.assert_array_equal(other.tokens(image_files[:2]), torchs.tokens(image_files[:2]))
    map, wanted = (encoder.attention(image_files[0]) for encoder in (other, torchs))
    np.testing.assert_array_equal(map.values, wanted.values)
    x = torch.stack([other.transform(path) for path in image_files[:2]])
    np.testing.assert_array_equal(other.embed(x), torchs.embed(x))
    pixels = torch.randint(0, 256, (2, 3, 60, 50), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(other.embed(pixels), torchs.embed(pixels), atol=1e-5)


@pytest.mark.parametrize("damage", ["weights", "record", "half"])
def test_a_damaged_export_is_made_again(model, tmp_path, damage):
    pytest.importorskip("openvino")
    wanted = load_encoder(model, backend="openvino").embed(list(CROPS))
    weights, record, _ = exported(tmp_path)
    if damage == "weights":
        content = bytearray(weights.read_bytes())
        content[len(content) // 2] ^= 1
        weights.write_bytes(content)
    else:
        record.write_text("{" if damage == "half" else '{"fingerprint": 3, "sha256": {}}')
    again = load_encoder(model, backend="openvino")
    np.testing.assert_allclose(again.embed(list(CROPS)), wanted, atol=1e-6)
    assert not child(model, "openvino", tmp_path)["torch"]


def test_other_weights_have_their_own_export(make_model, tmp_path):
    pytest.importorskip("openvino")
    one, other = make_model(seed=0), make_model(seed=1)
    for folder in (one, other, one):
        encoder = load_encoder(folder, backend="openvino")
        np.testing.assert_allclose(
            encoder.embed(list(CROPS)), load_encoder(folder, device="cpu").embed(list(CROPS)), atol=1e-5
        )
    assert len(exported(tmp_path)) == 6


def test_it_works_without_a_writable_cache(model, tmp_path, monkeypatch):
    pytest.importorskip("openvino")
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "file"))
    wanted = load_encoder(model, device="cpu").embed(list(CROPS))
    for _ in range(2):
        np.testing.assert_allclose(load_encoder(model, backend="openvino").embed(list(CROPS)), wanted, atol=1e-5)


def test_a_device_that_does_not_exist_is_refused_with_an_export_too(model):
    pytest.importorskip("openvino")
    load_encoder(model, backend="openvino")
    with pytest.raises(InvalidRequest):
        load_encoder(model, backend="openvino", device="nonsense")


@pytest.mark.parametrize("backend", ["openvino", "onnx"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_a_model_folder_with_its_graph_needs_no_export(model, with_graph, tmp_path, dtype, backend):
    """The graph refers to the weights. Another export of the folder leaves it out."""
    pytest.importorskip(backend.replace("onnx", "onnxruntime"))
    folder = export_run(model, tmp_path / "with", dtype=dtype, graph=True) if dtype == "fp16" else with_graph
    assert (folder / GRAPH).stat().st_size < 60_000
    torchs = load_encoder(folder, device="cpu")
    found = child(folder, backend, tmp_path)
    assert (found["torch"], found["about"][1:4]) == (False, [torchs.fingerprint, torchs.embed_dim, torchs.heads])
    np.testing.assert_allclose(found["vectors"], torchs.embed(list(CROPS)), atol=1e-5)
    assert not exported(tmp_path)
    without = export_run(folder, tmp_path / "without")
    assert not (without / GRAPH).exists()
    assert read_config(without).nnclr.keys() == read_config(model).nnclr.keys()


def test_a_graph_that_was_changed_is_refused(with_graph, tmp_path):
    folder = shutil.copytree(with_graph, tmp_path / "model")
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


def test_a_graph_is_not_used_with_other_preprocessing(model, with_graph, tmp_path):
    """The graph contains the colors, so an edited config.json must not use it."""
    folder = shutil.copytree(with_graph, tmp_path / "model")
    config = json.loads((folder / CONFIG).read_text())
    config["pretrained_cfg"]["mean"] = [0.1, 0.2, 0.3]
    (folder / CONFIG).write_text(json.dumps(config))
    torchs, other = load_encoder(folder, device="cpu"), load_encoder(folder, backend="onnx")
    assert other.fingerprint == torchs.fingerprint != load_encoder(model, device="cpu").fingerprint
    np.testing.assert_allclose(other.embed(list(CROPS)), torchs.embed(list(CROPS)), atol=1e-5)


def test_weights_that_changed_after_the_start_are_refused(make_model, image_files, tmp_path):
    """The vectors keep their fingerprint; a map of other weights would not belong to them."""
    pytest.importorskip("openvino")
    folder = export_run(make_model(seed=0), tmp_path / "run")
    load_encoder(folder, backend="openvino")
    encoder = load_encoder(folder, backend="openvino")
    export_run(make_model(seed=1), folder)
    assert encoder.embed(image_files[:1]).shape == (1, encoder.embed_dim)
    with pytest.raises(TamperedModel):
        encoder.tokens(image_files[:1])


def test_onnx_runtime_sends_no_telemetry(tmp_path):
    """It would write a device id into the home folder, and report to its maker."""
    np.save(tmp_path / "crops.npy", CROPS)
    home = tmp_path / "home"
    home.mkdir()
    inherited = {name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "CI")}
    command = [sys.executable, "-c", CHILD, STARTER, "onnx", "0", str(tmp_path / "crops.npy")]
    subprocess.run(
        command,
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env=inherited | {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")},
    )
    assert not [path for path in home.rglob("*") if path.is_file()]
