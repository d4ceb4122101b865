"""The blocks of pixels of a CZI file, which the directory at its end lists.

    directory = read_directory(file)
    directory.axes, directory.first, directory.length      # of each block
    pixels = read_block(file, directory, 0)                # (h, w, samples)

A file is a sequence of segments with a header of 32 bytes. The layout is published in the source of libCZI. Other
packages that read it need a path instead of an open file, or change their interface with each version.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from nnclr_hub.errors import ImageError, UnsupportedImage
from nnclr_hub.images.readers.package_import import load

HEADER = 32  # bytes of the header of a segment
DIRECTORY = 84  # where the header of the file has the position of the directory
ENTRIES = HEADER + 128  # where a directory has its entries
BLOCK = 256  # least number of bytes between the header of a block and its metadata
_ENTRY = struct.Struct("<2siqiiBB4si")  # before the dimensions
_DIMENSION = struct.Struct("<4siifi")
# dtype and number of samples by the number of a pixel type
KINDS = {
    0: ("<u1", 1),
    1: ("<u2", 1),
    2: ("<f4", 1),
    3: ("<u1", 3),
    4: ("<u2", 3),
    8: ("<f4", 3),
    9: ("<u1", 4),
    12: ("<i4", 1),
    13: ("<f8", 1),
}
RAW, JPEG, LZW, JPEG_XR, ZSTD, ZSTD_WITH_HEADER = 0, 1, 2, 4, 5, 6


@dataclass(frozen=True)
class Directory:
    """The N blocks of the full resolution, those above others last.

    axes: such as XYCZS.
    first, length: (N, axes) int64, where each block begins on each axis, and its length.
    dtype, samples: of a pixel; colors are red, green and blue.
    positions: (N,) int64, in the file.
    """

    axes: str
    first: np.ndarray
    length: np.ndarray
    dtype: np.dtype
    samples: int
    positions: np.ndarray


def read_directory(file: BinaryIO) -> Directory:
    """Read the directory of a file.

    Raises:
        ImageError: the file is broken, or its writer has not finished it.
        UnsupportedImage: its blocks have different kinds of pixels, or complex numbers.
    """
    file.seek(DIRECTORY)
    (position,) = struct.unpack("<q", _exactly(file, 8))
    if position <= 0:
        raise ImageError("The CZI file has no directory; its writer has not finished it.")
    file.seek(position)
    name, _, used = struct.unpack("<16sqq", _exactly(file, HEADER))
    if not name.startswith(b"ZISRAWDIRECTORY") or not 128 <= used <= 1 << 31:
        raise ImageError("The CZI file is broken: its directory is missing.")
    content = _exactly(file, used)
    found, kinds, at = [], set(), ENTRIES - HEADER
    for _ in range(struct.unpack_from("<i", content)[0]):
        kind, place, dimensions, at = _entry(content, at)
        size = {axis: length for axis, (_, length, _) in dimensions.items()}
        if size != {axis: stored for axis, (_, _, stored) in dimensions.items()}:
            continue  # a level of a pyramid
        kinds.add(kind)
        found.append((dimensions.pop("M", (0, 0, 0))[0], place, dimensions))
    if not found:
        raise ImageError("The CZI file has no image.")
    if len(kinds) > 1 or not kinds <= KINDS.keys():
        raise UnsupportedImage("The CZI file has channels of different kinds, or complex numbers; export it as TIFF.")
    found.sort(key=lambda one: one[0])  # by the number of the tile: later ones are above
    axes = "".join(dict.fromkeys(axis for *_, dimensions in found for axis in dimensions))
    if not {"X", "Y"} <= set(axes):
        raise ImageError("The CZI file is broken: its blocks have no width or height.")
    ranges = np.array([[one.get(axis, (0, 1, 1))[:2] for axis in axes] for *_, one in found], np.int64)
    dtype, samples = KINDS[kinds.pop()]
    positions = np.array([place for _, place, _ in found], np.int64)
    return Directory(axes, ranges[..., 0], ranges[..., 1], np.dtype(dtype), samples, positions)


def read_block(file: BinaryIO, directory: Directory, number: int) -> np.ndarray:
    """Return the pixels of a block: (h, w, samples).

    Raises:
        ImageError: it is broken.
        UnsupportedImage: its compression is unknown.
        ImportError: imagecodecs is needed, and not installed.
    """
    file.seek(directory.positions[number])
    name, _, _, metadata, _, size = struct.unpack("<16sqqiiq", _exactly(file, HEADER + 16))
    if not name.startswith(b"ZISRAWSUBBLOCK") or metadata < 0 or size < 0:
        raise ImageError("The CZI file is broken: a block of pixels is missing.")
    entry = _exactly(file, _ENTRY.size)
    compression, dimensions = _ENTRY.unpack(entry)[4], _ENTRY.unpack(entry)[-1]
    before = max(BLOCK, 16 + _ENTRY.size + dimensions * _DIMENSION.size)
    file.seek(directory.positions[number] + HEADER + before + metadata)
    height, width = (int(directory.length[number, directory.axes.index(axis)]) for axis in "YX")
    shape = height, width, directory.samples
    pixels = _decoded(_exactly(file, size), compression, directory.dtype, int(np.prod(shape)))
    if pixels.size != np.prod(shape) or pixels.dtype != directory.dtype:
        raise ImageError("The CZI file is broken: a block has other pixels than its directory lists.")
    pixels = pixels.reshape(shape)
    # their decoders return RGB; for JPEG XR by the format's documentation, not tried with a real file
    swapped = directory.samples > 1 and compression not in (JPEG, JPEG_XR)
    return pixels[..., [2, 1, 0, 3][: directory.samples]] if swapped else pixels


def _entry(content: bytes, at: int) -> tuple[int, int, dict[str, tuple[int, int, int]], int]:
    """Return the pixel type, position and (first, length, stored length) by axis of a block, and where it ends."""
    try:
        schema, kind, place, _, _, _, _, _, count = _ENTRY.unpack_from(content, at)
        at += _ENTRY.size
        dimensions = {}
        for start in range(at, at + count * _DIMENSION.size, _DIMENSION.size):
            axis, first, length, _, stored = _DIMENSION.unpack_from(content, start)
            dimensions[axis.rstrip(b"\0").decode("ascii")] = first, length, stored or length
    except (struct.error, UnicodeDecodeError) as error:
        raise ImageError("The CZI file is broken: its directory ends too early.") from error
    if schema != b"DV" or place < 0 or count < 0 or any(length < 1 for _, length, _ in dimensions.values()):
        raise ImageError("The CZI file is broken: its directory has an invalid entry.")
    return kind, place, dimensions, at + count * _DIMENSION.size


def _decoded(data: bytes, compression: int, dtype: np.dtype, count: int) -> np.ndarray:
    """Return a number of values of compressed data, in any shape."""
    size = count * dtype.itemsize
    if compression == RAW or len(data) == size:  # some writers call raw data compressed
        return np.frombuffer(data[:size], dtype) if len(data) >= size else np.zeros(0, dtype)
    codecs = load("imagecodecs")
    if compression in (JPEG, JPEG_XR):
        decode = codecs.jpeg8_decode if compression == JPEG else codecs.jpegxr_decode
        return np.asarray(decode(data))
    if compression == LZW:
        plain = codecs.lzw_decode(data, out=size)
    elif compression == ZSTD:
        plain = codecs.zstd_decode(data, out=size)
    elif compression == ZSTD_WITH_HEADER and data:
        head = data[: data[0]]  # its length; 1, and whether low and high bytes are apart
        plain = codecs.zstd_decode(data[data[0] :], out=size)
        if len(head) == 3 and head[1] == 1 and head[2] & 1 and dtype.itemsize == 2:
            plain = np.frombuffer(plain, np.uint8).reshape(2, -1).T.tobytes()
    else:
        raise UnsupportedImage(f"The CZI file has the compression {compression}, which is unknown; export it as TIFF.")
    return np.frombuffer(plain[: len(plain) // dtype.itemsize * dtype.itemsize], dtype)


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise ImageError("The CZI file ends too early.")
    return data
