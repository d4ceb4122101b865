"""The momentum encoder: a moving average of parameters, with separate batch statistics."""

import math

import pytest
import torch
from timm.layers import DropPath
from torch import nn

from nnclr_hub.method import MomentumEncoder, momentum_at


def test_parameters_are_averaged_and_buffers_are_not():
    torch.manual_seed(0)
    online = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    average = MomentumEncoder(online)
    start = [p.clone() for p in average.parameters()]
    with torch.no_grad():
        for parameter in online.parameters():
            parameter.add_(1)
    online(torch.randn(8, 4) + 7)
    average.update(online, 0.75)
    for was, now, theirs in zip(start, average.parameters(), online.parameters(), strict=True):
        torch.testing.assert_close(now, 0.75 * was + 0.25 * theirs)
        assert not now.requires_grad
    assert torch.equal(average.encoder[1].running_mean, torch.zeros(5)), "not the statistics of the online network"
    average.reset(online)
    state = online.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in average.encoder.state_dict().items())


def test_batch_norm_uses_the_batch_and_keeps_separate_statistics():
    torch.manual_seed(0)
    average = MomentumEncoder(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)))
    out = average(torch.randn(64, 4) * 3 + 5)
    torch.testing.assert_close(out.mean(0), torch.zeros(5), atol=1e-5, rtol=0)
    assert average.encoder[1].running_mean.abs().sum() > 0
    assert not out.requires_grad


def test_stochastic_depth_is_only_in_the_online_network():
    online = nn.Sequential(nn.Linear(4, 4), DropPath(0.5))
    average, x = MomentumEncoder(online), torch.randn(64, 4)
    torch.testing.assert_close(average(x), online[0](x))
    assert (online(x) == 0).all(dim=1).any()


def test_the_schedule_is_a_cosine_from_its_start_to_one():
    assert momentum_at(0) == momentum_at(0, 0.99) == pytest.approx(0.99)
    assert momentum_at(0.5, 0.99) == pytest.approx(0.995)
    assert momentum_at(1, 0.99) == 1
    assert momentum_at(0.25, 0.996) == pytest.approx(1 - 0.004 * (math.cos(math.pi / 4) + 1) / 2)
