"""What Pillow does not read, or reads wrongly, is refused by a sentence that says what it is."""

import io
import struct

import numpy as np
import pytest
import tifffile

from nnclr_hub.encoder.decoding import decode_image
from nnclr_hub.errors import UnsupportedImage

GRAY = np.arange(256).reshape(16, 16)


def tiff(channels: int, photometric: int = 2) -> bytes:
    """4 x 4 pixels of 8 bits a channel; photometric 2 is RGB, 1 is gray, each with further channels."""
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
    """A codestream's first two markers."""
    sizes = struct.pack(">HHIIIIIIIIH", 38 + 3 * channels, 0, 4, 4, 0, 0, 4, 4, 0, 0, channels)
    return b"\xff\x4f\xff\x51" + sizes + bytes([7, 1, 1]) * channels


@pytest.mark.parametrize("data", [tiff(5), tiff(6), tiff(7, photometric=1), jpeg2000_header(5)])
def test_more_than_four_channels_are_refused_by_name(data):
    with pytest.raises(UnsupportedImage, match=r"has [567] channels"):
        decode_image(data)
    assert decode_image(tiff(3)).size == (4, 4)


def written(numbers: np.ndarray, big: bool = False) -> bytes:
    """As a laboratory's Python writes a TIFF."""
    file = io.BytesIO()
    photometric = "rgb" if numbers.shape[2:] == (3,) else "minisblack"
    tifffile.imwrite(file, numbers, photometric=photometric, bigtiff=big)
    return file.getvalue()


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        ((GRAY / 255).astype(np.float64), "1 channel of 64-bit floats"),
        ((GRAY / 255).astype(np.float16), "1 channel of 16-bit floats"),
        ((GRAY[..., None].repeat(3, -1) / 255).astype(np.float32), "3 channels of 32-bit floats"),
        (GRAY.astype(np.uint64), "1 channel of 64-bit unsigned integers"),
        ((GRAY - 128).astype(np.int8), "1 channel of 8-bit signed integers"),
    ],
    ids=["float64", "float16", "float32 RGB", "uint64", "int8"],
)
@pytest.mark.parametrize("big", [False, True], ids=["TIFF", "BigTIFF"])
def test_a_tiff_of_other_numbers_is_told_from_no_image(numbers, kind, big):
    with pytest.raises(UnsupportedImage, match=f"This TIFF holds {kind}, which we do not read: save it as"):
        decode_image(written(numbers, big))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.int32, np.uint32, np.float32])
@pytest.mark.parametrize("big", [False, True], ids=["TIFF", "BigTIFF"])
def test_the_numbers_that_the_sentence_names_are_read(dtype, big):
    np.testing.assert_array_equal(np.asarray(decode_image(written(GRAY.astype(dtype), big)))[..., 0], GRAY)


@pytest.mark.parametrize("tag", [256, 259, 262], ids=["width", "compression", "photometric"])
def test_a_damaged_tiff_of_usual_numbers_is_not_blamed_on_them(tag):
    """Its sentence would say that 8 bits are not read, and to save it with 8."""
    data = bytearray(written(GRAY.astype(np.uint8)))
    start = struct.unpack_from("<I", data, 4)[0]
    for place in range(start + 2, start + 2 + 12 * struct.unpack_from("<H", data, start)[0], 12):
        if struct.unpack_from("<H", data, place)[0] == tag:
            struct.pack_into("<H", data, place + (0 if tag == 256 else 8), 9)
    with pytest.raises(UnsupportedImage, match="not an image in a format we read"):
        decode_image(bytes(data))


def test_the_rest_is_no_image():
    """A TIFF's first bytes alone, and none."""
    for data in (b"II*\0", b"II*\0" + b"\xff" * 40, b"MM\0*" + bytes(8), b"hello"):
        with pytest.raises(UnsupportedImage, match="not an image in a format we read"):
            decode_image(data)


def test_an_empty_file_says_so():
    with pytest.raises(UnsupportedImage, match="The file is empty"):
        decode_image(b"")


def test_a_stack_is_read_by_its_first_page_and_its_folder_told_of_once(tmp_path, caplog):
    for name in ("a.tif", "b.tif"):
        tifffile.imwrite(tmp_path / name, np.stack([GRAY, GRAY[::-1]]).astype(np.uint8), photometric="minisblack")
    tifffile.imwrite(tmp_path / "one.tif", GRAY.astype(np.uint8))
    for name in ("one.tif", "a.tif", "b.tif"):
        np.testing.assert_array_equal(np.asarray(decode_image(tmp_path / name))[..., 0], GRAY)
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith(f"{tmp_path}/a.tif has several pages, of which the first alone is read")
