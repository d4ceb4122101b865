"""Files that cannot be read are refused with the reason."""

import io
import struct

import numpy as np
import pytest
import tifffile

from nnclr_hub.errors import ImageError, UnsupportedImage
from nnclr_hub.images.decode import decode_image

GRAY = np.arange(256).reshape(16, 16)


def tiff(channels: int, photometric: int = 2) -> bytes:
    """Make 4 x 4 pixels of 8 bits per channel; photometric 2 is RGB, 1 is gray, plus more channels."""
    tags = [
        (256, 3, 1, 4),  # width
        (257, 3, 1, 4),  # height
        (258, 3, 1, 8),  # bits of a sample
        (259, 3, 1, 1),  # no compression
        (262, 3, 1, photometric),
        (273, 4, 1, 8),  # where the pixels are
        (277, 3, 1, channels),
        (279, 4, 1, 16 * channels),
    ]
    pixels = bytes(16 * channels)
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0" + struct.pack("<I", 8 + len(pixels)) + pixels + struct.pack("<H", len(tags)) + entries + bytes(4)


def jpeg2000_header(channels: int) -> bytes:
    """Make the first two markers of a codestream."""
    sizes = struct.pack(">HHIIIIIIIIH", 38 + 3 * channels, 0, 4, 4, 0, 0, 4, 4, 0, 0, channels)
    return b"\xff\x4f\xff\x51" + sizes + bytes([7, 1, 1]) * channels


@pytest.mark.parametrize("data", [tiff(5), tiff(6), tiff(7, photometric=1), jpeg2000_header(5)])
def test_more_than_four_channels_do_not_become_rgb(data):
    with pytest.raises(UnsupportedImage, match="channels"):
        decode_image(data)
    assert decode_image(tiff(3)).size == (4, 4)


def written(numbers: np.ndarray, big: bool = False) -> bytes:
    """Write a TIFF file as scientific Python code does."""
    file = io.BytesIO()
    photometric = "rgb" if numbers.shape[2:] == (3,) else "minisblack"
    tifffile.imwrite(file, numbers, photometric=photometric, bigtiff=big)
    return file.getvalue()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.int32, np.uint32, np.float32])
@pytest.mark.parametrize("big", [False, True], ids=["TIFF", "BigTIFF"])
def test_supported_pixel_types_are_read(dtype, big):
    np.testing.assert_array_equal(np.asarray(decode_image(written(GRAY.astype(dtype), big)))[..., 0], GRAY)


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
