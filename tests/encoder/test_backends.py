"""Every backend gives torch's vectors; `auto` takes the fastest that does, and remembers it."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F

from nnclr_hub import load_encoder
from nnclr_hub.encoder.backends import choice, parse_backend
from nnclr_hub.encoder.backends.opening import open_backend
from nnclr_hub.encoder.backends.probe_batch import probe_pictures
from nnclr_hub.errors import InvalidRequest, MissingDependency

CPU = torch.device("cpu")
EXACT, NEAR = ("openvino", "onnx"), ("torch-bf16", "openvino-bf16")


@pytest.fixture(scope="module", params=[("resnet18", {"channels": [8, 16, 24, 32]}, 48), ("test_vit", {}, 160)])
def folder(request, make_model):
    return make_model(*request.param)


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
    return probe_pictures(encoder.transform.preprocessing.input_size, count)


def test_the_default_is_torch_and_gives_timms_vectors(folder):
    """timm's network on what numpy normalises."""
    encoder = load_encoder(folder, device="cpu")
    assert (encoder.backend.name, encoder.backend.buckets, encoder.precision) == ("torch", None, "fp32")
    crops = crops_for(encoder, 5)
    colours = encoder.transform.preprocessing
    x = torch.from_numpy(((crops / 255 - colours.mean) / colours.std).astype(np.float32)).permute(0, 3, 1, 2)
    with torch.no_grad():
        wanted = F.normalize(timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(x))
    np.testing.assert_allclose(encoder.forward_crops(crops), wanted, atol=1e-5)


@pytest.mark.parametrize("backend", EXACT + NEAR)
def test_a_backend_gives_torchs_vectors_whatever_the_batch(folder, backend):
    need(backend)
    torchs, other = (load_encoder(folder, device="cpu", backend=name) for name in ("torch", backend))
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
def test_every_way_in_goes_through_the_backend(model, pictures, backend, monkeypatch):
    """Pictures, bytes and uint8 tensors do, raw or at length 1; floats, which are transformed already, and
    feature maps do not."""
    need(backend)
    torchs, other = (load_encoder(model, device="cpu", backend=name) for name in ("torch", backend))
    ran = []
    original = other.backend.run
    monkeypatch.setattr(other.backend, "run", lambda crops: (ran.append(len(crops)), original(crops))[1])
    pixels = torch.randint(0, 256, (3, 3, 60, 50), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for images in (pictures[:4], [pictures[0].read_bytes()], pixels):
        np.testing.assert_allclose(other.embed(images), torchs.embed(images), atol=2e-2)
    raw = np.stack(other.features_each(pictures[:4]))
    assert (np.linalg.norm(raw, axis=1) > 1.01).all()
    np.testing.assert_allclose(raw, np.stack(torchs.features_each(pictures[:4])), rtol=0.1, atol=0.05)
    assert ran == [4, 1, 3, 4]
    other.embed(torch.stack([other.transform(path) for path in pictures[:2]]))
    other.tokens(pictures[:2])
    assert ran == [4, 1, 3, 4]


def test_feature_maps_and_floats_stay_with_torch_in_float32(model, pictures):
    need("openvino-bf16")
    torchs, other = (load_encoder(model, device="cpu", backend=name) for name in ("torch", "openvino-bf16"))
    np.testing.assert_array_equal(other.tokens(pictures[:2]), torchs.tokens(pictures[:2]))
    x = torch.stack([torchs.transform(path) for path in pictures[:2]])
    np.testing.assert_array_equal(other.embed(x), torchs.embed(x))


def test_the_fingerprint_is_the_networks_not_the_backends(model):
    need("openvino")
    one, other = (load_encoder(model, device="cpu", backend=name) for name in ("torch", "openvino"))
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize("backend", ["openvino", "onnx", "torch-bf16"])
def test_many_threads_get_what_one_gets(model, backend):
    need(backend)
    encoder = load_encoder(model, device="cpu", backend=backend)
    batches = [probe_pictures(48, 8)[i:] for i in range(8)]
    wanted = [encoder.forward_crops(batch) for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        for turn, got in enumerate(pool.map(encoder.forward_crops, batches * 8)):
            np.testing.assert_allclose(got, wanted[turn % 8], atol=1e-6)


def test_a_result_is_the_callers_own(model):
    """The next batch does not write over it."""
    need("openvino")
    encoder = load_encoder(model, device="cpu", backend="openvino")
    crops = probe_pictures(48, 4)
    first = encoder.backend.run(crops)
    before = first.copy()
    encoder.backend.run(crops[::-1])
    np.testing.assert_array_equal(first, before)


@pytest.mark.slow
def test_a_compiled_network_gives_torchs_vectors(model):
    torchs, compiled = (load_encoder(model, device="cpu", backend=name) for name in ("torch", "compile"))
    crops = crops_for(torchs, 9)
    for count in (2, 1, 9, 5):
        np.testing.assert_allclose(
            compiled.forward_crops(crops[:count]), torchs.forward_crops(crops[:count]), atol=1e-5
        )


@pytest.mark.slow
def test_openvino_tells_nobody_that_it_is_used(model, tmp_path):
    """It would, on import: with no name looked up and no number written into the home folder, it did not."""
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


# ---- names


@pytest.mark.parametrize(
    ("name", "precision", "meant"),
    [
        ("torch", None, ("torch", "fp32")),
        ("torch", "bf16", ("torch", "bf16")),
        ("openvino-bf16", None, ("openvino", "bf16")),
        ("openvino-bf16", "bf16", ("openvino", "bf16")),
        ("auto", None, ("auto", None)),
        ("auto", "fp32", ("auto", "fp32")),
    ],
)
def test_a_name_may_carry_the_precision(name, precision, meant):
    assert parse_backend(name, precision) == meant


@pytest.mark.parametrize(
    ("name", "precision", "sentence"),
    [
        ("tensorflow", None, "tensorflow"),
        ("torch", "fp8", "fp8"),
        ("torch-bf16", "fp32", "cannot have precision"),
        ("onnx", "bf16", "not in bf16"),
    ],
)
def test_a_backend_that_is_none_is_explained(model, name, precision, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        load_encoder(model, device="cpu", backend=name, precision=precision)


@pytest.mark.parametrize(("backend", "package"), [("openvino", "openvino"), ("onnx", "onnxscript")])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(model, monkeypatch, backend, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency, match=rf"pip install 'nnclr_hub\[{backend}\]'"):
        load_encoder(model, device="cpu", backend=backend)


@pytest.mark.parametrize("backend", ["openvino", "onnx"])
def test_what_runs_on_the_processor_alone_refuses_a_gpu(backend):
    with pytest.raises(InvalidRequest, match="runs on the CPU"):
        open_backend(backend, torch.nn.Identity(), torch.device("cuda:0"))


# ---- auto


@dataclass
class Made:
    """A backend that turns pixels into vectors as told, and as slowly."""

    name: str
    error: float = 0.0
    seconds: float = 0.0
    precision: str = "fp32"
    buckets: None = None
    memory: None = None
    ran: list[int] = field(default_factory=list)

    def run(self, crops: np.ndarray) -> np.ndarray:
        import time

        time.sleep(self.seconds)
        self.ran.append(len(crops))
        vectors = crops.reshape(len(crops), -1)[:, :64].astype(np.float32)
        vectors[:, 0] += self.error * np.linalg.norm(vectors, axis=1)
        return vectors


def chosen(made: dict[str, Made], monkeypatch, identity: str) -> tuple[str, list[str]]:
    """What is taken of these, and which were opened."""
    opened = []

    def open_named(name: str) -> Made:
        opened.append(name)
        if name not in made:
            raise MissingDependency(f"{name} is not installed.")
        return made[name]

    monkeypatch.setattr(choice, "candidates", lambda device, precision: ["torch", "torch-bf16", "openvino", "onnx"])
    return choice.choose(open_named, 16, CPU, None, identity).name, opened


def test_auto_takes_the_fastest_whose_vectors_are_torchs(monkeypatch):
    """Faster still but wrong, or not to be opened: not taken. And the next time nothing is measured."""
    made = {
        "torch": Made("torch", seconds=0.06),
        "torch-bf16": Made("torch-bf16", error=0.02, seconds=0.02),
        "openvino": Made("openvino", error=0.1),
    }
    assert chosen(made, monkeypatch, "first")[0] == "torch-bf16"
    for one in made.values():
        one.ran.clear()
    assert chosen(made, monkeypatch, "first") == ("torch-bf16", ["torch-bf16"])
    assert not made["torch-bf16"].ran
    assert chosen({"torch": made["torch"]}, monkeypatch, "first")[0] == "torch"  # what was chosen is gone since
    assert len(chosen(made, monkeypatch, "another encoder")[1]) > 1


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"name": 3}', b'{"name": "../../x"}', b"\xff\xfe", b"null"])
def test_a_damaged_memory_of_the_choice_is_ignored(monkeypatch, damage):
    made = {"torch": Made("torch", seconds=0.02), "openvino": Made("openvino")}
    identity = f"damage {damage!r}"
    assert chosen(made, monkeypatch, identity)[0] == "openvino"
    (place,) = [
        path
        for path in (choice.cache_folder() / "backends").glob("*.json")
        if path.name == f"{choice._key(identity, CPU, choice.candidates(CPU, None))}.json"
    ]
    place.write_bytes(damage)
    name, opened = chosen(made, monkeypatch, identity)
    assert name == "openvino"
    assert len(opened) > 1
    assert json.loads(place.read_text())["name"] == "openvino"


def test_auto_works_where_nothing_can_be_kept(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "file"))
    made = {"torch": Made("torch", seconds=0.02), "openvino": Made("openvino")}
    assert chosen(made, monkeypatch, "anything")[0] == "openvino"


@pytest.mark.slow
def test_auto_on_a_real_network_is_one_of_the_candidates_and_near(model, pictures):
    """In a process of its own, as a first start is."""
    code = (
        "import sys, numpy as np\n"
        "from nnclr_hub import load_encoder\n"
        "auto, torchs = (load_encoder(sys.argv[1], device='cpu', backend=name) for name in ('auto', 'torch'))\n"
        "print(auto.backend.name, (auto.embed(sys.argv[2:]) * torchs.embed(sys.argv[2:])).sum(axis=1).min())\n"
    )
    command = [sys.executable, "-c", code, str(model), *map(str, pictures[:8])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    name, cosine = done.stdout.split()
    assert name in choice.candidates(CPU, None)
    assert float(cosine) >= 0.999


def test_the_probe_pictures_are_the_same_each_time_and_no_noise():
    """Neighbouring pixels are alike, pictures are not, and 8 of them are there."""
    pictures = probe_pictures(64)
    np.testing.assert_array_equal(pictures, probe_pictures(64))
    assert pictures.shape == (8, 64, 64, 3)
    flat = pictures.astype(float)
    for one in flat:
        assert np.corrcoef(one[:, 1:].ravel(), one[:, :-1].ravel())[0, 1] > 0.6
    unlike = np.corrcoef(flat.reshape(8, -1))[np.triu_indices(8, 1)]
    assert abs(unlike).max() < 0.9


def test_vectors_that_are_not_finite_are_as_far_as_can_be():
    rows = np.ones((2, 3), np.float32)
    broken = rows.copy()
    broken[1, 0] = np.nan
    assert choice.worst_cosine(broken, rows) == -1
    assert choice.worst_cosine(rows * 2, rows) == pytest.approx(1)


@pytest.mark.slow
def test_a_signal_is_survived_after_several_openvino_networks_have_gone(model):
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


@pytest.mark.parametrize("count", [1, 3, 16, 64, 70])
def test_graphs_of_a_few_sizes_serve_any_batch(make_model, count, monkeypatch):
    """The way a GPU goes, on the CPU and without compilation: cut, filled up, and the filling dropped."""
    from nnclr_hub.encoder.backends import with_torch

    encoder, sizes = load_encoder(make_model("test_resnet", {}, 32), device="cpu"), []
    monkeypatch.setattr(torch, "compile", lambda network, **_: lambda x: sizes.append(len(x)) or network(x))
    backend = with_torch.CompileBackend(encoder.backend._network, CPU, "fp32")
    crops = crops_for(encoder, count)
    np.testing.assert_allclose(backend._run_graphs(crops), encoder.backend.run(crops), atol=1e-5)
    assert set(sizes) <= set(with_torch.GRAPHS)
