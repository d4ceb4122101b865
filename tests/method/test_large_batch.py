"""Chunks of a batch: random numbers, running statistics and memory. test_learner.py compares their gradients."""

import torch
from torch import nn

from nnclr_hub.method import in_chunks


def test_both_passes_use_the_same_random_numbers():
    """The second pass must reproduce the activations of the first, including dropout."""
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
    x = torch.randn(8, 6)
    torch.manual_seed(3)
    out = in_chunks(layer, x, 4)
    out.sum().backward()
    kept = (out != 0).float()  # d out / d bias = 2 where kept
    torch.testing.assert_close(layer[0].bias.grad, 2 * kept.sum(0))


def test_running_statistics_count_each_chunk_once():
    torch.manual_seed(0)
    x = torch.randn(8, 6)
    norms = []
    for chunked in (True, False):
        norm = nn.BatchNorm1d(6)
        if chunked:
            in_chunks(norm, x, 4).sum().backward()
        else:
            for part in x.split(4):
                norm(part)
        norms.append(norm)
    torch.testing.assert_close(norms[0].running_mean, norms[1].running_mean)
    torch.testing.assert_close(norms[0].running_var, norms[1].running_var)
    assert norms[0].momentum == 0.1


def test_the_first_pass_saves_few_activations():
    """Count the tensors that autograd saves."""
    torch.manual_seed(0)
    layer = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(8)))
    x = torch.randn(64, 32, requires_grad=True)
    held = {}
    for chunk in (0, 64, 8, 1):
        saved = []

        def keep(tensor, saved=saved):
            saved.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            in_chunks(layer, x, chunk)
        held[chunk] = sum(saved)
    assert held[64] == held[0]
    assert max(held[8], held[1]) < held[0] / 4
