"""ResNets with a CIFAR stem: full resolution in the first stage, loadable by our registration."""

import pytest
import timm
import torch
import torchvision
from torch import nn

from nnclr_hub import load_encoder
from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.network_output import feature_map


def test_the_first_stage_sees_every_pixel():
    """3 x 3, stride 1, padding 1: maps of 32 x 32, not 34 x 34 as a padding of 2 would make them."""
    backbone = create_backbone("resnet18_cifar")
    x = torch.zeros(1, 3, 32, 32)
    assert backbone.maxpool(backbone.conv1(x)).shape == (1, 64, 32, 32)
    assert feature_map(backbone.eval(), x).shape == (1, 4, 4, 512)


@pytest.mark.parametrize("depth", [18, 50])
def test_it_is_torchvisions_resnet_with_another_stem(depth):
    ours = create_backbone(f"resnet{depth}_cifar").eval()
    theirs = getattr(torchvision.models, f"resnet{depth}")(weights=None).eval()
    theirs.conv1, theirs.maxpool, theirs.fc = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity(), nn.Identity()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))


def test_its_model_folder_loads_here_and_in_timm_and_its_card_says_how(make_model):
    folder = make_model("resnet18_cifar", {}, 32)
    assert load_encoder(folder, device="cpu").embed_dim == 512
    assert timm.create_model(f"local-dir:{folder}", pretrained=True).num_features == 512
    assert "import nnclr_hub.encoder.cifar_resnet" in (folder / "README.md").read_text()
