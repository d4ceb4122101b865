"""Network outputs: the length of vectors, and the feature map before pooling."""

import numpy as np
import pytest
import torch
from torch import nn

from nnclr_hub import Encoder, load_encoder
from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.network_output import feature_map, pooling, vector_length
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest

# networks whose num_features is the depth of the map, with a hidden layer of another width after it
HIDDEN = [("mobilenetv3_small_050", "avg"), ("lcnet_035", "avg"), ("inception_next_atto", "avg")]


@pytest.mark.parametrize(("name", "pool"), [("resnet18", "avg"), ("test_vit", "token"), *HIDDEN])
def test_a_backbone_returns_one_vector_per_image(name, pool):
    backbone = create_backbone(name).eval()
    assert backbone(torch.zeros(2, 3, 160, 160)).shape == (2, vector_length(backbone))
    assert pooling(backbone) == pool
    assert isinstance(backbone.get_classifier(), nn.Identity)


@pytest.mark.parametrize("architecture", [architecture for architecture, _ in HIDDEN])
def test_an_encoder_knows_the_length_of_its_vectors(architecture, image_files):
    encoder = load_encoder(f"random:{architecture}", device="cpu")
    assert encoder.embed(image_files[:2]).shape == (2, encoder.embed_dim)
    assert encoder.tokens(image_files[:1]).shape[-1] == encoder.backbone.num_features != encoder.embed_dim


@pytest.mark.parametrize("arguments", [{"global_pool": ""}, {"num_classes": 10}])
def test_a_network_without_pooled_features_is_refused(arguments, image_files):
    """Tokens would be normalized along the wrong axis, and logits used as features."""
    backbone = create_backbone("test_vit", model_args={"dynamic_img_size": True, **arguments})
    encoder = Encoder(backbone, Preprocessing(48), name="odd", device="cpu")
    for images in (image_files[:1], torch.zeros(1, 3, 48, 48), np.zeros((1, 48, 48, 3), np.uint8)[:1]):
        with pytest.raises(InvalidRequest):
            encoder.embed(images)


@pytest.mark.parametrize(("architecture", "side"), [("test_vit2", 16), ("test_convnext", 32), ("test_resnet", 32)])
def test_the_only_cell_of_a_map_is_timms_pooled_vector(architecture, side):
    """Also with a norm after the pool: after a mean over patches, or in the head."""
    torch.manual_seed(0)
    backbone = create_backbone(architecture, image_size=side).eval()
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        x = torch.randn(2, 3, side, side)
        torch.testing.assert_close(feature_map(backbone, x)[:, 0, 0], backbone(x), rtol=1e-4, atol=1e-5)


def test_the_norm_of_a_hidden_layer_is_not_applied_to_the_map():
    """InceptionNeXt's head is a pool, a wider layer and its norm, so the map equals forward_features."""
    backbone = create_backbone("inception_next_atto").eval()
    x = torch.randn(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        made = feature_map(backbone, x)
        assert torch.equal(made, backbone.forward_features(x).permute(0, 2, 3, 1))  # type: ignore[operator]
    assert made.shape == (1, 2, 3, 320)


def test_a_vits_map_is_its_patch_tokens_after_the_last_norm():
    """Compare with timm's forward_intermediates, which uses other code."""
    backbone = create_backbone("test_vit").eval()
    x = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = backbone.forward_intermediates(x, indices=1, norm=True, intermediates_only=True)[0]
        got = feature_map(backbone, x)
    torch.testing.assert_close(got, want.permute(0, 2, 3, 1))


def test_a_map_supports_other_input_sizes_if_the_network_does():
    backbone = create_backbone("test_vit", model_args={"dynamic_img_size": True}).eval()
    assert feature_map(backbone, torch.zeros(1, 3, 64, 96)).shape == (1, 4, 6, 64)
    channels_last = create_backbone("test_convnext").eval()
    assert feature_map(channels_last, torch.zeros(1, 3, 64, 96)).shape == (1, 2, 3, channels_last.num_features)
