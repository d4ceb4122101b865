"""Which device is computed on: the one of that name, or a sentence that names what there is."""

import pytest
import torch

from nnclr_hub.encoder.device import find_device
from nnclr_hub.errors import InvalidRequest

ABSENT = ["hpu", "privateuseone", "mtia", "xla", "meta", "no such thing"]


@pytest.mark.parametrize("name", ABSENT)
def test_a_device_that_is_not_here_is_one_sentence_that_recommends_what_is(name, monkeypatch):
    """Whether torch says so by a RuntimeError, an AssertionError or a module that it does not find."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InvalidRequest, match=rf"^There is no device '{name}' here: leave it out, or name cpu\.$"):
        find_device(name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InvalidRequest, match=r"here: name one of cpu, cuda:0, cuda:1\.$"):
        find_device(name)


def test_a_gpu_beyond_the_last_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InvalidRequest, match=r"cuda:3 is not there, torch sees no GPUs: leave the device out"):
        find_device("cuda:3")


def test_without_a_gpu_and_without_a_name_it_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device(None) == find_device("cpu") == torch.device("cpu")
