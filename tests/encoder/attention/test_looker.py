"""Each map equals a loop over the paper's definition; sizes, EXIF and queries; every refusal is one sentence."""

import math

import numpy as np
import pytest
import timm
import torch
from conftest import randomized
from PIL import Image

from nnclr_hub import Box, Encoder, ImageError, Point, load_encoder
from nnclr_hub.encoder.attention import AttentionSettings
from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.preprocess import Preprocessing
from nnclr_hub.errors import InvalidRequest, NNCLRHubError


@pytest.fixture(scope="module")
def resnet(model):
    return load_encoder(model, device="cpu")


@pytest.fixture(scope="module")
def vit():
    torch.manual_seed(0)
    backbone = randomized(create_backbone("test_vit", model_args={"dynamic_img_size": False}))
    return Encoder(backbone, Preprocessing(160), name="a small ViT", device="cpu")


@pytest.fixture(scope="module")
def photo():
    from skimage import data

    return Image.fromarray(data.cat()).crop((60, 0, 316, 240))  # 256 x 240, which a ViT of 16 pixels takes as it is


def timms_input(encoder, picture):
    """(1, 3, H, W): the image's own pixels, normalized."""
    colors = encoder.transform.preprocessing
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (colors.mean, colors.std))
    return ((torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255 - mean) / std)[None]


def timms_features(encoder, picture):
    """By timm alone: a network of its own with the weights, at the image's own size."""
    dynamic = {"dynamic_img_size": True} if encoder.looker.anatomy.transformer else {"channels": [8, 16, 24, 32]}
    network = timm.create_model("test_vit" if "img" in str(dynamic) else "resnet18", num_classes=0, **dynamic).eval()
    network.load_state_dict(encoder.backbone.state_dict())
    mean, std = (
        np.array(v, np.float32) for v in (encoder.transform.preprocessing.mean, encoder.transform.preprocessing.std)
    )
    x = (np.asarray(picture, np.float32) / 255 - mean) / std
    with torch.no_grad():
        return network, network.forward_features(torch.from_numpy(x).permute(2, 0, 1)[None])


def loop(features, query, similarity):
    """A[i, j] = <F[i, j], q>, number by number."""
    height, width, depth = features.shape
    found = np.zeros((height, width))
    for i in range(height):
        for j in range(width):
            for d in range(depth):
                found[i, j] += features[i, j, d] * query[d]
            if similarity == "cosine":
                found[i, j] /= math.hypot(*features[i, j]) * math.hypot(*query)
    return found


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize(
    ("query", "cells"),
    [
        (None, [(i, j) for i in range(8) for j in range(8)]),
        (Point(70, 100), [(3, 2)]),
        (Box(60, 60, 140, 100), [(2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (3, 4)]),
        (Box(70, 70, 72, 72), [(2, 2)]),
    ],
)
def test_a_resnets_map_equals_a_loop(resnet, photo, query, cells, similarity):
    features = timms_features(resnet, photo)[1][0].permute(1, 2, 0).double().numpy()
    expected = loop(features, np.mean([features[cell] for cell in cells], 0), similarity)
    found = resnet.attention(photo, query, similarity=similarity)
    assert (found.kind, found.values.dtype, found.size, found.input_size) == (
        similarity,
        np.float32,
        (256, 240),
        (256, 240),
    )
    np.testing.assert_allclose(found.values, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize(
    ("query", "cells"), [(Point(70, 100), [(6, 4)]), (Box(64, 64, 100, 90), [(4, 4), (4, 5), (5, 4), (5, 5)])]
)
def test_a_transformers_map_of_a_query_equals_a_loop(vit, photo, query, cells, similarity):
    tokens = timms_features(vit, photo)[1][0, 1:].double().numpy().reshape(15, 16, -1)
    expected = loop(tokens, np.mean([tokens[cell] for cell in cells], 0), similarity)
    found = vit.attention(photo, query, similarity=similarity)
    np.testing.assert_allclose(found.values, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def rows_of_timm(vit, photo):
    """(heads, 1 + patches): the last block's softmax in a copy of the network that does not fuse."""
    network, _ = timms_features(vit, photo)
    last, caught = network.blocks[-1].attn, []
    last.fused_attn = False
    last.attn_drop.register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0][0, :, 0]))
    mean, std = (
        torch.tensor(v).view(3, 1, 1) for v in (vit.transform.preprocessing.mean, vit.transform.preprocessing.std)
    )
    with torch.no_grad():
        network((torch.from_numpy(np.array(photo)).permute(2, 0, 1) / 255 - mean)[None] / std)
    return caught[0].double().numpy()


def test_a_transformers_map_without_a_query_is_the_row_of_its_class_token(vit, photo):
    rows = rows_of_timm(vit, photo)
    np.testing.assert_allclose(rows.sum(1), 1, atol=1e-6)
    found = vit.attention(photo)
    assert found.kind == "class_token"
    np.testing.assert_allclose(found.values, rows.mean(0)[1:].reshape(15, 16), rtol=1e-4)
    assert found.values.sum() == pytest.approx(1 - rows.mean(0)[0], abs=1e-5)  # dropped, and not renormalized
    for head in (0, 1):
        np.testing.assert_allclose(vit.attention(photo, head=head).values, rows[head, 1:].reshape(15, 16), rtol=1e-4)


def test_the_whole_row_sums_to_one_before_the_drop(vit, photo):
    seen = vit.looker.forward(vit.looker.prepare(photo, AttentionSettings()))
    assert seen.rows.shape == (2, 1 + 15 * 16)
    np.testing.assert_allclose(seen.rows.sum(1), 1, atol=1e-5)


def test_a_threshold_keeps_the_fewest_patches_and_their_raw_values(vit, photo):
    whole, kept = vit.attention(photo).values, vit.attention(photo, threshold=0.6).values
    mask = kept > 0
    np.testing.assert_array_equal(kept[mask], whole[mask])
    assert whole[mask].sum() >= 0.6 * whole.sum() > whole[mask].sum() - whole[mask].min()
    assert whole[mask].min() >= whole[~mask].max()
    np.testing.assert_array_equal(vit.attention(photo, threshold=1.0).values, whole)


def test_across_images_the_query_comes_from_the_first_and_the_scale_is_one(resnet, vit, photo):
    small = photo.resize((224, 224))
    for encoder in (resnet, vit):
        box = Box(40, 40, 130, 130)
        first, second = encoder.attention(photo, box, target=[photo, small])
        np.testing.assert_array_equal(first.values, encoder.attention(photo, box).values)
        assert (
            first.limits
            == second.limits
            == (
                min(first.values.min(), second.values.min()),
                max(first.values.max(), second.values.max()),
            )
        )
        alone = encoder.attention(photo, box, target=small)
        np.testing.assert_array_equal(alone.values, second.values)
        assert alone.scaled().max() == pytest.approx(1, abs=0.02)
        assert max(first.scaled().max(), second.scaled().max()) == pytest.approx(1, abs=0.02)


def test_without_a_query_the_class_token_is_looked_for_in_a_target(vit, photo):
    tokens = timms_features(vit, photo)[1][0].double().numpy()
    expected = loop(tokens[1:].reshape(15, 16, -1), tokens[0], "dot")
    found = vit.attention(photo, target=photo)
    assert found.kind == "dot"
    np.testing.assert_allclose(found.values, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert vit.attention(photo, similarity="cosine").kind == "cosine"


def test_patches_are_normed_where_the_network_norms_behind_its_pool(photo):
    backbone = randomized(create_backbone("test_vit", model_args={"global_pool": "avg", "dynamic_img_size": True}))
    torch.nn.init.uniform_(backbone.fc_norm.weight, 0.1, 3)
    encoder = Encoder(backbone, Preprocessing(160), name="it", device="cpu")
    with torch.no_grad():
        tokens = backbone.forward_features(timms_input(encoder, photo))[0].double()
    centerd = tokens - tokens.mean(1, keepdim=True)
    normed = centerd / (centerd.square().mean(1, keepdim=True) + backbone.fc_norm.eps).sqrt()
    normed = normed * backbone.fc_norm.weight.detach() + backbone.fc_norm.bias.detach()
    patches = normed[1:].numpy().reshape(15, 16, -1)
    for query, vector in ((Point(70, 100), patches[6, 4]), (None, normed[0].numpy())):
        expected = loop(patches, vector, "dot")
        found = encoder.attention(photo, query, target=photo)
        np.testing.assert_allclose(found.values, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_a_image_on_its_side_is_looked_at_upright(resnet, photo, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = tmp_path / "lying.png"
    photo.transpose(Image.Transpose.ROTATE_90).save(lying, exif=exif)
    upright, found = resnet.attention(photo, Point(200, 30)), resnet.attention(lying, Point(200, 30))
    assert found.size == (256, 240)
    np.testing.assert_array_equal(found.values, upright.values)
    np.testing.assert_array_equal(np.asarray(found.overlay()), np.asarray(upright.overlay()))


def test_small_patches_do_not_make_a_map_of_more_cells(photo):
    """At 1024 pixels a side a ViT with patches of 8 would see 16384 tokens."""
    small = {"patch_size": 8, "depth": 1, "embed_dim": 24}
    encoder = Encoder(create_backbone("vit_tiny_patch16_224", model_args=small), Preprocessing(224), device="cpu")
    found = encoder.attention(photo.resize((1024, 1024)), Point(500, 500))
    assert (found.size, found.input_size, found.values.shape) == ((1024, 1024), (512, 512), (64, 64))


def test_queries_are_in_pixels_of_the_original_whatever_the_networks_size(resnet, photo):
    large = photo.resize((1024, 960), Image.Resampling.NEAREST)
    small = resnet.attention(photo, Point(70, 100)).values
    found = resnet.attention(large, Point(280, 400), max_side=256)
    assert (found.size, found.input_size) == ((1024, 960), (256, 240))
    assert found.peak[0] == pytest.approx(4 * resnet.attention(photo, Point(70, 100)).peak[0], abs=130)
    assert np.corrcoef(found.values.ravel(), small.ravel())[0, 1] > 0.9
    assert found.scaled().shape == (960, 1024)


REFUSALS = [
    ("resnet", {"head": 0}, "head=0 is of a vision transformer's .CLS. row, which .* a ResNet, does not have"),
    ("resnet", {"threshold": 0.5}, "threshold=0.5 is of a vision transformer's"),
    ("vit", {"head": 2}, "There is no head 2: a small ViT has 2, from 0"),
    ("vit", {"head": -1}, "head=-1 is no head"),
    ("vit", {"head": True}, "head=True is no head"),
    ("vit", {"head": 0, "query": Point(3, 3)}, "leave out query, target and similarity, or head."),
    ("vit", {"threshold": 0.0}, "not in .0, 1."),
    ("vit", {"threshold": 1.01}, "not in .0, 1."),
    ("vit", {"threshold": float("nan")}, "not in .0, 1."),
    ("vit", {"threshold": 10**400}, "not in .0, 1."),
    ("vit", {"similarity": "l2"}, "none of dot, cosine"),
    ("vit", {"query": (3, 4)}, "A query is Point"),
    ("vit", {"query": Point(256, 3)}, "not inside the upright image of 256 x 240"),
    ("vit", {"query": Box(300, 0, 310, 5)}, "not inside the upright image of 256 x 240"),
    ("vit", {"max_side": 10}, "max_side=10 is too little"),
    ("vit", {"max_side": 0}, "max_side=0 is no length"),
    ("vit", {"target": []}, "list of target images is empty"),
    ("vit", {"target": ["a.jpg"] * 7}, "There are 7 target images: give 6"),
]


@pytest.mark.parametrize(("which", "question", "words"), REFUSALS)
def test_what_has_no_answer_is_refused_in_one_sentence(request, photo, which, question, words):
    with pytest.raises(InvalidRequest, match=words) as caught:
        request.getfixturevalue(which).attention(photo, **question)
    assert str(caught.value).count(". ") == 0
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (60, 3000)])
@pytest.mark.parametrize("which", ["resnet", "vit"])
def test_specks_and_strips_have_maps_too(request, which, size):
    found = request.getfixturevalue(which).attention(Image.new("RGB", size, "red"), Point(0, 0))
    assert np.isfinite(found.values).all()
    assert max(found.input_size) <= 1024
    assert found.scaled().shape == size[::-1]


def test_a_broken_target_is_named(resnet, photo, tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"nothing")
    with pytest.raises(ImageError, match=r"Image .*bad\.jpg: This is not an image"):
        resnet.attention(photo, target=[photo, tmp_path / "bad.jpg"])
    with pytest.raises(ImageError, match=r"Image .*gone\.jpg: The file cannot be opened"):
        resnet.attention(tmp_path / "gone.jpg")
    with pytest.raises(ImageError, match="Image number 1: This is not an image"):
        resnet.attention(photo, target=[photo, b"nothing"])


@pytest.mark.parametrize(
    ("architecture", "arguments", "words"),
    [
        ("test_vit", {"class_token": False, "global_pool": "avg"}, "has no .CLS. token to look from"),
        ("test_vit", {"attn_layer": "diff"}, "attends by DiffAttention, whose rows we cannot read"),
        ("test_convnext", {}, "test_convnext is not a ResNet or a vision transformer"),
    ],
)
def test_a_network_without_the_map_is_refused_by_name(photo, architecture, arguments, words):
    encoder = Encoder(create_backbone(architecture, model_args=arguments), Preprocessing(160), name="it", device="cpu")
    with pytest.raises(NNCLRHubError, match=words):
        encoder.attention(photo)
    if architecture == "test_vit":
        assert encoder.attention(photo, Point(5, 5)).values.shape == (15, 16)


def test_weights_that_are_no_numbers_are_refused(photo):
    backbone = create_backbone("test_resnet")
    torch.nn.init.constant_(next(backbone.parameters()), float("nan"))
    with pytest.raises(InvalidRequest, match="numbers that are not finite"):
        Encoder(backbone, Preprocessing(160), name="it", device="cpu").attention(photo)
