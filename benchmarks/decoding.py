"""Cost of turning a JPEG into a network's crop with several decoders, and the loss of fidelity.

    python benchmarks/decoding.py                                   # images made from scikit-image's photos
    python benchmarks/decoding.py --images photos --rounds 9
    python benchmarks/decoding.py --cpu-time                        # CPU seconds, for a busy machine

The images are resized photos with coarse detail, and mosaics of small images with the finest detail possible, which
reveal careless scaling. Every decoder passes its pixels to the same antialiased resize and crop. PSNR and cosine
compare with the crop of the complete image decoded by Pillow. The cosine is that of the starter's vectors; each value
is the worst of the images. Decoders that are not installed are skipped: simplejpeg, opencv-python-headless,
imagecodecs, torchvision.
"""

from __future__ import annotations

import argparse
import io
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from PIL import Image

from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.encoder.preprocessing import EvalTransform, Preprocessing
from nnclr_hub.hub.registry import default_model
from nnclr_hub.images.decode import decode_image
from nnclr_hub.images.folder import list_images

SIDE, SHORT = 224, 256
SIZES = ((4000, 3000), (1600, 1200), (500, 375))
Decoder = Callable[[bytes], np.ndarray]
TRANSFORM = EvalTransform(Preprocessing(SIDE))


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--images", type=Path, default=None, help="a folder of small images for the mosaics")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--cpu-time", action="store_true", help="CPU seconds instead of wall time")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    clock = time.process_time if chosen.cpu_time else time.perf_counter
    print("| pixels | decoder | ms | times Pillow in full | lowest PSNR, dB | lowest cosine |")
    print("|---|---|---|---|---|---|")
    for size in SIZES:
        files = make_images(size, chosen.images)
        for row in compare(size, files, chosen.rounds, clock):
            print(row, flush=True)


def compare(size: tuple[int, int], files: list[bytes], rounds: int, clock: Callable[[], float]) -> list[str]:
    """Return the rows of the table for images of one size."""
    runs = decoders()
    crops = {name: [run(data) for data in files] for name, run in runs.items()}
    encoder = load_encoder(default_model(), device="cpu")
    vectors = {name: encoder.forward_crops(np.stack(each)) for name, each in crops.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = clock()
            for data in files:
                run(data)
            times[name].append((clock() - began) / len(files))
    full = "Pillow, in full"
    rows = []
    for name, taken in times.items():
        ratio = statistics.median(a / b for a, b in zip(times[full], taken, strict=True))
        worst = min(psnr(a, b) for a, b in zip(crops[name], crops[full], strict=True))
        cosine = float((vectors[name] * vectors[full]).sum(axis=1).min())
        rows.append(
            f"| {size[0]} x {size[1]} | {name} | {1e3 * statistics.median(taken):.1f} | {ratio:.2f} | {worst:.1f} | "
            f"{cosine:.5f} |"
        )
    return rows


def decoders() -> dict[str, Decoder]:
    """Return {name: function from bytes to the (224, 224, 3) uint8 crop}."""
    found: dict[str, Decoder] = {
        "Pillow, in full": lambda data: TRANSFORM.crop(decode_image(data)),
        "ours: Pillow, twice the size needed": TRANSFORM.read,
        "Pillow, just the size needed": lambda data: TRANSFORM.crop(drafted(data)),
    }
    for add in (with_torchvision, with_simplejpeg, with_opencv, with_imagecodecs):
        try:
            found |= add()
        except ImportError as error:
            print(f"left out: {error.name} is not installed", file=sys.stderr)
    return found


def drafted(data: bytes) -> Image.Image:
    """Pillow's own scaling, to at least the size needed."""
    image = Image.open(io.BytesIO(data))
    factor = max(1, min(image.size) // SHORT)
    image.draft(None, (image.width // factor, image.height // factor))
    image.load()
    return image


def cropped(pixels: np.ndarray) -> np.ndarray:
    return TRANSFORM.crop(Image.fromarray(np.ascontiguousarray(pixels)))


def with_torchvision() -> dict[str, Decoder]:
    from torchvision.io import ImageReadMode, decode_jpeg

    def decode(data: bytes) -> np.ndarray:
        pixels = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)
        return cropped(pixels.permute(1, 2, 0).numpy())

    return {"torchvision, in full": decode}


def with_simplejpeg() -> dict[str, Decoder]:
    import simplejpeg  # type: ignore[import-not-found]

    def decode(data: bytes) -> np.ndarray:
        height, width = simplejpeg.decode_jpeg_header(data)[:2]
        share = min(1.0, 2 * SHORT / min(height, width))
        least = {"min_height": int(height * share), "min_width": int(width * share)} if share < 1 else {}
        return cropped(simplejpeg.decode_jpeg(data, min_factor=1, **least))

    return {"simplejpeg, twice the size needed": decode}


def with_opencv() -> dict[str, Decoder]:
    import cv2  # type: ignore[import-not-found]

    cv2.setNumThreads(1)

    def decode(data: bytes) -> np.ndarray:
        with Image.open(io.BytesIO(data)) as header:
            factor = min(header.size) // (2 * SHORT)
        scale = max(step for step in (1, 2, 4, 8) if step <= max(factor, 1))
        flag = cv2.IMREAD_COLOR if scale == 1 else getattr(cv2, f"IMREAD_REDUCED_COLOR_{scale}")
        return cropped(cv2.cvtColor(cv2.imdecode(np.frombuffer(data, np.uint8), flag), cv2.COLOR_BGR2RGB))

    return {"OpenCV, twice the size needed": decode}


def with_imagecodecs() -> dict[str, Decoder]:
    import imagecodecs  # type: ignore[import-not-found]

    return {"imagecodecs, in full": lambda data: cropped(imagecodecs.jpeg_decode(data))}


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio in dB; 99 for equal images."""
    error = ((one.astype(float) - other) ** 2).mean()
    return 99.0 if error == 0 else 10 * math.log10(255**2 / error)


def make_images(size: tuple[int, int], small: Path | None) -> list[bytes]:
    """Six JPEGs of that size: three photos, and three mosaics of tiles of 128, 256 and 512 pixels."""
    from skimage import data

    photos = [Image.fromarray(getattr(data, name)()) for name in ("astronaut", "coffee", "cat")]
    tiles = [Image.open(path).convert("RGB") for path in list_images(small)[:500]] if small else photos
    made = [photo.resize(size, Image.Resampling.BICUBIC) for photo in photos]
    rng = np.random.default_rng(0)
    for side in (128, 256, 512):
        mosaic = Image.new("RGB", size)
        for left in range(0, size[0], side):
            for top in range(0, size[1], side):
                tile = tiles[int(rng.integers(len(tiles)))]
                mosaic.paste(tile.resize((side, side), Image.Resampling.BICUBIC), (left, top))
        made.append(mosaic)
    files = []
    for image in made:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


if __name__ == "__main__":
    main()
