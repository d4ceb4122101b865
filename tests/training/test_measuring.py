"""An encoder is measured in full float32, eagerly and without trying algorithms; a step's settings come back."""

import numpy as np
import pytest
import torch

from nnclr_hub.errors import InvalidRequest
from training.evals.features import Features, PartFeatures
from training.evals.linear import quick_linear
from training.measuring import measuring


@pytest.fixture
def a_steps_settings(monkeypatch):
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
    with measuring():
        assert settings() == (False, False, "highest")
        assert not torch.backends.cuda.matmul.allow_tf32
        raise ZeroDivisionError


def test_measuring_has_settings_of_its_own(a_steps_settings):
    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert settings() == (True, True, "high")


def test_a_compiled_network_runs_eagerly(a_steps_settings):
    class Doubled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    network, runs = Doubled(), []
    network.compile(backend=lambda graph, _: runs.append(graph) or graph.forward)
    with measuring():
        network(torch.zeros(3, 2))
    assert runs == []
    network(torch.zeros(3, 2))
    assert len(runs) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, and it fits there")
def test_the_linear_score_of_a_checkpoint_is_fitted_where_its_encoder_is():
    """On a CPU beside a GPU it takes longer than a hundred steps of the run."""
    part = PartFeatures(np.eye(4, dtype=np.float32), np.arange(4) % 2)
    assert dict(quick_linear(Features("some", ("a", "b"), part, part))) == {"linear/some": 1.0}
    with pytest.raises(InvalidRequest, match="cuda is not there"):
        dict(quick_linear(Features("some", ("a", "b"), part, part, device="cuda")))
