"""A large JPEG is scaled down while it is decoded, and its crop stays what it was."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from image_bytes import encoded
from PIL import Image

from nnclr_hub.encoder.preprocessing import EvalTransform, Preprocessing
from nnclr_hub.errors import ImageError
from nnclr_hub.images.decode import decode_image, decode_scaled

ROOT = Path(__file__).parents[2]


def photo(size: tuple[int, int]) -> Image.Image:
    """A photograph with fine detail: tiles of one, so that a careless reduction would show."""
    from skimage import data

    tile = Image.fromarray(data.astronaut()).resize((256, 256), Image.Resampling.BICUBIC)
    whole = Image.new("RGB", size)
    for left in range(0, size[0], 256):
        for top in range(0, size[1], 256):
            whole.paste(tile, (left, top))
    return whole


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ((2000, 1500), (250, 188)),  # an eighth, rounded up
        ((1000, 1500), (250, 375)),  # a quarter: an eighth would be below twice 64
        ((255, 1500), (255, 1500)),
        ((4000, 20), (4000, 20)),
    ],
)
def test_a_large_jpeg_keeps_twice_the_pixels_that_are_needed(size, wanted):
    data = encoded(photo(size), "JPEG", quality=90)
    assert decode_scaled(data, 64).image.size == wanted
    assert decode_scaled(data, 64).size == size
    assert decode_image(data).size == size
    assert decode_scaled(encoded(photo(size), "PNG"), 64).image.size == size  # no other format can


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(2000, 1500), (1030, 1501), (4001, 777)])
def test_the_crop_of_a_scaled_jpeg_is_that_of_the_whole(size, orientation):
    """Within 36 dB on fine detail, lying any way: a shift by half a pixel would leave 30. A last column or row that
    the scaled image only half fills counts for what it is."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(photo(size), "JPEG", quality=90, exif=exif)
    transform = EvalTransform(Preprocessing(112))
    whole, scaled = transform.crop(decode_image(data)).astype(float), transform.read(data).astype(float)
    assert 10 * np.log10(255**2 / ((whole - scaled) ** 2).mean()) > 36


def test_a_scaled_jpeg_that_is_cut_off_is_refused():
    data = encoded(photo((2000, 1200)), "JPEG")
    with pytest.raises(ImageError):
        decode_scaled(data[: len(data) // 2], 64)


@pytest.mark.parametrize("size", [(1, 30000), (65500, 8), (7000, 5700)])
def test_memory_stays_bounded_whatever_the_shape(size, tmp_path):
    """Peak memory beyond the imports: 8 MB for the slivers; for 40 megapixels far below the 160 MB of their pixels."""
    path = tmp_path / "picture.jpg"
    Image.new("RGB", size, "teal").save(path)
    code = (
        "import resource, sys\n"
        "from nnclr_hub.encoder.preprocessing import EvalTransform, Preprocessing\n"
        "transform = EvalTransform(Preprocessing(224))\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "import io; from PIL import Image; file = io.BytesIO(); Image.new('RGB', (9, 9)).save(file, 'JPEG')\n"
        "transform.read(file.getvalue()); before = peak()\n"
        "assert transform.read(sys.argv[1]).shape == (224, 224, 3)\n"
        "print(peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(done.stdout) < (50_000 if size == (7000, 5700) else 8_000)  # kilobytes
