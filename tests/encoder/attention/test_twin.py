"""Twins: timm's own network at any size, while the one that is shared stays as it was."""

import threading

import numpy as np
import pytest
import torch
from conftest import randomized

from nnclr_hub.encoder.attention.twin import any_size, last_attention, twin
from nnclr_hub.encoder.backbones import create_backbone


def vit(**arguments):
    torch.manual_seed(0)
    return randomized(create_backbone("test_vit", model_args={"img_size": 64, "dynamic_img_size": False, **arguments}))


@pytest.mark.parametrize(
    "arguments", [{}, {"reg_tokens": 4}, {"no_embed_class": True}, {"class_token": False, "global_pool": "avg"}]
)
@pytest.mark.parametrize("size", [(64, 64), (96, 64), (48, 160)])
def test_a_twin_at_any_size_is_timms_network_with_dynamic_sizes(arguments, size):
    backbone = vit(**arguments)
    reference = create_backbone("test_vit", model_args={"img_size": 64, "dynamic_img_size": True, **arguments}).eval()
    reference.load_state_dict(backbone.state_dict())
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        torch.testing.assert_close(any_size(backbone).forward_features(x), reference.forward_features(x))


def test_the_shared_network_is_not_touched():
    backbone = vit()
    before = {name: dict(vars(module)) for name, module in backbone.named_modules()}
    hooks = {name: len(module._forward_pre_hooks) for name, module in backbone.named_modules()}
    children = {name: dict(module._modules) for name, module in backbone.named_modules()}
    x = torch.randn(1, 3, 64, 64)
    other = any_size(backbone)
    seen = []
    last_attention(other).register_forward_pre_hook(lambda module, inputs: seen.append(module))
    with torch.no_grad():
        expected = backbone(x)
        assert not seen
        other(torch.randn(1, 3, 96, 80))
    assert len(seen) == 1
    assert {name: dict(vars(module)) for name, module in backbone.named_modules()}.keys() == before.keys()
    for name, module in backbone.named_modules():
        assert all(vars(module)[key] is value for key, value in before[name].items())
        assert len(module._forward_pre_hooks) == hooks[name]
        assert dict(module._modules) == children[name]
    with torch.no_grad():
        torch.testing.assert_close(backbone(x), expected, rtol=0, atol=0)
        with pytest.raises(AssertionError, match="Input height"):
            backbone(torch.randn(1, 3, 96, 80))


def test_a_twin_has_the_very_same_weights():
    backbone = vit()
    other = any_size(backbone)
    last_attention(other)
    own, shared = dict(other.named_parameters()), dict(backbone.named_parameters())
    assert own.keys() == shared.keys()
    assert all(own[name] is shared[name] for name in own)


def test_twins_of_many_threads_see_only_their_own_images():
    backbone = vit()
    failures = []

    def work(number):
        x = torch.full((1, 3, 64, 64), float(number))
        for _ in range(20):
            other, seen = any_size(backbone), []
            last_attention(other).register_forward_pre_hook(lambda module, inputs, seen=seen: seen.append(inputs[0]))
            with torch.no_grad():
                other(x)
            if len(seen) != 1 or not torch.equal(seen[0], first[number]):
                failures.append(number)

    first = {}
    for number in range(4):
        other = any_size(backbone)
        last_attention(other).register_forward_pre_hook(
            lambda module, inputs, number=number: first.update({number: inputs[0]})
        )
        with torch.no_grad():
            other(torch.full((1, 3, 64, 64), float(number)))
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert not np.allclose(first[0], first[1])


def test_a_twin_of_a_module_keeps_its_hooks_apart():
    module = torch.nn.Linear(2, 2)
    other = twin(module)
    other.register_forward_hook(lambda *_: None)
    assert (len(module._forward_hooks), len(other._forward_hooks)) == (0, 1)
