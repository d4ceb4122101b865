"""Each map equals a loop over the paper's definition; sizes, EXIF and queries; refusals; many threads."""

import math
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import timm
import torch
from conftest import randomized
from PIL import Image
from timm.layers.attention import Attention

from nnclr_hub import Box, Encoder, Point, load_encoder
from nnclr_hub.encoder.attention.extractor import class_token_rows
from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import ImageError, InvalidRequest


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

    return Image.fromarray(data.cat()).crop((60, 0, 316, 240))  # 256 x 240, whole patches of 16 pixels


def timms_input(encoder, image):
    """(1, 3, H, W): the image's own pixels, normalized."""
    colors = encoder.transform.preprocessing
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (colors.mean, colors.std))
    return ((torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 - mean) / std)[None]


def timms_features(encoder, image):
    """Return another timm network with the same weights, and its features of the image at its own size."""
    transformer = encoder.heads is not None
    arguments = {"dynamic_img_size": True} if transformer else {"channels": [8, 16, 24, 32]}
    network = timm.create_model("test_vit" if transformer else "resnet18", num_classes=0, **arguments).eval()
    network.load_state_dict(encoder.backbone.state_dict())
    with torch.no_grad():
        return network, network.forward_features(timms_input(encoder, image))


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
    ("which", "query", "cells"),
    [
        ("resnet", None, [(i, j) for i in range(8) for j in range(8)]),
        ("resnet", Point(70, 100), [(3, 2)]),
        ("resnet", Box(60, 60, 140, 100), [(2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (3, 4)]),
        ("resnet", Box(70, 70, 72, 72), [(2, 2)]),
        ("vit", Point(70, 100), [(6, 4)]),
        ("vit", Box(64, 64, 100, 90), [(4, 4), (4, 5), (5, 4), (5, 5)]),
    ],
)
def test_a_map_equals_a_loop(request, photo, which, query, cells, similarity):
    encoder = request.getfixturevalue(which)
    features = timms_features(encoder, photo)[1][0].double()
    grid = (features[1:].reshape(15, 16, -1) if which == "vit" else features.permute(1, 2, 0)).numpy()
    expected = loop(grid, np.mean([grid[cell] for cell in cells], 0), similarity)
    found = encoder.attention(photo, query, similarity=similarity)
    assert (found.kind, found.values.dtype) == (similarity, np.float32)
    assert found.size == found.input_size == (256, 240)
    np.testing.assert_allclose(found.values, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def rows_of_timm(vit, photo):
    """Return (heads, 1 + patches): the last block's softmax in a copy of the network without fused attention."""
    network, _ = timms_features(vit, photo)
    last, caught = network.blocks[-1].attn, []
    last.fused_attn = False
    last.attn_drop.register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0][0, :, 0]))
    with torch.no_grad():
        network(timms_input(vit, photo))
    return caught[0].double().numpy()


def test_a_transformers_map_without_a_query_is_the_row_of_its_class_token(vit, photo):
    rows = rows_of_timm(vit, photo)
    np.testing.assert_allclose(rows.sum(1), 1, atol=1e-6)
    found = vit.attention(photo)
    assert found.kind == "class_token"
    np.testing.assert_allclose(found.values, rows.mean(0)[1:].reshape(15, 16), rtol=1e-4)
    assert found.values.sum() == pytest.approx(1 - rows.mean(0)[0], abs=1e-5)  # not renormalized
    for head in (0, 1):
        np.testing.assert_allclose(vit.attention(photo, head=head).values, rows[head, 1:].reshape(15, 16), rtol=1e-4)


def test_a_threshold_keeps_the_fewest_patches_and_their_raw_values(vit, photo):
    whole, kept = vit.attention(photo).values, vit.attention(photo, threshold=0.6).values
    mask = kept > 0
    np.testing.assert_array_equal(kept[mask], whole[mask])
    assert whole[mask].sum() >= 0.6 * whole.sum() > whole[mask].sum() - whole[mask].min()
    assert whole[mask].min() >= whole[~mask].max()
    np.testing.assert_array_equal(vit.attention(photo, threshold=1.0).values, whole)


def test_targets_use_the_query_of_the_first_image_and_share_one_scale(resnet, vit, photo):
    small = photo.resize((224, 224))
    for encoder in (resnet, vit):
        box = Box(40, 40, 130, 130)
        first, second = encoder.attention(photo, box, target=[photo, small])
        np.testing.assert_array_equal(first.values, encoder.attention(photo, box).values)
        both = np.concatenate([first.values.ravel(), second.values.ravel()])
        assert first.limits == second.limits == (both.min(), both.max())
        alone = encoder.attention(photo, box, target=small)
        np.testing.assert_array_equal(alone.values, second.values)
        assert alone.scaled().max() == pytest.approx(1, abs=0.02)
        assert max(first.scaled().max(), second.scaled().max()) == pytest.approx(1, abs=0.02)


def test_without_a_query_a_target_is_compared_with_the_class_token(vit, photo):
    tokens = timms_features(vit, photo)[1][0].double().numpy()
    expected = loop(tokens[1:].reshape(15, 16, -1), tokens[0], "dot")
    found = vit.attention(photo, target=photo)
    assert found.kind == "dot"
    np.testing.assert_allclose(found.values, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert vit.attention(photo, similarity="cosine").kind == "cosine"


def test_patches_are_normalized_if_the_network_has_a_norm_after_its_pool(photo):
    backbone = randomized(create_backbone("test_vit", model_args={"global_pool": "avg", "dynamic_img_size": True}))
    torch.nn.init.uniform_(backbone.fc_norm.weight, 0.1, 3)
    encoder = Encoder(backbone, Preprocessing(160), name="it", device="cpu")
    with torch.no_grad():
        tokens = backbone.forward_features(timms_input(encoder, photo))[0].double()
    centered = tokens - tokens.mean(1, keepdim=True)
    normed = centered / (centered.square().mean(1, keepdim=True) + backbone.fc_norm.eps).sqrt()
    normed = normed * backbone.fc_norm.weight.detach() + backbone.fc_norm.bias.detach()
    patches = normed[1:].numpy().reshape(15, 16, -1)
    for query, vector in ((Point(70, 100), patches[6, 4]), (None, normed[0].numpy())):
        expected = loop(patches, vector, "dot")
        found = encoder.attention(photo, query, target=photo)
        np.testing.assert_allclose(found.values, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_an_image_with_an_orientation_is_turned_upright(resnet, photo, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = tmp_path / "turned.png"
    photo.transpose(Image.Transpose.ROTATE_90).save(turned, exif=exif)
    upright, found = resnet.attention(photo, Point(200, 30)), resnet.attention(turned, Point(200, 30))
    assert found.size == (256, 240)
    np.testing.assert_array_equal(found.values, upright.values)
    np.testing.assert_array_equal(np.asarray(found.overlay()), np.asarray(upright.overlay()))


def test_small_patches_do_not_make_a_map_of_more_cells(photo):
    """With patches of 8, 1024 x 1024 pixels would be 16384 tokens."""
    small = {"patch_size": 8, "depth": 1, "embed_dim": 24}
    encoder = Encoder(create_backbone("vit_tiny_patch16_224", model_args=small), Preprocessing(224), device="cpu")
    found = encoder.attention(photo.resize((1024, 1024)), Point(500, 500))
    assert (found.size, found.input_size, found.values.shape) == ((1024, 1024), (512, 512), (64, 64))


def test_queries_are_in_pixels_of_the_original_at_every_input_size(resnet, photo):
    large = photo.resize((1024, 960), Image.Resampling.NEAREST)
    small = resnet.attention(photo, Point(70, 100)).values
    found = resnet.attention(large, Point(280, 400), max_side=256)
    assert (found.size, found.input_size) == ((1024, 960), (256, 240))
    assert found.peak[0] == pytest.approx(4 * resnet.attention(photo, Point(70, 100)).peak[0], abs=130)
    assert np.corrcoef(found.values.ravel(), small.ravel())[0, 1] > 0.9
    assert found.scaled().shape == (960, 1024)


def test_the_whole_image_is_seen_small_with_a_center_prior(resnet, vit, photo):
    large = photo.resize((1024, 960))
    for encoder in (resnet, vit):
        found, plain = encoder.attention(large), encoder.attention(large, center_prior=False)
        assert (found.center_prior, min(found.input_size)) == (True, 256)
        assert (plain.center_prior, min(plain.input_size)) == (False, 960)
        assert found.describe()["center_prior"]
        np.testing.assert_array_equal(plain.shown(), plain.scaled())
        for other in (encoder.attention(large, Point(500, 500)), encoder.attention(large, target=large)):
            assert (other.center_prior, min(other.input_size)) == (False, 960)
        given = encoder.attention(large, max_side=512)
        assert (given.center_prior, given.input_size) == (True, (512, 480))
    for options in PARTS:
        assert not vit.attention(large, **options).center_prior
    assert vit.attention(photo, center_prior=True).center_prior


PARTS = [{"query": Point(5, 5)}, {"query": Box(1, 1, 9, 9)}, {"head": 1}, {"threshold": 0.6}]
REFUSALS = [
    ("resnet", {"center_prior": 1}, "center_prior"),
    *(("vit", {"center_prior": True, **more}, "center_prior") for more in PARTS),
    ("vit", {"center_prior": True, "target": ["a.jpg"]}, "target"),
    ("resnet", {"head": 0}, "head"),
    ("resnet", {"threshold": 0.5}, "threshold"),
    ("vit", {"head": 2}, "head"),
    ("vit", {"head": -1}, "head"),
    ("vit", {"head": True}, "head"),
    ("vit", {"head": 0, "query": Point(3, 3)}, "head"),
    ("vit", {"threshold": 0.0}, "threshold"),
    ("vit", {"threshold": 1.01}, "threshold"),
    ("vit", {"threshold": float("nan")}, "threshold"),
    ("vit", {"threshold": 10**400}, "threshold"),
    ("vit", {"similarity": "l2"}, "similarity"),
    ("vit", {"query": (3, 4)}, "query"),
    ("vit", {"query": Point(256, 3)}, "256 x 240"),
    ("vit", {"query": Box(300, 0, 310, 5)}, "256 x 240"),
    ("vit", {"max_side": 10}, "max_side"),
    ("vit", {"max_side": 0}, "max_side"),
    ("vit", {"target": []}, "empty"),
    ("vit", {"target": ["a.jpg"] * 7}, "got 7"),
]


@pytest.mark.parametrize(("which", "settings", "word"), REFUSALS)
def test_unsupported_settings_are_refused(request, photo, which, settings, word):
    with pytest.raises(InvalidRequest, match=word):
        request.getfixturevalue(which).attention(photo, **settings)


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (60, 3000)])
@pytest.mark.parametrize("which", ["resnet", "vit"])
def test_tiny_and_thin_images_have_maps(request, which, size):
    found = request.getfixturevalue(which).attention(Image.new("RGB", size, "red"), Point(0, 0))
    assert np.isfinite(found.values).all()
    assert max(found.input_size) <= 1024
    assert found.scaled().shape == size[::-1]


def test_the_error_of_a_broken_image_names_it(resnet, photo, tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"nothing")
    with pytest.raises(ImageError, match=r"bad\.jpg"):
        resnet.attention(photo, target=[photo, tmp_path / "bad.jpg"])
    with pytest.raises(ImageError, match=r"gone\.jpg"):
        resnet.attention(tmp_path / "gone.jpg")
    with pytest.raises(ImageError):
        resnet.attention(photo, target=[photo, b"nothing"])


@pytest.mark.parametrize(
    ("architecture", "arguments", "word"),
    [
        ("test_vit", {"class_token": False, "global_pool": "avg"}, "CLS"),
        ("test_vit", {"attn_layer": "diff"}, "DiffAttention"),
        ("test_convnext", {}, "test_convnext"),
        ("test_resnet", {}, "NaN"),
    ],
)
def test_a_network_that_does_not_support_a_map_is_refused(photo, architecture, arguments, word):
    backbone = create_backbone(architecture, model_args=arguments)
    if word == "NaN":
        torch.nn.init.constant_(next(backbone.parameters()), float("nan"))
    encoder = Encoder(backbone, Preprocessing(160), name="it", device="cpu")
    with pytest.raises(InvalidRequest, match=word):
        encoder.attention(photo)
    if architecture == "test_vit":
        assert encoder.attention(photo, Point(5, 5)).values.shape == (15, 16)


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
    attention.fused_attn, caught = False, []  # the softmax is then the input of the dropout
    attention.attn_drop.register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0]))
    attention(x)
    torch.testing.assert_close(found, caught[0][:, :, 0])
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 3))
    assert found.std() > 0.01


@pytest.mark.parametrize("which", ["resnet", "vit"])
def test_attention_and_embeddings_in_parallel_do_not_affect_each_other(request, which, image_files):
    encoder = request.getfixturevalue(which)
    calls = [lambda: encoder.embed(image_files[:4])]
    for path in image_files[:4]:
        calls += [
            lambda path=path: encoder.attention(path).values,
            lambda path=path: encoder.attention(path, Point(20, 30)).values,
        ]
    wanted = [call() for call in calls]
    start = threading.Barrier(3)

    def repeat(own: Iterable[int]) -> bool:
        start.wait()
        return all(np.array_equal(calls[i](), wanted[i]) for i in own)

    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(repeat, ([0, 0, 0], range(1, 9), range(8, 0, -1))))
    np.testing.assert_array_equal(calls[0](), wanted[0])


def test_attention_computes_in_float32_with_every_backend(model, image_files):
    plain, other = load_encoder(model, device="cpu"), load_encoder(model, device="cpu", backend="torch-bf16")
    np.testing.assert_array_equal(other.attention(image_files[0]).values, plain.attention(image_files[0]).values)
    assert np.abs(other.embed(image_files[:1]) - plain.embed(image_files[:1])).max() > 0
