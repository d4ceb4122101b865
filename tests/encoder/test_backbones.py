"""Backbones are timm's, without classifier, and what cannot be built says why."""

import pytest
import timm
import torch
from huggingface_hub import constants
from torch import nn

from nnclr_hub.encoder.backbones import ALIASES, create_backbone, feature_map, input_side, load_state, pooling, sized
from nnclr_hub.errors import InvalidRequest, ModelFilesMissing, UnknownModel, WeightsMismatch


@pytest.mark.parametrize(("name", "pool"), [("resnet18", "avg"), ("test_resnet", "avg"), ("test_vit", "token")])
def test_a_backbone_gives_one_vector_a_picture(name, pool):
    backbone = create_backbone(name).eval()
    assert backbone(torch.zeros(2, 3, 160, 160)).shape == (2, backbone.num_features)
    assert pooling(backbone) == pool
    assert isinstance(backbone.get_classifier(), nn.Identity)


def test_the_papers_names_are_timms():
    for alias, name in ALIASES.items():
        assert timm.is_model(name), alias


def test_only_networks_with_positions_take_an_image_size():
    vit = create_backbone("vit_tiny", image_size=64).eval()
    assert input_side(vit) == 64
    assert vit(torch.zeros(1, 3, 64, 64)).shape == (1, 192)
    assert input_side(create_backbone("resnet18", image_size=64)) is None
    assert (sized("vit_tiny"), sized("resnet18"), sized("resnet18.no_such_tag")) == (True, False, False)


@pytest.mark.parametrize(("architecture", "side"), [("test_vit2", 16), ("test_convnext", 32), ("test_resnet", 32)])
def test_the_only_cell_of_a_map_is_timms_pooled_vector(architecture, side):
    """Also where the norm comes behind the pool: in the first after a mean over patches, in the second in its head."""
    torch.manual_seed(0)
    backbone = create_backbone(architecture, image_size=side).eval()
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        x = torch.randn(2, 3, side, side)
        torch.testing.assert_close(feature_map(backbone, x)[:, 0, 0], backbone(x), rtol=1e-4, atol=1e-5)


def test_a_vits_map_is_its_patch_tokens_after_the_last_norm():
    """Against timm's own forward_intermediates, which norms and drops the prefix by other code."""
    backbone = create_backbone("test_vit").eval()
    x = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = backbone.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)[0]
        got = feature_map(backbone, x)
    torch.testing.assert_close(got, want.permute(0, 2, 3, 1))


def test_a_map_follows_another_input_size_where_the_network_does():
    backbone = create_backbone("test_vit", model_args={"dynamic_img_size": True}).eval()
    assert feature_map(backbone, torch.zeros(1, 3, 64, 96)).shape == (1, 4, 6, 64)
    channels_last = create_backbone("test_convnext").eval()
    assert feature_map(channels_last, torch.zeros(1, 3, 64, 96)).shape == (1, 2, 3, channels_last.num_features)


def test_tags_that_timm_has_no_weights_for_are_refused():
    """timm itself would hand out random weights for some of them."""
    with pytest.raises(UnknownModel, match=r"no weights called 'resnet18\.bogus': there are resnet18\.a1_in1k"):
        create_backbone("resnet18.bogus", pretrained=True)


def test_weights_of_timms_that_nobody_can_send_are_told_of_at_once(monkeypatch, tmp_path):
    """The client alone would try again for most of a minute."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    with pytest.raises(ModelFilesMissing, match=r"cannot be fetched: connect to http://127\.0\.0\.1:9, set HF"):
        create_backbone("resnet18.a1_in1k", pretrained=True)
    assert waited == []


def test_a_wrong_argument_is_one_sentence():
    with pytest.raises(InvalidRequest, match="num_legs") as caught:
        create_backbone("resnet18", model_args={"num_legs": 4})
    assert "\n" not in str(caught.value)


def test_weights_that_do_not_fit_are_told_by_kind():
    backbone = create_backbone("test_resnet")
    state = backbone.state_dict()
    first, second, *_ = state
    state["extra.weight"] = state.pop(first)
    state[second] = torch.zeros(1, 2, 3)
    with pytest.raises(
        WeightsMismatch, match=rf"missing {first}; not expected extra\.weight; of another shape {second}"
    ):
        load_state(backbone, state, "this")
