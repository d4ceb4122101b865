"""The device of a name; missing devices are refused."""

import pytest
import torch

from nnclr_hub.encoder.device import find_device
from nnclr_hub.errors import InvalidRequest

ABSENT = ["hpu", "privateuseone", "mtia", "xla", "meta", "no such thing"]


@pytest.mark.parametrize("name", [*ABSENT, "cuda:99"])
@pytest.mark.parametrize("gpus", [0, 2])
def test_a_missing_device_is_refused_with_a_hint(name, gpus, monkeypatch):
    """torch raises RuntimeError, AssertionError or ImportError for them."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(InvalidRequest, match="cpu"):
        find_device(name)


def test_the_default_without_a_gpu_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device(None) == find_device("cpu") == torch.device("cpu")
