"""An encoder is measured in full float32, eagerly and without trying algorithms; a step's settings come back."""

import pytest
import torch

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
