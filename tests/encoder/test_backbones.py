"""Backbones are timm's, without classifier; also with a CIFAR stem. What cannot be built says why."""

import pytest
import timm
import torch
import torchvision
from huggingface_hub import constants
from torch import nn

from nnclr_hub import load_encoder
from nnclr_hub.encoder.backbones import (
    ALIASES,
    backbone_with_weights,
    create_backbone,
    input_side,
    load_state,
    sized,
    uninitialized,
)
from nnclr_hub.encoder.device import find_device
from nnclr_hub.encoder.network_output import feature_map
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


def test_unavailable_timm_weights_and_unknown_arguments_are_refused_without_retries(monkeypatch, tmp_path):
    """The Hub client would otherwise retry for most of a minute."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    with pytest.raises(ModelFilesMissing):
        create_backbone("resnet18.a1_in1k", pretrained=True)
    with pytest.raises(UnknownModel):  # timm returns random weights for some tags without weights
        create_backbone("resnet18.bogus", pretrained=True)
    assert waited == []
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


def test_the_first_stage_of_a_cifar_stem_sees_every_pixel():
    """3 x 3, stride 1, padding 1: maps of 32 x 32, not 34 x 34 as a padding of 2 would make them."""
    backbone = create_backbone("resnet18_cifar")
    x = torch.zeros(1, 3, 32, 32)
    assert backbone.maxpool(backbone.conv1(x)).shape == (1, 64, 32, 32)
    assert feature_map(backbone.eval(), x).shape == (1, 4, 4, 512)


@pytest.mark.parametrize("depth", [18, 50])
def test_a_cifar_stem_is_on_torchvisions_resnet(depth):
    ours = create_backbone(f"resnet{depth}_cifar").eval()
    theirs = getattr(torchvision.models, f"resnet{depth}")(weights=None).eval()
    theirs.conv1, theirs.maxpool, theirs.fc = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity(), nn.Identity()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))


def test_the_folder_of_a_cifar_stem_loads_here_and_in_timm_and_its_card_says_how(make_model):
    folder = make_model("resnet18_cifar", {}, 32)
    assert load_encoder(folder, device="cpu").embed_dim == 512
    assert timm.create_model(f"local-dir:{folder}", pretrained=True).num_features == 512
    assert "import nnclr_hub.encoder.cifar_resnet" in (folder / "README.md").read_text()


# ---- devices


@pytest.mark.parametrize("name", ["hpu", "privateuseone", "mtia", "xla", "meta", "no such thing", "cuda:99"])
@pytest.mark.parametrize("gpus", [0, 2])
def test_a_missing_device_is_refused_with_a_hint(name, gpus, monkeypatch):
    """torch raises RuntimeError, AssertionError or ImportError for them."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(InvalidRequest, match="cpu"):
        find_device(name)


def test_the_default_without_a_gpu_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device(None) == find_device("cpu") == torch.device("cpu")
