"""Every backend gives torch's vectors, from whichever thread, by whichever way in."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch

from nnclr_hub import load_encoder
from nnclr_hub.publish.export import probe_images

CPU = torch.device("cpu")
EXACT, NEAR = ("openvino", "onnx"), ("torch-bf16", "openvino-bf16")
RESNET, VIT = ("resnet18", {"channels": [8, 16, 24, 32]}, 48), ("test_vit", {}, 160)
PAIRS = [(folder, backend) for folder in (RESNET, VIT) for backend in EXACT + NEAR]


@pytest.fixture(scope="module")
def folders(make_model):
    return [make_model(*one) for one in (RESNET, VIT)]


@pytest.fixture
def folder(request, folders):
    return folders[(RESNET, VIT).index(request.param)]


@pytest.fixture(scope="module")
def load():
    """Return `load_encoder` that exports and compiles each network once."""
    return cache(partial(load_encoder, device="cpu"))


def need(backend: str) -> None:
    """Skips where the backend's package or the processor's arithmetic is missing."""
    if "openvino" in backend:
        openvino = pytest.importorskip("openvino")
        if "bf16" in backend and "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            pytest.skip("no bfloat16 here")
    if "onnx" in backend:
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")


def crops_for(encoder, count: int) -> np.ndarray:
    return probe_images(encoder.transform.preprocessing.input_size, count)


@pytest.mark.parametrize(
    ("folder", "backend"),
    [pytest.param(*pair, marks=pytest.mark.slow) if pair == (VIT, "onnx") else pair for pair in PAIRS],
    indirect=["folder"],
)
def test_a_backend_gives_torchs_vectors_whatever_the_batch(folder, backend, load):
    need(backend)
    torchs, other = (load(folder, backend=name) for name in ("torch", backend))
    assert other.backend.name == backend
    crops = crops_for(torchs, 33)
    wanted = torchs.forward_crops(crops)
    for count in (1, 2, 7, 33):
        got = other.forward_crops(crops[:count])
        assert got.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-6)
        if backend in EXACT:
            np.testing.assert_allclose(got, wanted[:count], atol=1e-5)
        else:
            assert (got * wanted[:count]).sum(axis=1).min() > 0.999


@pytest.mark.parametrize("backend", ["openvino", "torch-bf16"])
def test_every_entry_point_uses_the_backend(model, image_files, backend, monkeypatch):
    """Images, bytes and uint8 tensors do, raw or at length 1; floats, which are transformed already, and
    feature maps do not."""
    need(backend)
    torchs, other = (load_encoder(model, device="cpu", backend=name) for name in ("torch", backend))
    assert other.fingerprint == torchs.fingerprint
    ran = []
    original = other.backend.run
    monkeypatch.setattr(other.backend, "run", lambda crops: (ran.append(len(crops)), original(crops))[1])
    pixels = torch.randint(0, 256, (3, 3, 60, 50), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for images in (image_files[:4], [image_files[0].read_bytes()], pixels):
        np.testing.assert_allclose(other.embed(images), torchs.embed(images), atol=2e-2)
    raw = np.stack(other.features_each(image_files[:4]))
    assert (np.linalg.norm(raw, axis=1) > 1.01).all()
    np.testing.assert_allclose(raw, np.stack(torchs.features_each(image_files[:4])), rtol=0.1, atol=0.05)
    assert ran == [4, 1, 3, 4]
    x = torch.stack([other.transform(path) for path in image_files[:2]])
    floats, maps = other.embed(x), other.tokens(image_files[:2])
    if backend == "openvino":  # torch-bf16 runs both with torch, in its own precision
        np.testing.assert_array_equal(floats, torchs.embed(x))
        np.testing.assert_array_equal(maps, torchs.tokens(image_files[:2]))
    assert ran == [4, 1, 3, 4]


@pytest.mark.parametrize("folder", [RESNET], indirect=True, ids=["resnet"])
@pytest.mark.parametrize("backend", ["torch", "openvino", "onnx", "torch-bf16"])
def test_many_threads_get_what_one_gets(folder, backend, load):
    need(backend)
    encoder = load(folder, backend=backend)
    batches = [probe_images(48, 8)[i:] for i in range(8)]
    wanted = [encoder.forward_crops(batch) for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        for turn, got in enumerate(pool.map(encoder.forward_crops, batches * 8)):
            np.testing.assert_allclose(got, wanted[turn % 8], atol=1e-6)
    first = encoder.backend.run(batches[0])
    before = first.copy()
    encoder.backend.run(batches[0][::-1].copy())
    np.testing.assert_array_equal(first, before)  # the next batch does not write over it


@pytest.mark.slow
def test_a_compiled_network_gives_torchs_vectors(model):
    torchs, compiled = (load_encoder(model, device="cpu", backend=name) for name in ("torch", "compile"))
    crops = crops_for(torchs, 9)
    for count in (2, 1, 9, 5):
        np.testing.assert_allclose(
            compiled.forward_crops(crops[:count]), torchs.forward_crops(crops[:count]), atol=1e-5
        )


@pytest.mark.slow
def test_openvino_sends_no_telemetry(model, tmp_path):
    """It would do so on import: no host name is looked up, and no id is written to the home folder."""
    need("openvino")
    code = (
        "import socket, sys, time\n"
        "asked = []\n"
        "socket.getaddrinfo = lambda host, *rest, **more: asked.append(host) or []\n"
        "from nnclr_hub import load_encoder\n"
        "load_encoder(sys.argv[1], device='cpu', backend='openvino')\n"
        "time.sleep(1)\n"
        "print(asked, [name for name in sys.modules if 'telemetry' in name and not name.startswith('openvino.tools')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, model],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env={key: value for key, value in os.environ.items() if key != "CI"} | {"HOME": str(tmp_path)},
    )
    assert done.stdout.strip() == "[] []"
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_signal_after_several_openvino_networks_is_harmless(model):
    need("openvino")
    code = (
        "import gc, signal, sys\n"
        "from nnclr_hub import load_encoder\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('heard'))\n"
        "made = [load_encoder(sys.argv[1], device='cpu', backend='openvino') for _ in range(2)]\n"
        "while made:\n"
        "    del made[0]\n"
        "    gc.collect()\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert (done.returncode, done.stdout.split()) == (0, ["heard"] * 2), done.stderr
