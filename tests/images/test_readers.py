"""Files of several pages and channels, and formats that Pillow does not read. Independent libraries write them."""

import io
import sys

import numpy as np
import pydicom
import pytest
import tifffile
from images.stacks import STACK, in_8_bits, pixels
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.pixels import apply_modality_lut, apply_voi_lut

from nnclr_hub.errors import ImageError, ImageTooLarge, InvalidRequest, UnsupportedImage
from nnclr_hub.images import readers
from nnclr_hub.images.decode import decode_any, decode_image
from nnclr_hub.images.listing import list_images
from nnclr_hub.images.pool import decoding_processes
from nnclr_hub.images.readers.raw import RawReader
from nnclr_hub.images.readers.stack import MAX_BYTES
from nnclr_hub.images.readers.tiff import TiffReader
from nnclr_hub.images.reading import PLAIN, ImageReading

RNG = np.random.default_rng(0)


LAYOUTS = {
    "ome": {"ome": True, "metadata": {"axes": "ZCYX"}},
    "ome tiles": {"ome": True, "metadata": {"axes": "ZCYX"}, "tile": (16, 32), "compression": "zlib"},
    "ome strips": {"ome": True, "metadata": {"axes": "ZCYX"}, "rowsperstrip": 7, "compression": "zlib"},
    "imagej": {"imagej": True, "metadata": {"axes": "ZCYX"}},
    "big endian": {"ome": True, "metadata": {"axes": "ZCYX"}, "byteorder": ">"},
    "channels first": {"ome": True, "metadata": {"axes": "CZYX"}},
    "bigtiff": {"ome": True, "metadata": {"axes": "ZCYX"}, "bigtiff": True},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_channels_and_pages_of_a_microscope(layout, tmp_path):
    path = tmp_path / "cells.tif"
    written = STACK.swapaxes(0, 1) if layout == "channels first" else STACK
    tifffile.imwrite(path, written, photometric="minisblack", **LAYOUTS[layout])
    np.testing.assert_array_equal(pixels(path), in_8_bits(STACK[0].transpose(1, 2, 0)))
    chosen = pixels(path, ImageReading((4, 0, 2), page=2))
    np.testing.assert_array_equal(chosen, in_8_bits(STACK[2][[4, 0, 2]].transpose(1, 2, 0)))
    gray = pixels(path, ImageReading((3,), project="max"))
    np.testing.assert_array_equal(gray, in_8_bits(STACK.max(0)[3])[..., None].repeat(3, 2))
    with path.open("rb") as file, TiffReader().open(file) as stack:
        assert (stack.pages, stack.channels, stack.size) == (3, 5, (52, 40))
        for box in ((0, 0, 52, 40), (5, 9, 33, 30), (31, 15, 52, 40)):
            part = stack.read(1, (1, 3), box)
            left, top, right, bottom = box
            np.testing.assert_array_equal(part, STACK[1][[1, 3], top:bottom, left:right].transpose(1, 2, 0))


@pytest.mark.parametrize("planar", ["contig", "separate"])
@pytest.mark.parametrize("options", [{}, {"tile": (16, 16)}, {"rowsperstrip": 6, "compression": "zlib"}])
def test_samples_of_a_pixel_are_channels(planar, options, tmp_path):
    values = RNG.integers(0, 256, (33, 21, 6), dtype=np.uint8)
    written = values if planar == "contig" else values.transpose(2, 0, 1)
    path = tmp_path / "six.tif"
    tifffile.imwrite(path, written, photometric="minisblack", planarconfig=planar, **options)
    np.testing.assert_array_equal(pixels(path), values)
    np.testing.assert_array_equal(np.asarray(decode_image(path, ImageReading((5, 0, 1)))), values[..., [5, 0, 1]])
    with path.open("rb") as file, TiffReader().open(file) as stack:
        np.testing.assert_array_equal(stack.read(0, (5, 2), (3, 7, 20, 30)), values[7:30, 3:20][..., [5, 2]])


def test_pages_are_no_channels_and_frames_and_alpha_of_other_formats_are_read(tmp_path):
    path = tmp_path / "two.tif"
    tifffile.imwrite(path, STACK[:2, 0], photometric="minisblack")
    for page in (0, 1):
        np.testing.assert_array_equal(pixels(path, ImageReading(page=page))[..., 1], in_8_bits(STACK[page, 0]))
    assert np.array_equal(pixels(path), pixels(path, ImageReading(page=0)))  # Pillow reads the first alone
    frames = [Image.fromarray(RNG.integers(0, 256, (8, 9, 4), dtype=np.uint8)) for _ in range(3)]
    frames[0].save(tmp_path / "moving.png", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "alpha.png")
    alpha = pixels(tmp_path / "alpha.png", ImageReading((3, 0)))
    np.testing.assert_array_equal(alpha, np.asarray(frames[0])[..., [3, 0]])
    second = pixels(tmp_path / "moving.png", ImageReading(page=1))
    np.testing.assert_array_equal(second, np.asarray(decode_image(frames[1])))  # blended with white
    with pytest.raises(UnsupportedImage):
        decode_any(tmp_path / "moving.png", ImageReading(page=3))


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(0, 1, 64).reshape(8, 8),
        np.linspace(0, 1, 64, dtype=np.float16).reshape(8, 8),
        np.linspace(-500, 1500, 192, dtype=np.float32).reshape(8, 8, 3),
        np.arange(64, dtype=np.uint64).reshape(8, 8) * 2**50,
        np.arange(-64, 64, 2, dtype=np.int8).reshape(8, 8),
    ],
    ids=lambda values: str(values.dtype),
)
@pytest.mark.parametrize("big", [False, True], ids=["TIFF", "BigTIFF"])
def test_values_of_other_types_are_scaled_from_black_to_white(values, big):
    file = io.BytesIO()
    tifffile.imwrite(file, values, photometric="rgb" if values.ndim == 3 else "minisblack", bigtiff=big)
    low = min(0, values.min())
    expected = np.rint((values.astype(np.float64) - low) / (float(values.max()) - low) * 255)
    found = pixels(file.getvalue())
    np.testing.assert_allclose(found if values.ndim == 3 else found[..., 0], expected, atol=0)


def test_scale_by_depth_keeps_proportions_and_by_range_uses_each_channel(tmp_path):
    values = np.stack([np.full((4, 4), 4000), np.arange(16).reshape(4, 4) * 10], axis=2).astype(np.uint16)
    tifffile.imwrite(tmp_path / "two.tif", values, photometric="minisblack", planarconfig="contig")
    np.testing.assert_array_equal(pixels(tmp_path / "two.tif"), in_8_bits(values))
    ranged = pixels(tmp_path / "two.tif", ImageReading(scale="range"))
    assert (ranged[..., 1].min(), ranged[..., 1].max()) == (0, 255)
    assert ranged[..., 0].max() == 0  # a constant channel


def test_invalid_readings_are_refused():
    for text in ("channels=a", "channels=-1", "page=-1", "page=1&project=max", "project=mean", "scale=log", "x=1"):
        with pytest.raises(InvalidRequest):
            ImageReading.parse(text)
    assert ImageReading.parse(str(ImageReading((0, 2), project="max"))) == ImageReading((0, 2), project="max")
    assert str(PLAIN) == ""


def test_too_many_values_are_refused_before_they_are_decoded(tmp_path):
    side, count = 6000, 30
    assert side * side * count > MAX_BYTES
    path = tmp_path / "large.tif"
    tifffile.memmap(path, shape=(side, side, count), dtype=np.uint8, photometric="minisblack", planarconfig="contig")
    with pytest.raises(ImageTooLarge):
        decode_any(path, PLAIN)


def test_decoding_processes_read_the_same_pixels(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", STACK, photometric="minisblack", ome=True, metadata={"axes": "ZCYX"})
    reading = ImageReading((1, 4), page=1)
    here = pixels(tmp_path / "a.tif", reading)
    with decoding_processes(1):
        np.testing.assert_array_equal(pixels(tmp_path / "a.tif", reading), here)
        np.testing.assert_array_equal(pixels((tmp_path / "a.tif").read_bytes(), reading), here)
        with pytest.raises(UnsupportedImage):
            decode_image(tmp_path / "a.tif")


# ---- DICOM


def dicom(values: np.ndarray, **fields) -> bytes:
    """Write (frames, H, W) int16, or (H, W, 3) uint8."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.2", "1.2.3"
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    color = values.dtype == np.uint8
    about = FileDataset(None, {}, file_meta=meta, preamble=bytes(128))
    about.Rows, about.Columns = values.shape[:2] if color else values.shape[1:]
    about.SamplesPerPixel, bits = (3, 8) if color else (1, 16)
    about.PhotometricInterpretation, about.PlanarConfiguration = ("RGB" if color else "MONOCHROME2"), 0
    about.BitsAllocated = about.BitsStored = bits
    about.HighBit, about.PixelRepresentation = bits - 1, 0 if color else 1
    if not color:
        about.NumberOfFrames = len(values)
    about.PixelData = values.tobytes()
    for name, value in fields.items():
        setattr(about, name, value)
    file = io.BytesIO()
    about.save_as(file, enforce_file_format=True)
    return file.getvalue()


FRAMES = RNG.integers(0, 2500, (2, 12, 14)).astype(np.int16)
CT = {"RescaleSlope": "1", "RescaleIntercept": "-1024", "WindowCenter": ["40", "300"], "WindowWidth": ["400", "1500"]}


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_dicom_is_shown_in_its_window(function):
    data = dicom(FRAMES, **CT, VOILUTFunction=function)
    about = pydicom.dcmread(io.BytesIO(data))
    shown = apply_voi_lut(apply_modality_lut(FRAMES[1], about), about)  # from the lowest to the highest stored value
    bounds = (shown.min(), shown.max())
    expected = (shown - bounds[0]) / (bounds[1] - bounds[0]) * 255
    found = pixels(data, ImageReading(page=1))
    np.testing.assert_allclose(found[..., 0], expected, atol=1)
    assert len(np.unique(found)) > 20


def test_dicom_without_a_window_dark_high_values_and_color():
    plain = pixels(dicom(FRAMES, RescaleSlope="1", RescaleIntercept="-1024"))[..., 0].astype(int)
    assert (plain.min(), plain.max()) == (0, 255)
    inverse = pixels(dicom(FRAMES, **CT, PhotometricInterpretation="MONOCHROME1"))[..., 0].astype(int)
    np.testing.assert_allclose(inverse, 255 - pixels(dicom(FRAMES, **CT))[..., 0].astype(int), atol=1)
    rgb = RNG.integers(0, 256, (6, 7, 3), dtype=np.uint8)
    np.testing.assert_array_equal(pixels(dicom(rgb)), rgb)
    np.testing.assert_array_equal(pixels(dicom(rgb), ImageReading((2, 1, 0))), rgb[..., ::-1])


def test_a_dicom_file_without_an_image_or_with_cut_pixels_is_an_image_error():
    whole = dicom(FRAMES)
    about = pydicom.dcmread(io.BytesIO(whole))
    for name in ("Rows", "Columns", "PixelData"):
        delattr(about, name)
    file = io.BytesIO()
    about.save_as(file)
    for data in (file.getvalue(), whole[:-500]):
        with pytest.raises(ImageError):
            decode_image(data)


# ---- camera raw


@pytest.fixture
def dng(tmp_path):
    """A raw image of 96 x 64 with a preview of 24 x 16: red on the left, green on the right."""
    preview = np.zeros((16, 24, 3), np.uint8)
    preview[:, :12], preview[:, 12:] = [200, 10, 10], [10, 200, 10]
    version = [(50706, 1, 4, (1, 4, 0, 0), True), (50707, 1, 4, (1, 1, 0, 0), True), (50708, 2, None, "Test", True)]
    colors = [(50721, 10, 9, (1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 1), True), (50778, 3, 1, 21, True)]
    mosaic = [(33421, 3, 2, (2, 2), True), (33422, 1, 4, (0, 1, 1, 2), True), (50717, 4, 1, 4095, True)]
    path = tmp_path / "photo.dng"
    with tifffile.TiffWriter(path) as file:
        tags = [*version, *colors, (271, 2, None, "Test", True), (50728, 5, 3, (1, 1, 1, 1, 1, 1), True)]
        file.write(preview, photometric="rgb", subfiletype=1, subifds=1, extratags=tags, metadata=None)
        raw = RNG.integers(0, 4096, (64, 96), dtype=np.uint16)
        file.write(raw, photometric=32803, subfiletype=0, extratags=mosaic, metadata=None)
    return path, preview


def test_a_raw_image_is_its_preview_or_developed(dng, monkeypatch):
    path, preview = dng
    np.testing.assert_array_equal(pixels(path), preview)
    np.testing.assert_array_equal(pixels(path.read_bytes()), preview)
    monkeypatch.setattr("nnclr_hub.images.readers.raw._preview", lambda raw, rawpy: None)
    with path.open("rb") as file, RawReader().open(file) as stack:
        assert stack.size == (96, 64)
        developed = stack.read(0, (0, 1, 2), None)
    assert developed.shape == (64, 96, 3)
    assert developed.std() > 5


# ---- other formats, plug-ins, missing packages


@pytest.mark.parametrize("suffix", ["avif", "heic"])
def test_photos_of_phones_are_read(suffix, tmp_path):
    if suffix == "heic":
        import pillow_heif.HeifImagePlugin  # noqa: F401
    ramp = np.tile(np.arange(64, dtype=np.uint8) * 4, (48, 1))
    Image.fromarray(np.stack([ramp, ramp[:, ::-1], ramp], axis=2)).save(tmp_path / f"a.{suffix}", quality=95)
    assert list_images(tmp_path)
    np.testing.assert_allclose(pixels(tmp_path / f"a.{suffix}")[..., 0].astype(int), ramp, atol=12)


PLUG_IN = """
from contextlib import contextmanager
import imagecodecs
import numpy as np
from nnclr_hub.images.readers.stack import ImageStack

class Reader:
    suffixes = (".grid",)

    def takes(self, start, name):
        return start.startswith(b"GRID")

    @contextmanager
    def open(self, file):
        values = np.frombuffer(file.read()[4:], np.uint8).reshape(1, 4, 4, 2)
        yield ImageStack(1, 2, (4, 4), values.dtype, lambda page, channels, box: values[page][:, :, list(channels)])
"""


def test_a_package_adds_a_reader(tmp_path, monkeypatch):
    (tmp_path / "grid_reader.py").write_text(PLUG_IN + "\nreader = Reader()\n")
    info = tmp_path / "grid_reader-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: grid-reader\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[nnclr_hub.readers]\ngrid = grid_reader:reader\nbroken = no_such_module:reader\n"
    )
    values = np.arange(32, dtype=np.uint8).reshape(4, 4, 2)
    (tmp_path / "a.grid").write_bytes(b"GRID" + values.tobytes())
    monkeypatch.syspath_prepend(tmp_path)
    readers.readers.cache_clear()
    try:
        np.testing.assert_array_equal(pixels(tmp_path / "a.grid"), values)
        with decoding_processes(1):
            np.testing.assert_array_equal(pixels(tmp_path / "a.grid", ImageReading((1,)))[..., 2], values[..., 1])
    finally:
        readers.readers.cache_clear()


@pytest.mark.parametrize(
    ("package", "data"),
    [
        ("pydicom", bytes(128) + b"DICM"),
        ("nd2", b"\xda\xce\xbe\x0a"),
        ("czifile", b"ZISRAWFILE"),
        ("rawpy", b"FUJIFILMCCD-RAW"),
        ("tifffile", b"II*\0\x08\0\0\0"),
    ],
)
def test_a_missing_package_names_its_extra(package, data, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedImage) as caught:
        decode_image(data)
    assert "nnclr_hub[formats]" in str(caught.value)
