"""Shallow copies: timm's network at any input size, while the shared network stays unchanged."""

import pytest
import torch
from conftest import randomized

from nnclr_hub.encoder.attention.network import accept_any_size, last_attention, shallow_copy
from nnclr_hub.encoder.backbones import create_backbone


def vit(**arguments):
    torch.manual_seed(0)
    return randomized(create_backbone("test_vit", model_args={"img_size": 64, "dynamic_img_size": False, **arguments}))


@pytest.mark.parametrize(
    "arguments", [{}, {"reg_tokens": 4}, {"no_embed_class": True}, {"class_token": False, "global_pool": "avg"}]
)
@pytest.mark.parametrize("size", [(64, 64), (96, 64), (48, 160)])
def test_a_copy_for_any_size_equals_timms_network_with_dynamic_sizes(arguments, size):
    backbone = vit(**arguments)
    reference = create_backbone("test_vit", model_args={"img_size": 64, "dynamic_img_size": True, **arguments}).eval()
    reference.load_state_dict(backbone.state_dict())
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        torch.testing.assert_close(accept_any_size(backbone).forward_features(x), reference.forward_features(x))


def test_the_shared_network_stays_unchanged():
    backbone = vit()
    before = {name: dict(vars(module)) for name, module in backbone.named_modules()}
    hooks = {name: len(module._forward_pre_hooks) for name, module in backbone.named_modules()}
    children = {name: dict(module._modules) for name, module in backbone.named_modules()}
    x = torch.randn(1, 3, 64, 64)
    other = accept_any_size(backbone)
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
        with pytest.raises(AssertionError):
            backbone(torch.randn(1, 3, 96, 80))


def test_a_copy_shares_the_weights():
    backbone = vit()
    other = accept_any_size(backbone)
    last_attention(other)
    own, shared = dict(other.named_parameters()), dict(backbone.named_parameters())
    assert own.keys() == shared.keys()
    assert all(own[name] is shared[name] for name in own)


def test_a_shallow_copy_has_separate_hooks():
    module = torch.nn.Linear(2, 2)
    other = shallow_copy(module)
    other.register_forward_hook(lambda *_: None)
    assert (len(module._forward_hooks), len(other._forward_hooks)) == (0, 1)
