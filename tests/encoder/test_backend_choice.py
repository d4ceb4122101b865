"""The names of backends, and the choice of `auto`."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from nnclr_hub import load_encoder
from nnclr_hub.encoder.backends import choice, parse_backend
from nnclr_hub.encoder.backends.choice import open_backend
from nnclr_hub.encoder.backends.probe_batch import probe_images
from nnclr_hub.errors import InvalidRequest, MissingDependency

CPU = torch.device("cpu")


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


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> list[float]:
    """Measure by a clock that only the backends below advance, so that a busy machine changes no choice."""
    now = [0.0]
    monkeypatch.setattr(choice, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(Made, "clock", now)
    return now


@dataclass
class Made:
    """A backend with a given error and duration."""

    clock: ClassVar[list[float]] = [0.0]

    name: str
    error: float = 0.0
    seconds: float = 0.0
    precision: str = "fp32"
    buckets: None = None
    memory: None = None
    ran: list[int] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)  # by other load, of the first runs

    def run(self, crops: np.ndarray) -> np.ndarray:
        self.clock[0] += self.seconds + (self.delays.pop(0) if self.delays else 0.0)
        self.ran.append(len(crops))
        vectors = crops.reshape(len(crops), -1)[:, :64].astype(np.float32)
        vectors[:, 0] += self.error * np.linalg.norm(vectors, axis=1)
        return vectors


def chosen(made: dict[str, Made], fingerprint: str) -> tuple[str, list[str]]:
    """Return the name of the chosen backend, and the names of those that were opened."""
    opened = []

    def open_named(name: str) -> Made:
        opened.append(name)
        if name not in made:
            raise MissingDependency(f"{name} is not installed.")
        return made[name]

    names = ["torch", "torch-bf16", "openvino", "onnx"]
    return choice.choose(open_named, 16, CPU, names, fingerprint).name, opened


def test_auto_chooses_the_fastest_accurate_backend():
    """A faster but inaccurate backend is rejected, as is a missing one. The next time, nothing is measured."""
    made = {
        "torch": Made("torch", seconds=0.06),
        "torch-bf16": Made("torch-bf16", error=0.02, seconds=0.02),
        "openvino": Made("openvino", error=0.1),
    }
    assert chosen(made, "first")[0] == "torch-bf16"
    for one in made.values():
        one.ran.clear()
    assert chosen(made, "first") == ("torch-bf16", ["torch-bf16"])
    assert not made["torch-bf16"].ran
    assert chosen({"torch": made["torch"]}, "first")[0] == "torch"  # the choice is missing now
    assert len(chosen(made, "another encoder")[1]) > 1


@pytest.mark.parametrize("delays", [[0.5, 0.4], [0.0, 0.009, 0.0135, 0.014]])
def test_other_load_during_the_first_runs_does_not_change_the_choice(delays):
    """The first run checks the vectors; a backend is neither rejected nor accepted because of single times."""
    made = {"torch": Made("torch", seconds=0.0285), "openvino": Made("openvino", seconds=0.02, delays=delays.copy())}
    assert chosen(made, str(delays))[0] == "openvino"
    assert len(made["torch"].ran) <= 1 + choice.MAX_ROUNDS


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"name": 3}', b'{"name": "../../x"}', b"\xff\xfe", b"null"])
def test_a_damaged_cached_choice_is_ignored(monkeypatch, damage, tmp_path):
    made = {"torch": Made("torch", seconds=0.02), "openvino": Made("openvino")}
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path))
    assert chosen(made, "damaged")[0] == "openvino"
    (place,) = (tmp_path / "backends").glob("*.json")
    place.write_bytes(damage)
    name, opened = chosen(made, "damaged")
    assert name == "openvino"
    assert len(opened) > 1
    assert json.loads(place.read_text())["name"] == "openvino"


def test_auto_works_without_a_writable_cache(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "file"))
    made = {"torch": Made("torch", seconds=0.02), "openvino": Made("openvino")}
    assert chosen(made, "anything")[0] == "openvino"


@pytest.mark.slow
def test_auto_chooses_an_accurate_candidate_for_a_real_network(model, image_files):
    """Run it in a new process, like a first start."""
    code = (
        "import sys, numpy as np\n"
        "from nnclr_hub import load_encoder\n"
        "auto, torchs = (load_encoder(sys.argv[1], device='cpu', backend=name) for name in ('auto', 'torch'))\n"
        "print(auto.backend.name, (auto.embed(sys.argv[2:]) * torchs.embed(sys.argv[2:])).sum(axis=1).min())\n"
    )
    command = [sys.executable, "-c", code, str(model), *map(str, image_files[:8])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    name, cosine = done.stdout.split()
    assert name in choice.candidates("cpu", None)
    assert float(cosine) >= 0.999


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
