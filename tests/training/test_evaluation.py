"""Evaluation at checkpoints: exact inference, on the device of the encoder."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest
from training.data.views import IMAGENET_MEAN, IMAGENET_STD
from training.evals.features import Features, PartFeatures
from training.evals.frozen import quick_linear
from training.evals.task import Part, Task
from training.evaluation import LabeledSet, exact_inference


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


def test_a_large_set_is_scored_on_a_random_part_and_named_by_both_parts(photos):
    """The first images of a set in the order of its classes would be of one class."""
    paths = tuple(sorted(photos.rglob("*.jpg")))
    labels = np.repeat(np.arange(3), 20)
    parts = [Part(paths[start::2], labels[start::2]) for start in (0, 1)]
    data = Task("photos", ("a", "b", "c"), *parts, split="test")
    plain = Preprocessing(32, 1.0, IMAGENET_MEAN, IMAGENET_STD)
    some = LabeledSet(data, plain, 9, Console(quiet=True))
    features = some.embed(SimpleNamespace(forward_crops=lambda crops: crops.reshape(len(crops), -1), device="cpu"))
    assert set(features.train.labels.tolist()) == set(features.test.labels.tolist()) == {0, 1, 2}
    assert len(features.train.labels) == len(features.test.labels) == some.tested == 9
    for change in ({"train": parts[1]}, {"test": parts[0]}):
        assert LabeledSet(replace(data, **change), plain, 9, Console(quiet=True)).images != some.images
