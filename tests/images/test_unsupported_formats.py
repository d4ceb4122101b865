"""Files that cannot be read are refused with the reason."""

import io
import struct

import numpy as np
import pytest
import tifffile

from nnclr_hub.errors import ImageError, UnsupportedImage
from nnclr_hub.images.decode import decode_any, decode_image
from nnclr_hub.images.reading import ImageReading

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
