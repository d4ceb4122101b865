"""The filter in front of the decoders: it refuses costly structures, and nothing that encoders write."""

import io
import time

import numpy as np
import pytest
from hostile_images import many_blocks, many_chunks, many_pages, many_segments, repeated_scans
from PIL import Image

from nnclr_hub.errors import ImageError, ImageTooExpensive
from nnclr_hub.images.decode import decode_image


@pytest.mark.parametrize(
    "hostile",
    [repeated_scans(2000, (800, 500)), many_segments(20_000), many_chunks(20_000), many_blocks(20_000)],
    ids=["scans", "segments", "chunks", "blocks"],
)
@pytest.mark.parametrize("as_file", [False, True])
def test_costly_structures_are_refused_in_no_time(hostile, as_file, tmp_path):
    path = tmp_path / "image"
    path.write_bytes(hostile)
    begun = time.process_time()
    with pytest.raises(ImageTooExpensive) as caught:
        decode_image(path if as_file else hostile)
    assert time.process_time() - begun < 0.5
    assert caught.value.code == "image_too_expensive"
    assert isinstance(caught.value, ImageError)


@pytest.mark.parametrize("extra", [b"", b"\xff\xda\x00\x08" * 500], ids=["alone", "with a video behind it"])
def test_ordinary_progressive_jpegs_pass(extra):
    """What follows the end of an image, as the video of a live photo, is not counted."""
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", progressive=True, quality=100, subsampling=0)
    assert decode_image(file.getvalue() + extra).tobytes() == Image.open(file).tobytes()


@pytest.mark.parametrize("make", [lambda n: repeated_scans(n, (64, 64)), many_chunks, many_segments, many_blocks])
def test_a_few_more_than_usual_pass(make):
    assert decode_image(make(80)).mode == "RGB"


def test_further_pages_and_frames_are_not_read():
    gif = io.BytesIO()
    frames = [Image.new("L", (64, 64), n % 256) for n in range(300)]
    frames[0].save(gif, "GIF", save_all=True, append_images=frames[1:])
    for many in (many_pages(50_000), gif.getvalue()):
        begun = time.process_time()
        assert decode_image(many).mode == "RGB"
        assert time.process_time() - begun < 0.5
    with Image.open(io.BytesIO(many_pages(30))) as image:
        assert image.n_frames == 31
