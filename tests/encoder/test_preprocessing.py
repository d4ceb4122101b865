"""Decoding is safe and correct; the transform equals timm's."""

import csv
import os
import struct
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import timm.data
import torch
from image_bytes import encoded
from PIL import Image

from nnclr_hub.encoder.preprocessing import EvalTransform, Preprocessing
from nnclr_hub.errors import ImageError, ImageTooLarge, InvalidRequest, UnsupportedImage, WeightsMismatch
from nnclr_hub.images import decode as decoding
from nnclr_hub.images.decode import decode_image, decode_scaled


@pytest.mark.parametrize(
    "format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM", "ICO", "QOI", "JPEG2000", "HEIF"]
)
def test_every_supported_format_is_read(format):
    if format not in decoding.readable_formats():
        pytest.skip(f"{format} cannot be read here")
    image = Image.new("RGB", (32, 32), (200, 100, 50))
    try:
        data = encoded(image, format)
    except (KeyError, OSError):
        pytest.skip(f"this Pillow cannot write {format}")
    read = decode_image(data)
    assert (read.mode, read.size) == ("RGB", (32, 32))
    assert np.abs(np.asarray(read).mean(axis=(0, 1)) - (200, 100, 50)).max() < 8


@pytest.mark.parametrize("brand", [b"heic", b"mif1", b"heix"])
def test_a_heic_image_without_its_package_names_the_extra(monkeypatch, brand):
    monkeypatch.setattr(decoding, "readable_formats", lambda: ("JPEG", "PNG"))
    monkeypatch.setattr(decoding, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedImage, match="formats"):
        decode_image(b"\0\0\0\x18ftyp" + brand + bytes(100))


def test_images_are_turned_upright_by_their_exif():
    image = Image.new("RGB", (20, 10), "red")
    image.paste("blue", (0, 0, 10, 10))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90 degrees clockwise
    read = decode_image(encoded(image, "PNG", exif=exif))
    assert read.size == (10, 20)
    assert read.getpixel((5, 2)) == (0, 0, 255)


@pytest.mark.parametrize(
    ("image", "pixel"),
    [
        (Image.new("L", (4, 4), 77), (77, 77, 77)),
        (Image.new("1", (4, 4), 1), (255, 255, 255)),
        (Image.new("LA", (4, 4), (0, 0)), (255, 255, 255)),
        (Image.new("RGBA", (4, 4), (255, 0, 0, 0)), (255, 255, 255)),
        (Image.new("RGBA", (4, 4), (255, 0, 0, 255)), (255, 0, 0)),
        (Image.new("RGBA", (4, 4), (0, 0, 0, 127)), (128, 128, 128)),
    ],
)
def test_gray_becomes_rgb_and_transparency_goes_over_white(image, pixel):
    assert decode_image(encoded(image)).getpixel((1, 1)) == pixel


def test_tiny_and_thin_images_need_little_memory():
    transform = EvalTransform(Preprocessing(224))
    for size in ((1, 1), (1, 3000), (3000, 1), (8000, 16)):
        image = decode_image(encoded(Image.new("RGB", size, "green")))
        tracemalloc.start()
        crop = transform.crop(image)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert crop.shape == (224, 224, 3)
        assert (crop == (0, 128, 0)).all()
        assert peak < 20e6


def png_that_claims(width: int, height: int) -> bytes:
    """Make a PNG file whose header claims a size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    signature = b"\x89PNG\r\n\x1a\n"
    return (
        signature + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + b"\0\0\0\x0aIDAT" + bytes(20)
    )


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", UnsupportedImage),
        (b"nonsense" * 100, UnsupportedImage),
        (b"II*\0", UnsupportedImage),
        (b"II*\0" + b"\xff" * 40, UnsupportedImage),
        (b"MM\0*" + bytes(8), UnsupportedImage),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", UnsupportedImage),
        (encoded(Image.effect_noise((64, 64), 50).convert("RGB"), "JPEG")[:700], ImageError),
        (png_that_claims(100_000, 100_000), ImageTooLarge),
        (png_that_claims(8000, 5001), ImageTooLarge),
        (Image.fromarray(np.zeros((4, 4), np.uint8)).tobytes(), ImageError),
    ],
)
def test_other_bytes_raise_an_image_error_with_a_one_line_message(data, kind):
    with pytest.raises(kind) as caught:
        decode_image(data)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_opened_is_an_image_error(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")  # opening it would wait for a writer forever
    for path in (tmp_path, tmp_path / "missing.jpg", tmp_path / "pipe.jpg", "a\0b.jpg", "x" * 5000):
        with pytest.raises(ImageError):
            decode_image(path)


@pytest.mark.parametrize("source", [None, 3, bytearray(b"x"), torch.zeros(3, 4, 4)])
def test_an_object_that_is_not_an_image_is_an_invalid_request(source):
    with pytest.raises(InvalidRequest):
        decode_image(source)


def test_no_warning_escapes_from_threads():
    """Many threads decode an image that Pillow warns about; warnings are errors in these tests."""
    exif = b"Exif\0\0II*\0\x08\0\0\0\xff\xff"  # claims entries that do not exist
    data = encoded(Image.new("RGB", (64, 64), "red"), "JPEG", exif=exif)
    with ThreadPoolExecutor(8) as pool:
        assert all(image.size == (64, 64) for image in pool.map(decode_image, [data] * 200))


def test_the_limit_of_forty_megapixels_also_applies_to_pillow_images():
    with pytest.raises(ImageTooLarge):
        decode_image(Image.new("1", (8000, 5001)))
    assert decode_image(Image.new("1", (8000, 5000))).size == (8000, 5000)


def test_missing_settings_have_timms_defaults():
    want = timm.data.resolve_data_config({}, pretrained_cfg={"num_classes": 0})
    assert Preprocessing.from_pretrained_cfg({}) == Preprocessing.from_pretrained_cfg(want)


@pytest.mark.parametrize(
    "harm",
    [
        {"mean": [0.5]},
        {"mean": "x"},
        {"mean": [0.5, 0.5, float("nan")]},
        {"std": [0, 0, 0]},
        {"input_size": "x"},
        {"input_size": []},
        {"input_size": [3, 0, 0]},
        {"input_size": [3, 48, 64]},
        {"input_size": [4, 28, 29]},
        {"input_size": [3, 10**6, 10**6]},
        {"crop_pct": 1.5},
        {"interpolation": "magic"},
        {"crop_mode": "stretch"},
    ],
    ids=str,
)
def test_invalid_settings_are_refused(harm):
    with pytest.raises(WeightsMismatch):
        Preprocessing.from_pretrained_cfg(harm)


@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (0, 3, 1, 2)])
def test_both_layouts_of_crops_are_normalized_equally(layout):
    crops = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    preprocessing = Preprocessing(8)
    want = (crops / 255 - preprocessing.mean) / preprocessing.std
    got = EvalTransform(preprocessing).normalize(torch.from_numpy(crops).permute(*layout))
    np.testing.assert_allclose(got.permute(0, 2, 3, 1), want, atol=1e-5)


@pytest.mark.parametrize("size", [(500, 375), (224, 224), (301, 1024), (63, 91)])
@pytest.mark.parametrize(
    ("input_size", "crop_pct", "crop_mode"),
    [
        *((224, 0.875, "center"), (64, 0.875, "center"), (96, 1.0, "center"), (128, 0.9, "center")),
        *((96, 1.0, "squash"), (64, 0.9, "squash"), (96, 1.0, "border"), (64, 0.75, "border")),
    ],
)
def test_the_transform_equals_timms(size, input_size, crop_pct, crop_mode):
    """Within a mean of one gray level of timm's evaluation transform, although it crops before it resizes."""
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
    image = small.resize(size, Image.Resampling.BICUBIC)
    settings = {"input_size": (3, input_size, input_size), "crop_pct": crop_pct, "crop_mode": crop_mode}
    preprocessing = Preprocessing.from_pretrained_cfg(settings)
    reference = timm.data.create_transform(
        input_size=input_size,
        crop_pct=crop_pct,
        crop_mode=crop_mode,
        mean=preprocessing.mean,
        std=preprocessing.std,
        interpolation="bicubic",
    )
    ours, theirs = EvalTransform(preprocessing)(image), reference(image)
    gray_levels = (ours - theirs).abs() * torch.tensor(preprocessing.std)[:, None, None] * 255
    assert gray_levels.mean() < 1.0


@pytest.mark.data
@pytest.mark.parametrize("short", [None, 8])
def test_every_file_of_the_nasty_pack_is_decoded_or_refused(pack, short):
    """As listed in its manifest; the only exception is ImageError."""
    folder = pack("nasty.tar")
    wrong = []
    with (folder / "manifest.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            path = folder / row["file"]
            try:
                outcome = "decode" if decode_scaled(path, short).image.mode == "RGB" else "not RGB"
            except ImageError as error:
                outcome = "refuse"
                sentence = str(error)
                assert sentence.endswith("."), sentence
                assert not [bad for bad in ("\n", "0x", str(folder), "<") if bad in sentence], sentence
            if row["expect"] not in (outcome, "either"):
                wrong.append((row["file"], row["expect"], outcome))
    assert wrong == []
