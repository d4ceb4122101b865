"""Evaluation at checkpoints: exact inference, and a warning if a floor is as good as the encoder."""

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest
from training.distributed import ALONE
from training.evals.features import Features, PartFeatures
from training.evals.frozen import quick_linear
from training.evaluation import Evaluation, exact_inference
from training.recipes import Recipe, find_recipe

COLORS = {"red": (220, 30, 30), "green": (30, 180, 30)}


@pytest.fixture
def evaluation_of(tmp_path):
    """Build the evaluation of a folder with two classes, each with 12 images to fit on and 6 to score."""

    def made(name: str, pixels) -> Evaluation:
        for split, count in (("train", 12), ("test", 6)):
            for label in COLORS:
                (tmp_path / name / split / label).mkdir(parents=True)
                for number in range(count):
                    Image.fromarray(pixels(label)).save(tmp_path / name / split / label / f"{number}.png")
        return Evaluation([tmp_path / name], Preprocessing(32), find_recipe("small_cpu"), ALONE, Console(stderr=True))

    return made


def test_an_encoder_no_better_than_a_floor_causes_a_warning(evaluation_of, tmp_path, capsys):
    """Every image has a single color, so pixels and colors are always right, and shapes are not."""
    evaluation = evaluation_of("colors", lambda label: np.full((32, 32, 3), COLORS[label], np.uint8))
    floors = evaluation.floors(tmp_path)
    assert floors.scores["color"]["knn20/colors"] == floors.scores["pixels"]["knn20/colors"] == 1
    written = (tmp_path / "floors.json").stat().st_mtime_ns
    assert evaluation.floors(tmp_path) == floors
    assert (tmp_path / "floors.json").stat().st_mtime_ns == written, "the same images have the same floors"
    capsys.readouterr()
    for scores, warned in (({"knn20/colors": 0.99}, True), ({"knn20/colors": 1.0}, False), ({}, False)):
        floors.warn_if_below(scores, Recipe(), Console(stderr=True))
        assert ("warning" in capsys.readouterr().err) == warned
    floors.scores["pixels"]["knn20/colors"] = 0.9
    below = {"knn20/colors": 0.95}
    for setting, tested, named in (
        ({}, ["colors"], "augmentation=keep_color"),
        ({}, ["colors", "more"], "keep_color_of=colors"),
        ({"augmentation": "keep_color"}, ["colors"], ""),
        ({"keep_color_of": ("colors",)}, ["colors", "more"], ""),
    ):
        floors.tested = dict.fromkeys(tested, 9)
        floors.warn_if_below(below, Recipe(**setting), Console(stderr=True, width=300))
        warning = capsys.readouterr().err
        assert named in warning if named else "keep_color" not in warning


@pytest.fixture
def step_settings(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def settings() -> tuple[bool, bool, str]:
    cudnn = torch.backends.cudnn
    return cudnn.benchmark, cudnn.allow_tf32, torch.get_float32_matmul_precision()


def interrupted() -> None:
    with exact_inference():
        assert settings() == (False, False, "highest")
        assert not torch.backends.cuda.matmul.allow_tf32
        raise ZeroDivisionError


def test_exact_inference_restores_the_settings(step_settings):
    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert settings() == (True, True, "high")


def test_a_compiled_network_runs_eagerly_in_exact_inference(step_settings):
    class Doubled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    network, runs = Doubled(), []
    network.compile(backend=lambda graph, _: runs.append(graph) or graph.forward)
    with exact_inference():
        network(torch.zeros(3, 2))
    assert runs == []
    network(torch.zeros(3, 2))
    assert len(runs) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_the_linear_score_is_fitted_on_the_device_of_the_encoder():
    """On the CPU of a GPU machine it would take longer than a hundred training steps."""
    part = PartFeatures(np.eye(4, dtype=np.float32), np.arange(4) % 2)
    assert dict(quick_linear(Features("some", ("a", "b"), part, part))) == {"linear/some": 1.0}
    with pytest.raises(InvalidRequest, match="cuda"):
        dict(quick_linear(Features("some", ("a", "b"), part, part, device="cuda")))
