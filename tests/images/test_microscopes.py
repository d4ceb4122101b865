"""CZI and ND2, the formats of microscopes."""

import io
import struct
import sys
from contextlib import suppress
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
from images.stacks import STACK, in_8_bits, pixels

from nnclr_hub.errors import ImageError
from nnclr_hub.images.decode import decode_any
from nnclr_hub.images.listing import list_images
from nnclr_hub.images.readers.microscopes import CziReader, Nd2Reader
from nnclr_hub.images.reading import PLAIN, ImageReading

CODES = {
    "raw": (0, lambda plane: plane.tobytes()),
    "lzw": (2, lambda plane: imagecodecs.lzw_encode(plane.tobytes())),
    "jpeg xr": (4, lambda plane: imagecodecs.jpegxr_encode(plane, level=1.0)),  # without loss
    "zstd": (5, lambda plane: imagecodecs.zstd_encode(plane.tobytes())),
    "zstd with header": (6, lambda plane: b"\1" + imagecodecs.zstd_encode(plane.tobytes())),
    "zstd of low and high bytes": (
        6, lambda plane: b"\3\1\1" + imagecodecs.zstd_encode(plane.view(np.uint8).reshape(-1, 2).T.tobytes())
    ),
}  # fmt: skip


def czi(values: np.ndarray, code: str = "raw", pyramid: bool = False, left_out: tuple[int, ...] = ()) -> bytes:
    """Write (Z, C, H, W) uint16 in blocks of half a plane, by the published layout of the format.

    Args:
        pyramid: add a block of half the resolution.
        left_out: pages and channels, such as (1, 3), without blocks.
    """

    def segment(name: bytes, content: bytes) -> bytes:
        size = -(-len(content) // 32) * 32
        return struct.pack("<16sqq", name, size, len(content)) + content.ljust(size, b"\0")

    half = values.shape[3] // 2
    places = [(z, c, x, 1) for z in range(len(values)) for c in range(values.shape[1]) for x in (0, half)]
    places = [place for place in places if place[0] not in left_out[:1] and place[1] not in left_out[1:]]
    compression, encode = CODES[code]
    entries: list[bytes] = []
    blocks = b""
    start = 32 + 544  # the header of the file
    for z, c, x, step in places + [(0, 0, 0, 2)] * pyramid:
        plane = np.ascontiguousarray(values[z, c, ::step, x : x + half : step])
        stored = dict(zip((b"Y", b"X"), plane.shape, strict=True))
        sizes = [(b"X", x - 7, half), (b"Y", 100, values.shape[2]), (b"C", c, 1), (b"Z", z, 1)]
        dimensions = b"".join(struct.pack("<4siifi", axis, at, n, 0.0, stored.get(axis, n)) for axis, at, n in sizes)
        place = start + len(blocks)
        entry = struct.pack("<2siqiiBB4si", b"DV", 1, place, 0, compression, 0, 0, b"", len(sizes)) + dimensions
        data = encode(plane)
        head = struct.pack("<iiq", 0, 0, len(data)) + entry
        blocks += segment(b"ZISRAWSUBBLOCK", head.ljust(max(256, len(head)), b"\0") + data)
        entries.append(entry)
    directory = segment(b"ZISRAWDIRECTORY", struct.pack("<i124x", len(entries)) + b"".join(entries))
    header = struct.pack("<iiii16s16siqqiq", 1, 0, 0, 0, bytes(16), bytes(16), 0, start + len(blocks), 0, 0, 0)
    return struct.pack("<16sqq", b"ZISRAWFILE", 544, 544) + header.ljust(544, b"\0") + blocks + directory


@pytest.mark.parametrize("code", CODES)
def test_channels_and_pages_of_a_czi(code, tmp_path):
    (tmp_path / "a.czi").write_bytes(czi(STACK, code, pyramid=True))
    assert list_images(tmp_path) == [tmp_path / "a.czi"]
    np.testing.assert_array_equal(pixels(tmp_path / "a.czi"), in_8_bits(STACK[0].transpose(1, 2, 0)))
    chosen = pixels(tmp_path / "a.czi", ImageReading((4, 1, 0), page=2))
    np.testing.assert_array_equal(chosen, in_8_bits(STACK[2][[4, 1, 0]].transpose(1, 2, 0)))
    with (tmp_path / "a.czi").open("rb") as file, CziReader().open(file) as stack:
        np.testing.assert_array_equal(stack.read(1, (3,), (20, 5, 40, 30))[..., 0], STACK[1, 3, 5:30, 20:40])


def test_a_sparse_czi_has_the_pages_and_channels_of_its_blocks():
    with CziReader().open(io.BytesIO(czi(STACK, left_out=(1, 3)))) as stack:
        assert (stack.pages, stack.channels) == (2, 4)
        for page, z in enumerate((0, 2)):
            expected = STACK[z, [0, 1, 2, 4]].transpose(1, 2, 0)
            np.testing.assert_array_equal(stack.read(page, (0, 1, 2, 3), None), expected)


def test_a_czi_of_the_library_of_zeiss():
    """Written by pylibCZIrw 6.1: two channels of 16 bits, a mosaic of two tiles, Zstandard of low and high bytes."""
    y, x = np.mgrid[:16, :24]
    with (Path(__file__).parent / "goldens" / "libczi.czi").open("rb") as file, CziReader().open(file) as stack:
        assert (stack.pages, stack.channels, stack.size, stack.dtype) == (1, 2, (24, 16), np.uint16)
        expected = np.stack([300 * x + 7 * y, 300 * x + 7 * y + 1000 * (y % 2)], axis=2)
        np.testing.assert_array_equal(stack.read(0, (0, 1), None), expected)


def test_damage_of_a_czi_is_an_error_of_the_image():
    """Cut at any place, or with any number of its directory replaced."""
    data = czi(STACK[:1, :2], "zstd")
    directory = data.index(b"ZISRAWDIRECTORY")
    for length in range(10, len(data) - 40, 173):
        with pytest.raises(ImageError):
            decode_any(data[:length], PLAIN)
    for place in range(directory + 16, directory + 400, 4):
        for number in (-1, 0, 2**31 - 1):
            broken = data[:place] + struct.pack("<i", number) + data[place + 4 :]
            with suppress(ImageError):  # some numbers have no meaning
                decode_any(broken, PLAIN)
    channel = data.rindex(b"C\0\0\0") + 4
    with CziReader().open(io.BytesIO(data[:channel] + struct.pack("<i", 2**30) + data[channel + 4 :])) as stack:
        assert stack.channels == 3  # and not 2**30


class FakeND2:
    """What the reader uses of nd2.ND2File, for T x Z frames of C channels; nothing writes real files."""

    def __init__(self, file):
        self.sizes, self.dtype = {"T": 1, "Z": 3, "C": 5, "Y": 40, "X": 52}, STACK.dtype

    def __enter__(self):
        return self

    def __exit__(self, *exception): ...

    def read_frame(self, index):
        return STACK[index]


def test_channels_and_pages_of_an_nd2(monkeypatch):
    monkeypatch.setitem(sys.modules, "nd2", type(sys)("nd2"))
    monkeypatch.setattr(sys.modules["nd2"], "ND2File", FakeND2, raising=False)
    data = b"\xda\xce\xbe\x0a" + bytes(100)
    assert Nd2Reader().takes(data, "")
    chosen = pixels(data, ImageReading((4, 1, 0), page=2))
    np.testing.assert_array_equal(chosen, in_8_bits(STACK[2][[4, 1, 0]].transpose(1, 2, 0)))
