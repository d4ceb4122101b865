"""Backbones are timm's, without classifier, and what cannot be built says why."""

import pytest
import timm
import torch
from huggingface_hub import constants

from nnclr_hub.encoder.backbones import (
    ALIASES,
    backbone_with_weights,
    create_backbone,
    input_side,
    load_state,
    sized,
    uninitialized,
)
from nnclr_hub.errors import InvalidRequest, ModelFilesMissing, UnknownModel, WeightsMismatch


def test_the_papers_names_are_timms():
    for alias, name in ALIASES.items():
        assert timm.is_model(name), alias


def test_only_networks_with_positions_take_an_image_size():
    vit = create_backbone("vit_tiny", image_size=64).eval()
    assert input_side(vit) == 64
    assert vit(torch.zeros(1, 3, 64, 64)).shape == (1, 192)
    assert input_side(create_backbone("resnet18", image_size=64)) is None
    assert (sized("vit_tiny"), sized("resnet18"), sized("resnet18.no_such_tag")) == (True, False, False)


def test_tags_that_timm_has_no_weights_for_are_refused():
    """timm returns random weights for some of them."""
    with pytest.raises(UnknownModel):
        create_backbone("resnet18.bogus", pretrained=True)


def test_unavailable_timm_weights_are_refused_without_retries(monkeypatch, tmp_path):
    """The Hub client would otherwise retry for most of a minute."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    with pytest.raises(ModelFilesMissing):
        create_backbone("resnet18.a1_in1k", pretrained=True)
    assert waited == []


def test_an_unknown_model_argument_is_named():
    with pytest.raises(InvalidRequest, match="num_legs") as caught:
        create_backbone("resnet18", model_args={"num_legs": 4})
    assert "\n" not in str(caught.value)


def test_missing_unexpected_and_misshapen_weights_are_refused():
    backbone = create_backbone("test_resnet")
    state = backbone.state_dict()
    first, second, *_ = state
    state["extra.weight"] = state.pop(first)
    state[second] = torch.zeros(1, 2, 3)
    with pytest.raises(WeightsMismatch):
        load_state(backbone, state, "this")


@pytest.mark.parametrize("name", ["vit_tiny", "test_resnet", "test_convnext"])
def test_a_network_with_weights_is_built_without_random_ones(name):
    with uninitialized():
        before = torch.get_rng_state()
        create_backbone(name)
        assert torch.equal(torch.get_rng_state(), before)
    network = create_backbone(name).eval()
    before = torch.get_rng_state()
    loaded = backbone_with_weights(name, network.state_dict(), "this").eval()
    assert torch.equal(torch.get_rng_state(), before)
    x = torch.rand(1, 3, *network.pretrained_cfg["input_size"][1:])  # type: ignore[index]
    with torch.no_grad():
        assert torch.equal(loaded(x), network(x))
