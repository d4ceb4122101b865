"""Which backend `auto` takes, and what backends are called."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from nnclr_hub import load_encoder
from nnclr_hub.encoder.backends import choice, parse_backend
from nnclr_hub.encoder.backends.opening import open_backend
from nnclr_hub.encoder.backends.probe_batch import probe_images
from nnclr_hub.errors import InvalidRequest, MissingDependency

CPU = torch.device("cpu")


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


def test_the_probe_images_are_the_same_each_time_and_no_noise():
    """Neighboring pixels are alike, images are not, and 8 of them are there."""
    pictures = probe_images(64)
    np.testing.assert_array_equal(pictures, probe_images(64))
    assert pictures.shape == (8, 64, 64, 3)
    flat = pictures.astype(float)
    for one in flat:
        assert np.corrcoef(one[:, 1:].ravel(), one[:, :-1].ravel())[0, 1] > 0.6
    unlike = np.corrcoef(flat.reshape(8, -1))[np.triu_indices(8, 1)]
    assert abs(unlike).max() < 0.9
