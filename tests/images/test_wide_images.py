"""16 bits per channel are scaled, not cut, in every format; drawings on a transparent ground stay visible."""

import io
import struct
import zlib
from itertools import combinations

import numpy as np
import pytest
from PIL import Image, ImageDraw

from nnclr_hub.errors import ImageError, UnsupportedImage
from nnclr_hub.images.decode import decode_image
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.workbench.image_record import pixel_hash

tifffile = pytest.importorskip("tifffile")
KINDS = {1: 0, 2: 4, 3: 2, 4: 6}  # channels: color type of PNG


def png(values: np.ndarray, *chunks: tuple[bytes, bytes]) -> bytes:
    height, width, channels = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 16, KINDS[channels], 0, 0, 0)),
        *chunks,
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


def tiff(values: np.ndarray, **options) -> bytes:
    file = io.BytesIO()
    extra = {4: {"extrasamples": ["unassalpha"]}}.get(values.shape[2], {})
    planes = values.transpose(2, 0, 1) if options.get("planarconfig") == "separate" else values
    tifffile.imwrite(file, np.ascontiguousarray(planes), photometric="rgb", **extra, **options)
    return file.getvalue()


def ppm(values: np.ndarray) -> bytes:
    return b"P6\n%d %d\n65535\n" % values.shape[1::-1] + values[..., :3].astype(">u2").tobytes()


def plain_ppm(values: np.ndarray) -> bytes:
    numbers = b" ".join(b"%d" % value for value in values[..., :3].ravel())
    return b"P3 # plain\n%d %d\n65535\n" % values.shape[1::-1] + numbers.replace(b" ", b" # a note 1\n", 1)


def jpeg2000(values: np.ndarray, bits: int = 16, form: str = "jp2") -> bytes:
    encode = pytest.importorskip("imagecodecs").jpeg2k_encode
    return encode(values, level=0, codecformat=form, reversible=True, bitspersample=bits)


def ico(values: np.ndarray) -> bytes:
    data = png(values)
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, *values.shape[1::-1], 0, 0, 1, 48, len(data), 22) + data


FORMATS = {
    "png": png,
    "ico": ico,
    "jpeg 2000": jpeg2000,
    "jpeg 2000, codestream": lambda values: jpeg2000(values, form="j2k"),
    "tiff": tiff,
    "tiff, big-endian": lambda values: tiff(values, byteorder=">"),
    "tiff, deflate": lambda values: tiff(values, compression="zlib", predictor=True),
    "tiff, planes": lambda values: tiff(values, planarconfig="separate"),
    "tiff, compressed planes": lambda values: tiff(values, planarconfig="separate", compression="zlib"),
    "ppm": ppm,
    "ppm, plain": plain_ppm,
}
COLORS = np.random.default_rng(0).integers(0, 256, (37, 23, 3)).astype(np.uint16)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("alpha", [False, True])
@pytest.mark.parametrize(
    ("values", "white"), [(COLORS, 255), (COLORS * 16 + 15, 4095), (COLORS * 257, 65535)], ids=["8", "12", "16"]
)
def test_values_are_scaled_as_those_of_gray_images(values, white, alpha, form):
    values = np.minimum(values, white)
    values[0, 0] = white
    expected = np.rint(values / white * 255)
    if alpha:
        if form.startswith("ppm"):
            return
        values = np.concatenate([values, np.full((*values.shape[:2], 1), 65535, np.uint16)], axis=2)
    found = np.asarray(decode_image(FORMATS[form](values)))
    np.testing.assert_allclose(found, expected, atol=1)
    assert found.max() == 255
    if not form.startswith("tiff"):
        chosen = np.asarray(decode_image(FORMATS[form](values), ImageReading((2, 1, 0))))
        np.testing.assert_allclose(chosen[..., ::-1], expected, atol=1)


@pytest.mark.parametrize("bits", [9, 10, 12, 14, 16])
@pytest.mark.parametrize("channels", [[0], [0, -1], [0, 1, 2], [0, 1, 2, -1]], ids=["L", "LA", "RGB", "RGBA"])
def test_white_of_jpeg_2000_stays_white(channels, bits):
    white = 2**bits - 1
    values = np.concatenate([COLORS, np.full((*COLORS.shape[:2], 1), 255)], axis=2)[..., channels]
    values[0] = 255
    found = np.asarray(decode_image(jpeg2000(np.rint(values / 255 * white).astype(np.uint16), bits)))
    colors = values[..., :3] if len(channels) > 2 else values[..., :1].repeat(3, axis=2)
    np.testing.assert_allclose(found, colors, atol=1)


@pytest.mark.parametrize("form", FORMATS)
def test_an_image_of_pillow_has_all_bits_until_it_is_loaded(form):
    """Afterwards, it has the high bytes that Pillow keeps. Pillow loads an ICO when it opens it."""
    data = FORMATS[form](COLORS * 16)
    image = Image.open(io.BytesIO(data))
    kept = np.asarray(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(np.asarray(decode_image(image)), kept if form == "ico" else decode_image(data))
    np.testing.assert_array_equal(np.asarray(image), kept)  # reading it has not changed it
    for close in (False, True):  # Pillow closes the file of a loaded image, or the caller does
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            if not close:
                np.testing.assert_array_equal(np.asarray(decode_image(image)), kept)
        np.testing.assert_array_equal(np.asarray(decode_image(image)), kept)


@pytest.mark.parametrize("form", [*FORMATS, "narrow"])
def test_an_image_that_is_closed_before_it_is_loaded_is_an_error_with_a_next_step(form):
    data = png(COLORS[..., :1]) if form == "narrow" else FORMATS[form](COLORS * 16)
    with Image.open(io.BytesIO(data)) as closed:
        pass
    if form == "ico":  # loaded when it was opened
        assert decode_image(closed).size == (23, 37)
        return
    with pytest.raises(ImageError, match="open it again"):
        decode_image(closed)


def test_a_page_of_an_image_of_pillow_has_all_bits():
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as tiffs:
        for values in (COLORS, 255 - COLORS):
            tiffs.write(values * 16, photometric="rgb")
        for values in (COLORS, 255 - COLORS):
            tiffs.write((values * 16).transpose(2, 0, 1), photometric="rgb", planarconfig="separate")
    image = Image.open(file)
    for page, values in ((1, 255 - COLORS), (0, COLORS)):
        image.seek(page)
        np.testing.assert_array_equal(np.asarray(decode_image(image)), np.asarray(decode_image(tiff(values * 16))))
    image.seek(3)
    with pytest.raises(UnsupportedImage):  # Pillow mixes up the planes
        decode_image(image)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("planes", ["contig", "separate"])
def test_gray_with_alpha_of_tiff_is_gray(planes, dtype):
    values = np.stack([COLORS[..., 0], np.full(COLORS.shape[:2], 255)], axis=2)
    values = (values * (np.iinfo(dtype).max // 255)).astype(dtype)
    file = io.BytesIO()
    stored = np.ascontiguousarray(values.transpose(2, 0, 1)) if planes == "separate" else values
    tifffile.imwrite(file, stored, photometric="minisblack", extrasamples=["unassalpha"], planarconfig=planes)
    found = np.asarray(decode_image(file.getvalue()))
    np.testing.assert_array_equal(found, COLORS[..., :1].repeat(3, axis=2))


def test_gray_with_alpha_and_a_transparent_color_are_read():
    gray = np.arange(0, 4096, 16).astype(np.uint16).reshape(16, 16, 1)
    with_alpha = np.concatenate([gray, np.full_like(gray, 65535)], axis=2)
    expected = np.rint(gray / 4095 * 255)
    np.testing.assert_allclose(np.asarray(decode_image(png(with_alpha))), expected.repeat(3, axis=2), atol=1)
    colors = np.full((4, 4, 3), 1000, np.uint16)
    colors[:2] = (1000, 1000, 1001)  # has the same high bytes
    image = np.asarray(decode_image(png(colors, (b"tRNS", struct.pack(">HHH", 1000, 1000, 1000)))))
    assert (image[2:] == 255).all()
    assert (image[:2] == round(1000 / 4095 * 255)).all()


def test_an_orientation_is_kept_and_damage_is_an_error():
    exif = Image.Exif()
    exif[0x0112] = 6
    values = COLORS * 257
    found = decode_image(png(values, (b"eXIf", exif.tobytes()[6:])))
    np.testing.assert_array_equal(np.asarray(found), np.rot90(COLORS, -1))
    for write in (png, ppm, plain_ppm, jpeg2000, ico, FORMATS["tiff, deflate"]):
        with pytest.raises(ImageError):
            decode_image(write(values)[:200])


def test_images_that_differ_in_low_bits_or_transparency_have_different_hashes():
    low = COLORS * 257
    low[3, 4, 1] ^= 1
    assert pixel_hash(decode_image(png(COLORS * 257))) != pixel_hash(decode_image(png(low)))
    assert pixel_hash(decode_image(png(low))) == pixel_hash(decode_image(png(low, (b"tEXt", b"a\0b"))))


def drawing(color: tuple[int, ...], form: str = "RGBA", *, shape: str = "circle") -> bytes:
    image = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    draw = ImageDraw.Draw(image)
    if shape == "circle":
        draw.ellipse((8, 8, 56, 56), outline=(*color, 255), width=5)
    elif shape == "cross":
        draw.line((8, 8, 56, 56), (*color, 255), 5)
        draw.line((8, 56, 56, 8), (*color, 255), 5)
    else:
        draw.rectangle((8, 28, 56, 36), (*color, 255))
    file = io.BytesIO()
    if form == "P":
        image.quantize(4).save(file, "PNG")
    elif form == "RGBA;16":
        file.write(png(np.asarray(image).astype(np.uint16) * 257))
    else:
        image.convert(form).save(file, "WEBP" if form == "RGBA" else "PNG", lossless=True)
    return file.getvalue()


@pytest.mark.parametrize("form", ["RGBA", "LA", "P", "RGBA;16"])
@pytest.mark.parametrize("color", [(255, 255, 255), (235, 240, 235), (0, 0, 0), (200, 30, 30), (128, 128, 128)])
def test_a_drawing_on_a_transparent_ground_is_visible(color, form):
    images = [decode_image(drawing(color, form, shape=shape)) for shape in ("circle", "cross", "bar")]
    assert min(np.asarray(image).std() for image in images) > 10
    for first, second in combinations(images, 2):
        assert pixel_hash(first) != pixel_hash(second)
        assert np.abs(np.asarray(first, int) - np.asarray(second, int)).mean() > 4


def test_the_ground_of_opaque_and_of_dark_images_is_white():
    white = Image.new("RGBA", (8, 8), "white")
    assert np.asarray(decode_image(white)).min() == 255
    assert pixel_hash(decode_image(white)) == pixel_hash(decode_image(white.convert("RGB")))
    dark = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    dark.paste((10, 10, 10, 255), (0, 0, 4, 8))
    assert np.asarray(decode_image(dark))[0, 7].tolist() == [255, 255, 255]
