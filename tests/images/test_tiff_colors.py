"""The colors of TIFF files are those that Pillow reads, also of a chosen page and of a tile; others are refused."""

import io
import struct

import numpy as np
import pytest
import tifffile
from PIL import Image

from nnclr_hub.errors import ImageError, UnsupportedImage
from nnclr_hub.images.decode import decode_any, decode_image, decode_scaled, image_size
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import Source
from nnclr_hub.images.tiles import Tiling, tiles_of

RGB = np.random.default_rng(3).integers(0, 256, (30, 40, 3), dtype=np.uint8)
RGBA = np.dstack([RGB, RGB[:, :, :1]])
BY_PILLOW = {
    "palette": (Image.fromarray(RGB).quantize(16), {"tiffinfo": {274: 6}}),
    "cmyk": (Image.fromarray(RGB).convert("CMYK"), {"compression": "tiff_lzw"}),
    "rgba": (Image.fromarray(RGBA), {}),
    "la": (Image.fromarray(np.ascontiguousarray(RGBA[:, :, [0, 3]])), {}),
    **{f"orientation {k}": (Image.fromarray(RGB), {"tiffinfo": {274: k}}) for k in range(2, 9)},
}
BY_TIFFFILE = {
    "white is 0": (RGB[:, :, 0], {"photometric": "miniswhite"}),
    "one bit": (RGB[:, :, 0] > 127, {"photometric": "miniswhite"}),
    "associated alpha": (RGBA, {"photometric": "rgb", "extrasamples": [1]}),
}
WIDE = {
    "white is 0": (RGB[:, :, 0].astype(np.uint16) * 16, {"photometric": "miniswhite"}),  # 12 bits
    "alpha": (RGBA.astype(np.uint16) * 257, {"photometric": "rgb", "extrasamples": [2]}),
    "associated alpha": (RGBA.astype(np.uint16) * 257, {"photometric": "rgb", "extrasamples": [1]}),
}


def read(path, reading) -> np.ndarray:
    return np.asarray(decode_any(path, reading))


@pytest.mark.parametrize("kind", [*BY_PILLOW, *BY_TIFFFILE])
def test_pages_and_tiles_of_tiff_files_have_the_colors_of_the_plain_image(kind, tmp_path):
    path = tmp_path / "a.tif"
    if kind in BY_PILLOW:
        image, options = BY_PILLOW[kind]
        image.save(path, **options)
    else:
        tifffile.imwrite(path, BY_TIFFFILE[kind][0], **BY_TIFFFILE[kind][1])
    plain = np.asarray(decode_image(path))
    np.testing.assert_array_equal(read(path, ImageReading(page=0)), plain)
    assert image_size(path) == image_size(path, ImageReading(page=0)) == plain.shape[1::-1]
    np.testing.assert_array_equal(np.asarray(decode_image(Source.tile_of(path, (3, 5, 24, 27)))), plain[5:27, 3:24])
    if kind == "rgba":
        np.testing.assert_array_equal(read(path, ImageReading(channels=(3, 0, 1, 2))), RGBA[:, :, [3, 0, 1, 2]])


@pytest.mark.parametrize("kind", WIDE)
def test_images_of_16_bits_have_the_colors_of_those_of_8_bits(kind, tmp_path):
    values, options = WIDE[kind]
    for name, stored in (("wide", values), ("narrow", RGB[:, :, 0] if values.ndim == 2 else RGBA)):
        tifffile.imwrite(tmp_path / f"{name}.tif", stored, **options)
    expected = np.asarray(decode_image(tmp_path / "narrow.tif")).astype(int)
    path = tmp_path / "wide.tif"
    tile = Source.tile_of(path, (3, 5, 24, 27), tiles_of(path, Tiling(20))[0].window)
    np.testing.assert_allclose(read(path, PLAIN), expected, atol=1)
    np.testing.assert_allclose(read(path, ImageReading(page=0)), expected, atol=1)
    np.testing.assert_allclose(np.asarray(decode_image(tile)), expected[5:27, 3:24], atol=1)


def test_colors_that_are_not_converted_are_refused(tmp_path):
    path = tmp_path / "lab.tif"
    Image.fromarray(RGB).convert("LAB").save(path)
    with pytest.raises(UnsupportedImage):
        decode_image(path, ImageReading(page=0))
    plain = np.asarray(decode_image(path))
    np.testing.assert_array_equal(np.asarray(decode_image(Source.tile_of(path, (3, 5, 24, 27)))), plain[5:27, 3:24])
    tifffile.imwrite(path, np.full((20, 20), 1 + 1j, np.complex64))
    with pytest.raises(UnsupportedImage):
        decode_image(path)


def test_a_channel_of_unspecified_meaning_is_not_lost(tmp_path):
    path = tmp_path / "infrared.tif"
    tifffile.imwrite(path, RGBA, photometric="rgb", extrasamples=[0])
    with pytest.raises(UnsupportedImage):
        decode_image(path)
    np.testing.assert_array_equal(read(path, PLAIN), RGBA)
    np.testing.assert_array_equal(decode_scaled(path, None, bands=4).image, RGBA)


# ---- other types and numbers of channels

GRAY = np.arange(256).reshape(16, 16)


def jpeg2000_header(channels: int) -> bytes:
    """Make the first two markers of a codestream."""
    sizes = struct.pack(">HHIIIIIIIIH", 38 + 3 * channels, 0, 4, 4, 0, 0, 4, 4, 0, 0, channels)
    return b"\xff\x4f\xff\x51" + sizes + bytes([7, 1, 1]) * channels


@pytest.mark.parametrize("channels", [2, 4, 5, 6, "jpeg 2000"])
def test_channels_that_do_not_fit_do_not_become_rgb(channels):
    if channels == "jpeg 2000":
        data = jpeg2000_header(5)
    else:
        data = written(np.zeros((4, 4, channels), np.uint8), planarconfig="contig")
        for reading in (ImageReading((0, 1, channels)), ImageReading(page=1)):
            with pytest.raises(UnsupportedImage):
                decode_any(data, reading)
    with pytest.raises(UnsupportedImage, match="channels"):
        decode_image(data)


def written(numbers: np.ndarray, **options) -> bytes:
    """Write a TIFF file as scientific Python code does."""
    file = io.BytesIO()
    photometric = "rgb" if numbers.shape[2:] == (3,) else "minisblack"
    tifffile.imwrite(file, numbers, photometric=photometric, **options)
    return file.getvalue()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.int32, np.uint32, np.float32])
@pytest.mark.parametrize("big", [False, True], ids=["TIFF", "BigTIFF"])
def test_supported_pixel_types_are_read(dtype, big):
    np.testing.assert_array_equal(np.asarray(decode_image(written(GRAY.astype(dtype), bigtiff=big)))[..., 0], GRAY)


@pytest.mark.parametrize("tag", [256, 259], ids=["width", "compression"])
def test_a_damaged_tiff_is_not_blamed_on_its_pixel_type(tag):
    """The message must not say that 8 bits are unsupported."""
    data = bytearray(written(GRAY.astype(np.uint8)))
    start = struct.unpack_from("<I", data, 4)[0]
    for place in range(start + 2, start + 2 + 12 * struct.unpack_from("<H", data, start)[0], 12):
        if struct.unpack_from("<H", data, place)[0] == tag:
            struct.pack_into("<H", data, place + (0 if tag == 256 else 8), 9)
    with pytest.raises(ImageError) as caught:
        decode_image(bytes(data))
    assert "bit" not in str(caught.value)
