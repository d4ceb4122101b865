"""The encoder: equal vectors for every kind of input, and separate errors for broken images."""

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
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest


def test_vectors_are_unit_and_equal_timms(encoder, model, image_files):
    """Compare with timm on the same folder, with the encoder's transform."""
    reference = timm.create_model(f"local-dir:{model}", pretrained=True).eval()
    with torch.no_grad():
        want = F.normalize(reference(torch.stack([encoder.transform(path) for path in image_files])))
    got = encoder.embed(image_files)
    assert got.dtype == np.float32
    assert got.shape == (len(image_files), encoder.embed_dim)
    np.testing.assert_allclose(got, want.numpy(), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)


def test_all_kinds_of_input_give_the_same_vector(encoder, image_files):
    path = image_files[0]
    image = Image.open(path).convert("RGB")
    pixels = np.asarray(image)
    ways = [path, str(path), path.read_bytes(), image, pixels]
    want = encoder.embed([path])[0]
    for way in ways:
        np.testing.assert_allclose(encoder.embed([way])[0], want, atol=1e-6)
    uint8 = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
    np.testing.assert_allclose(encoder.embed(uint8)[0], want, atol=1e-5)
    np.testing.assert_allclose(encoder.embed(encoder.transform(path)[None])[0], want, atol=1e-5)


def test_an_image_has_the_same_vector_in_every_batch(encoder, image_files):
    many = encoder.embed(image_files * 3)  # 180: three batches
    alone = np.concatenate([encoder.embed([path]) for path in image_files[:10]])
    np.testing.assert_allclose(many[:10], alone, atol=1e-5)


def test_a_broken_image_does_not_affect_the_others(encoder, image_files, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(image_files[0].read_bytes()[:500])
    results = encoder.embed_each([image_files[0], broken, b"", image_files[1]])
    assert [isinstance(result, ImageError) for result in results] == [False, True, True, False]
    np.testing.assert_allclose(results[3], encoder.embed([image_files[1]])[0], atol=1e-5)
    with pytest.raises(ImageError, match=r"broken\.jpg"):
        encoder.embed([image_files[0], broken])


@pytest.fixture
def batches(encoder, monkeypatch) -> list[int]:
    """The sizes of the batches that the network runs."""
    ran: list[int] = []
    run = encoder.forward_crops
    monkeypatch.setattr(encoder, "forward_crops", lambda crops, **how: (ran.append(len(crops)), run(crops, **how))[1])
    return ran


def test_generators_are_read_batch_by_batch(encoder, image_files, batches):
    """At most two batches ahead, so that a million images need no more memory than a few batches."""
    ahead = []

    def stream():
        for i in range(400):
            ahead.append(i - sum(batches))
            yield image_files[i % len(image_files)]

    assert len(encoder.embed_each(stream())) == 400
    assert max(ahead) <= 128


ONE = [None, 3, np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8), np.uint16), Path("a.jpg"), "photo.jpg"]
OTHER = [torch.zeros(3, 48, 48), torch.zeros(1, 3, 48, 48, dtype=torch.int64), [np.zeros((4, 4), bool)]]
NOTHING = ([], torch.zeros(0, 3, 48, 48), torch.zeros(0, 3, 48, 48, dtype=torch.uint8))


@pytest.mark.parametrize("images", [*ONE, *OTHER])
def test_a_single_image_and_other_inputs_are_refused(encoder, images):
    with pytest.raises(InvalidRequest):
        encoder.embed(images)


def test_no_images_give_no_vectors_and_nan_is_refused(encoder):
    for none in NOTHING:
        assert encoder.embed(none).shape == (0, encoder.embed_dim)
        with pytest.raises(InvalidRequest):
            encoder.tokens(none)
    assert encoder.embed_each(iter([])) == []
    with pytest.raises(InvalidRequest, match="NaN"):
        encoder.embed(torch.full((1, 3, 48, 48), float("nan")))


def test_tensors_of_any_float_type_and_length_are_accepted(encoder, image_files):
    x = torch.stack([encoder.transform(path) for path in image_files[:3]])
    np.testing.assert_allclose(encoder.embed(x.half()), encoder.embed(x), atol=5e-3)
    pixels = torch.randint(0, 256, (130, 3, 20, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(encoder.embed(pixels)[[0, 129]], encoder.embed(pixels[[0, 129]]), atol=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.int32, np.float32, np.float64])
def test_a_gray_array_equals_a_tiff_of_the_same_type(encoder, tmp_path, dtype):
    """An array as `tifffile.imread` returns it; float64, which files do not support, as float32."""
    gray = (np.add.outer(np.arange(64), np.arange(80)) % 256).astype(dtype)
    tifffile.imwrite(tmp_path / "gray.tif", gray.astype(np.float32) if dtype == np.float64 else gray)
    np.testing.assert_array_equal(encoder.embed([gray]), encoder.embed([tmp_path / "gray.tif"]))


def test_channels_first_arrays_are_tensors_and_channels_last_arrays_are_images(encoder, image_files):
    """uint8 gets the whole transform, float is transformed already."""
    pixels = np.stack([np.asarray(Image.open(path)) for path in image_files[:3]])  # (3, 64, 64, 3)
    want = encoder.embed(list(pixels))
    np.testing.assert_array_equal(encoder.embed(pixels), want)
    first = pixels.transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(encoder.embed(first), want)
    np.testing.assert_array_equal(encoder.embed_each(first), want)
    floats = torch.stack([encoder.transform(path) for path in image_files[:3]])
    np.testing.assert_array_equal(encoder.embed(floats.numpy()), encoder.embed(floats))
    np.testing.assert_array_equal(encoder.tokens(floats.numpy()), encoder.tokens(floats))
    foreign = floats.numpy().astype(">f4")
    foreign.flags.writeable = False
    np.testing.assert_array_equal(encoder.embed(foreign), encoder.embed(floats))
    for other in (first.astype(object), first.astype(np.int64)):
        with pytest.raises(InvalidRequest):
            encoder.embed(other)


def test_a_transformed_tensor_must_have_the_networks_input_size(make_model):
    vit = load_encoder(make_model("vit_tiny_patch16_224", {"depth": 1, "img_size": 32}, 32), device="cpu")
    assert vit.embed(torch.zeros(1, 3, 32, 32)).shape == (1, 192)
    with pytest.raises(InvalidRequest):
        vit.embed(torch.zeros(1, 3, 48, 64))


def test_embed_stops_at_the_first_broken_image(encoder, image_files, batches):
    """The rest of a long list is not embedded first."""
    with pytest.raises(ImageError):
        encoder.embed([image_files[0], b"bad", *image_files * 10])
    assert len(batches) == 1
    with pytest.raises(ImageError):
        encoder.tokens([image_files[0], b"bad"])


@pytest.mark.parametrize(("architecture", "args", "size", "grid"), [("resnet18", {}, 64, 2), ("test_vit", {}, 160, 10)])
def test_tokens_are_the_map_before_pooling(make_model, image_files, architecture, args, size, grid):
    """The mean of a ResNet's tokens is its vector."""
    encoder = load_encoder(make_model(architecture, args, size), device="cpu")
    tokens = encoder.tokens(image_files[:3])
    assert tokens.shape == (3, grid, grid, encoder.embed_dim)
    if architecture == "resnet18":
        pooled = torch.from_numpy(tokens.mean(axis=(1, 2)))
        np.testing.assert_allclose(F.normalize(pooled), encoder.embed(image_files[:3]), atol=1e-5)
        assert tokens.min() >= 0  # after the ReLU


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_precision_are_accepted(encoder, image_files, kind):
    """They are cast to float32, like those of a file."""
    backbone = copy.deepcopy(encoder.backbone).to(kind)
    cast = Encoder(backbone, encoder.transform.preprocessing, config=encoder.config, device="cpu")
    want = Encoder(copy.deepcopy(backbone).float(), encoder.transform.preprocessing, device="cpu")
    np.testing.assert_allclose(cast.embed(image_files[:3]), want.embed(image_files[:3]), atol=1e-6)
    assert cast.tokens(image_files[:1]).dtype == cast.attention(image_files[0]).values.dtype == np.float32
    assert (cast.fingerprint == encoder.fingerprint) == (kind is torch.float64)


def test_the_fingerprint_depends_on_weights_network_and_preprocessing_only(make_model, model, encoder):
    one = load_encoder(model, device="cpu")
    assert one.fingerprint == load_encoder(model, device="cpu", precision="bf16").fingerprint
    assert one.fingerprint != load_encoder(make_model(seed=1), device="cpu").fingerprint
    assert one.fingerprint != load_encoder(make_model(input_size=64), device="cpu").fingerprint
    heads = [load_encoder(make_model("test_vit", {"num_heads": n}, 160), device="cpu") for n in (2, 4)]
    two, four = (encoder.backbone.state_dict() for encoder in heads)
    assert all(torch.equal(two[key], four[key]) for key in two | four)
    assert heads[0].fingerprint != heads[1].fingerprint  # equal weights in another network
    ways = [Preprocessing(48, crop_mode=mode) for mode in ("center", "squash", "border")]
    assert len({Encoder(encoder.backbone, way, device="cpu").fingerprint for way in ways}) == 3
    # the stores of its users are bound to it
    starter = load_encoder("nnclr_resnet18_free_starter", device="cpu")
    assert starter.fingerprint == "8105a72627f5d7794e764a1fe53624e7"


@pytest.mark.parametrize("source", ["random:test_resnet@3", None])
def test_loading_does_not_advance_the_global_generator(source, model):
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    load_encoder(source or model, device="cpu")
    assert torch.equal(torch.rand(3), want)


def test_it_shows_its_name_network_size_and_fingerprint(encoder, model):
    assert encoder.fingerprint in encoder._repr_html_()
    assert repr(encoder) == (
        f"Encoder({str(model)!r}, backbone={encoder.config.architecture}, dim={encoder.embed_dim}, input=48x48, "
        f"backend=torch, device=cpu, fingerprint={encoder.fingerprint[:8]})"
    )
    unnamed = Encoder(encoder.backbone, Preprocessing(48), device="cpu")
    assert repr(unnamed).startswith("Encoder('encoder', backbone=ResNet, ")
