"""The encoder: the same vectors by every way in, and one bad image for itself."""

import copy
from pathlib import Path

import numpy as np
import pytest
import tifffile
import timm
import torch
import torch.nn.functional as F
from PIL import Image

from nnclr_hub import Encoder, ImageError, load_encoder
from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.preprocess import Preprocessing
from nnclr_hub.errors import InvalidRequest, UnknownModel


@pytest.fixture(scope="module")
def encoder(model) -> Encoder:
    return load_encoder(model, device="cpu")


def test_vectors_are_unit_and_equal_timms(encoder, model, pictures):
    """timm on the same folder, fed with the encoder's own transform."""
    reference = timm.create_model(f"local-dir:{model}", pretrained=True).eval()
    with torch.no_grad():
        want = F.normalize(reference(torch.stack([encoder.transform(path) for path in pictures])))
    got = encoder.embed(pictures)
    assert got.dtype == np.float32
    assert got.shape == (len(pictures), encoder.embed_dim)
    np.testing.assert_allclose(got, want.numpy(), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)


def test_all_kinds_of_input_give_the_same_vector(encoder, pictures):
    path = pictures[0]
    picture = Image.open(path).convert("RGB")
    pixels = np.asarray(picture)
    ways = [path, str(path), path.read_bytes(), picture, pixels]
    want = encoder.embed([path])[0]
    for way in ways:
        np.testing.assert_allclose(encoder.embed([way])[0], want, atol=1e-6)
    uint8 = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
    np.testing.assert_allclose(encoder.embed(uint8)[0], want, atol=1e-5)
    np.testing.assert_allclose(encoder.embed(encoder.transform(path)[None])[0], want, atol=1e-5)


def test_a_image_has_the_same_vector_alone_and_in_any_batch(encoder, pictures):
    many = encoder.embed(pictures * 3)  # 180: three batches
    alone = np.concatenate([encoder.embed([path]) for path in pictures[:10]])
    np.testing.assert_allclose(many[:10], alone, atol=1e-5)


def test_one_bad_image_is_its_own_error(encoder, pictures, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(pictures[0].read_bytes()[:500])
    results = encoder.embed_each([pictures[0], broken, b"", pictures[1]])
    assert [isinstance(result, ImageError) for result in results] == [False, True, True, False]
    np.testing.assert_allclose(results[3], encoder.embed([pictures[1]])[0], atol=1e-5)
    with pytest.raises(ImageError, match=r"broken\.jpg"):
        encoder.embed([pictures[0], broken])


def test_nothing_in_gives_nothing_out(encoder):
    assert encoder.embed([]).shape == (0, encoder.embed_dim)
    assert encoder.embed_each(iter([])) == []


def test_generators_are_read_batch_by_batch(encoder, pictures):
    """Not more than two batches ahead, so that a list of a million needs no memory for a million."""
    taken, shown = [], []

    def stream():
        for i in range(400):
            taken.append(i)
            yield pictures[i % len(pictures)]

    original = encoder.forward_crops
    encoder.forward_crops = lambda crops, **how: (shown.append(len(taken)), original(crops, **how))[1]
    try:
        assert len(encoder.embed_each(stream())) == 400
    finally:
        del encoder.forward_crops
    assert shown[0] <= 128


@pytest.mark.parametrize(
    "images",
    ["picture.jpg", torch.zeros(3, 48, 48), torch.zeros(1, 3, 48, 48, dtype=torch.int64), [np.zeros((4, 4), bool)]],
)
def test_what_is_no_list_of_images_is_refused(encoder, images):
    with pytest.raises(InvalidRequest):
        encoder.embed(images)


def test_a_tensor_of_any_float_type_and_length_is_taken(encoder, pictures):
    x = torch.stack([encoder.transform(path) for path in pictures[:3]])
    np.testing.assert_allclose(encoder.embed(x.half()), encoder.embed(x), atol=5e-3)
    assert encoder.embed(x[:0]).shape == (0, encoder.embed_dim)
    assert encoder.embed(torch.zeros(0, 3, 9, 9, dtype=torch.uint8)).shape == (0, encoder.embed_dim)
    pixels = torch.randint(0, 256, (130, 3, 20, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(encoder.embed(pixels)[[0, 129]], encoder.embed(pixels[[0, 129]]), atol=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.int32, np.float32, np.float64])
def test_an_array_of_gray_is_the_tiff_of_such_numbers(encoder, tmp_path, dtype):
    """As `tifffile.imread` gives it; float64, which is read from no file, as float32."""
    gray = (np.add.outer(np.arange(64), np.arange(80)) % 256).astype(dtype)
    tifffile.imwrite(tmp_path / "gray.tif", gray.astype(np.float32) if dtype == np.float64 else gray)
    np.testing.assert_array_equal(encoder.embed([gray]), encoder.embed([tmp_path / "gray.tif"]))


@pytest.mark.parametrize("one", [None, 3, np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8), np.uint16), Path("a.jpg")])
def test_what_is_no_list_is_told_how_one_is_given(encoder, one):
    with pytest.raises(InvalidRequest, match=r"Give a list of images, even for one: encoder.embed\(\[image\]\)"):
        encoder.embed(one)


def test_an_array_of_channels_first_is_a_tensor_and_one_of_channels_last_are_images(encoder, pictures):
    """Whole pixels get the whole transform, floats are taken as transformed."""
    pixels = np.stack([np.asarray(Image.open(path)) for path in pictures[:3]])  # (3, 64, 64, 3)
    want = encoder.embed(list(pixels))
    np.testing.assert_array_equal(encoder.embed(pixels), want)
    first = pixels.transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(encoder.embed(first), want)
    np.testing.assert_array_equal(encoder.embed_each(first), want)
    floats = torch.stack([encoder.transform(path) for path in pictures[:3]])
    np.testing.assert_array_equal(encoder.embed(floats.numpy()), encoder.embed(floats))
    np.testing.assert_array_equal(encoder.tokens(floats.numpy()), encoder.tokens(floats))
    foreign = floats.numpy().astype(">f4")
    foreign.flags.writeable = False
    np.testing.assert_array_equal(encoder.embed(foreign), encoder.embed(floats))
    for other in (first.astype(object), first.astype(np.int64)):
        with pytest.raises(InvalidRequest, match="An array of images is uint8 RGB or transformed float"):
            encoder.embed(other)


def test_a_transformed_tensor_of_another_size_is_refused_where_the_network_has_one(make_model):
    vit = load_encoder(make_model("vit_tiny_patch16_224", {"depth": 1, "img_size": 32}, 32), device="cpu")
    assert vit.embed(torch.zeros(1, 3, 32, 32)).shape == (1, 192)
    with pytest.raises(InvalidRequest, match=r"32 x 32 pixels; these are 64 x 48"):
        vit.embed(torch.zeros(1, 3, 48, 64))


def test_the_first_bad_image_ends_embed_at_once(encoder, pictures):
    """A long list is not run to its end first; tokens names the image as well."""
    forwards = []
    original = encoder.forward_crops
    encoder.forward_crops = lambda crops, **how: (forwards.append(len(crops)), original(crops, **how))[1]
    try:
        with pytest.raises(ImageError, match="Image number 1: "):
            encoder.embed([pictures[0], b"bad", *pictures * 10])
    finally:
        del encoder.forward_crops
    assert len(forwards) == 1
    with pytest.raises(ImageError, match="Image number 1: "):
        encoder.tokens([pictures[0], b"bad"])


def test_many_threads_get_what_one_gets(encoder, pictures):
    from concurrent.futures import ThreadPoolExecutor

    want = encoder.embed(pictures[:8])
    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(encoder.embed, [pictures[:8]] * 16):
            np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("device", ["cuda:99", "nonsense", "xpu", "vulkan", "meta"])
def test_a_device_that_is_not_there_is_explained(model, device):
    with pytest.raises(InvalidRequest, match=device):
        load_encoder(model, device=device)


def test_nan_in_a_tensor_is_refused(encoder):
    with pytest.raises(InvalidRequest, match="NaN"):
        encoder.embed(torch.full((1, 3, 48, 48), float("nan")))


@pytest.mark.parametrize(("architecture", "args", "size", "grid"), [("resnet18", {}, 64, 2), ("test_vit", {}, 160, 10)])
def test_tokens_are_the_map_before_pooling(make_model, pictures, architecture, args, size, grid):
    """A ResNet's mean over them is its vector; a ViT's are its normed patch tokens."""
    encoder = load_encoder(make_model(architecture, args, size), device="cpu")
    tokens = encoder.tokens(pictures[:3])
    assert tokens.shape == (3, grid, grid, encoder.embed_dim)
    if architecture == "resnet18":
        pooled = torch.from_numpy(tokens.mean(axis=(1, 2)))
        np.testing.assert_allclose(F.normalize(pooled), encoder.embed(pictures[:3]), atol=1e-5)
        assert tokens.min() >= 0  # after the ReLU


def test_tokens_of_no_image_are_refused(encoder):
    for none in ([], torch.zeros(0, 3, 48, 48), torch.zeros(0, 3, 48, 48, dtype=torch.uint8)):
        with pytest.raises(InvalidRequest, match="No image was given: tokens needs at least one"):
            encoder.tokens(none)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_precision_are_taken(encoder, pictures, kind):
    """As those of a file are: their values in float32."""
    backbone = copy.deepcopy(encoder.backbone).to(kind)
    given = Encoder(backbone, encoder.transform.preprocessing, config=encoder.config, device="cpu")
    want = Encoder(copy.deepcopy(backbone).float(), encoder.transform.preprocessing, device="cpu")
    np.testing.assert_allclose(given.embed(pictures[:3]), want.embed(pictures[:3]), atol=1e-6)
    assert given.tokens(pictures[:1]).dtype == given.attention(pictures[0]).values.dtype == np.float32
    assert (given.fingerprint == encoder.fingerprint) == (kind is torch.float64)


def test_bf16_stays_near_fp32(model, pictures):
    exact, fast = (load_encoder(model, device="cpu", precision=p).embed(pictures[:20]) for p in ("fp32", "bf16"))
    assert (exact * fast).sum(axis=1).min() > 0.999


def test_the_fingerprint_tells_weights_and_preprocessing_and_nothing_else(make_model, model):
    one = load_encoder(model, device="cpu")
    assert one.fingerprint == load_encoder(model, device="cpu", precision="bf16").fingerprint
    assert one.fingerprint != load_encoder(make_model(seed=1), device="cpu").fingerprint
    assert one.fingerprint != load_encoder(make_model(input_size=64), device="cpu").fingerprint
    heads = [load_encoder(make_model("test_vit", {"num_heads": n}, 160), device="cpu") for n in (2, 4)]
    for (key, a), b in zip(
        heads[0].backbone.state_dict().items(), heads[1].backbone.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), key
    assert heads[0].fingerprint != heads[1].fingerprint  # the same weights in another network


def test_a_starters_fingerprint_is_what_stores_were_made_with():
    """Those of its users hold vectors under it: only another starter may have another."""
    starter = load_encoder("nnclr_resnet18_small_cpu_starter", device="cpu")
    assert starter.fingerprint == "7fb45fadcfadcd2f11034047326837df"


def test_another_crop_makes_other_vectors(encoder):
    ways = [Preprocessing(48, crop_mode=mode) for mode in ("center", "squash", "border")]
    assert len({Encoder(encoder.backbone, way, device="cpu").fingerprint for way in ways}) == 3


@pytest.mark.parametrize("source", ["random:test_resnet@3", None])
def test_loading_leaves_the_global_generator_alone(source, model):
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    load_encoder(source or model, device="cpu")
    assert torch.equal(torch.rand(3), want)


def test_backbones_are_explained_when_they_cannot_be_built():
    with pytest.raises(UnknownModel, match="resnet50"):
        create_backbone("resnet_50")
    with pytest.raises(InvalidRequest, match="num_legs"):
        create_backbone("resnet18", model_args={"num_legs": 4})
