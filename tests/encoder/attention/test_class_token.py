"""The [CLS] row: that of timm's attention with fusing off, in a network of its own."""

import pytest
import torch
from conftest import randomized
from timm.layers.attention import Attention

from nnclr_hub.encoder.attention.class_token import class_token_rows, fewest
from nnclr_hub.encoder.backbones import create_backbone


def unfused(attention, x):
    """The softmax that timm computes when it does not fuse: caught on its way into the dropout."""
    attention.fused_attn = False
    caught = []
    handle = attention.attn_drop.register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0]))
    attention(x)
    handle.remove()
    return caught[0]


@pytest.mark.parametrize("arguments", [{"qkv_bias": True}, {"qkv_bias": False}, {"qk_norm": True}])
@torch.no_grad()
def test_the_rows_are_those_of_unfused_attention(arguments):
    torch.manual_seed(0)
    layers = {"norm_layer": torch.nn.LayerNorm} if "qk_norm" in arguments else {}
    attention = Attention(24, num_heads=3, **arguments, **layers).eval()
    x = 3 * torch.randn(2, 17, 24)
    assert attention.fused_attn
    found = class_token_rows(attention, x)
    assert attention.fused_attn
    assert found.shape == (2, 3, 17)
    torch.testing.assert_close(found, unfused(attention, x)[:, :, 0])
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 3))
    assert found.std() > 0.01


@torch.no_grad()
def test_the_rows_of_a_whole_network_are_those_of_its_unfused_copy():
    backbone = randomized(create_backbone("test_vit"))
    copy = create_backbone("test_vit").eval()
    copy.load_state_dict(backbone.state_dict())
    x, seen = torch.randn(1, 3, 160, 160), []
    last = copy.blocks[-1].attn
    last.fused_attn = False
    last.attn_drop.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0][:, :, 0]))
    copy(x)
    backbone.blocks[-1].attn.register_forward_pre_hook(
        lambda module, inputs: seen.append(class_token_rows(module, inputs[0]))
    )
    backbone(x)
    torch.testing.assert_close(seen[1], seen[0])


@pytest.mark.parametrize("mass", [1e-9, 0.2, 0.5, 0.61, 0.999, 1.0])
def test_the_fewest_patches_of_a_mass(mass):
    """As a loop that takes the largest that is left until there is enough; and no smaller number would do."""
    row = torch.rand(40, generator=torch.Generator().manual_seed(1)).softmax(0) * 0.7
    kept = fewest(row, mass)
    rest, taken = sorted(row.double().tolist(), reverse=True), []
    while sum(taken) < mass * float(row.double().sum()) - 1e-12:
        taken.append(rest.pop(0))
    assert int(kept.sum()) == len(taken)
    assert sorted(row[kept].tolist(), reverse=True) == pytest.approx(taken)


def test_equal_patches_are_taken_in_their_order():
    assert fewest(torch.tensor([1.0, 1.0, 1.0, 1.0]), 0.5).tolist() == [True, True, False, False]
