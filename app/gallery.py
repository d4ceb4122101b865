"""Images for who has none at hand: a few photos to try, and the demo's gallery where the user names no folder.

That is Imagenette, or without a network the photos that scikit-image carries, cut into overlapping crops.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

log = logging.getLogger(__name__)
IMAGENETTE = "https://s3.amazonaws.com"  # where torchvision's download lies
PATIENCE_S = 4
PHOTOS = (
    "astronaut",
    "camera",
    "cat",
    "coffee",
    "coins",
    "hubble_deep_field",
    "immunohistochemistry",
    "page",
    "rocket",
    "brick",
    "grass",
    "gravel",
)
EXAMPLES = {"a cat": "chelsea.png", "a person": "astronaut.png", "a rocket": "rocket.jpg", "coffee": "coffee.png"}
BESIDE = Path(__file__).parent / "examples"  # made by `space`
SIDE = 0.5  # of the photo's shorter side, for a crop
STEPS = 5  # crops along each side


def default_gallery(folder: Path) -> tuple[Path, str]:
    """A folder of images, made or fetched below `folder` the first time; and what to tell about it."""
    ready = folder / "imagenette2-160" / "val"
    if not ready.is_dir() and _reachable():
        _download(folder)
    if ready.is_dir():
        return ready, f"gallery: Imagenette's validation images, in {ready}"
    crops = offline_gallery(folder / "photos")
    return crops, f"gallery: no network, so scikit-image's photos cut into crops, in {crops}"


def _download(folder: Path) -> None:
    """Imagenette below `folder`, or nothing at all of it: the demo goes on without."""
    from torchvision.datasets import Imagenette

    try:
        Imagenette(str(folder), split="val", size="160px", download=True)
    except (OSError, RuntimeError) as error:  # torchvision reports a damaged download as a RuntimeError
        log.warning("Imagenette could not be downloaded (%s)", error)
        shutil.rmtree(folder / "imagenette2-160", ignore_errors=True)


def offline_gallery(folder: Path) -> Path:
    """Overlapping crops of scikit-image's photos, a subfolder a photo; made once."""
    if not folder.is_dir():
        half = folder.with_name(folder.name + ".part")
        shutil.rmtree(half, ignore_errors=True)
        for name in PHOTOS:
            _cut(name, half / name)
        half.rename(folder)
    return folder


def examples() -> Mapping[str, Path]:
    """Photos to try: those beside us, as in a Space, else scikit-image's; none where there are neither."""
    folder = BESIDE if BESIDE.is_dir() else _photos()
    return {name: folder / file for name, file in EXAMPLES.items() if folder and (folder / file).is_file()}


def _photos() -> Path | None:
    spec = find_spec("skimage")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "data"


def key_of(folder: Path) -> str:
    """A short name for a gallery's store."""
    return hashlib.sha256(str(Path(folder).resolve()).encode()).hexdigest()[:12]


def _cut(name: str, folder: Path) -> None:
    from skimage import data

    photo = Image.fromarray(np.asarray(getattr(data, name)())).convert("RGB")
    folder.mkdir(parents=True)
    side = int(min(photo.size) * SIDE)
    across, down = (np.linspace(0, length - side, STEPS).astype(int) for length in photo.size)
    for row, top in enumerate(down):
        for column, left in enumerate(across):
            crop = photo.crop((left, top, left + side, top + side))
            crop.thumbnail((256, 256))
            crop.save(folder / f"{name}-{row}{column}.jpg", quality=90)


def _reachable() -> bool:
    """Whether the download's host answers."""
    try:
        with urllib.request.urlopen(urllib.request.Request(IMAGENETTE, method="HEAD"), timeout=PATIENCE_S):
            return True
    except urllib.error.HTTPError:
        return True  # it answers, if only to say no to this address
    except OSError:
        return False
