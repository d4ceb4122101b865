"""The demo's default gallery.

It is Imagenette. Without a network, it is rendered, next to crops of the photos in scikit-image.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
from PIL import Image

from .rendered.gallery import KINDS, Progress, write_gallery

log = logging.getLogger(__name__)
IMAGENETTE = "https://s3.amazonaws.com"  # host of torchvision's download
TIMEOUT_S = 4
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
CROP_SIZE = 0.5  # side of a crop, as a share of the photo's shorter side
CROPS_PER_SIDE = 5


def default_gallery(folder: Path, progress: Progress = lambda done, total: None) -> tuple[Path, str]:
    """Return a folder of images, created or downloaded under `folder` the first time, and a line that describes it.

    Args:
        progress: called with the numbers of written and of all images while a gallery is rendered.
    """
    ready = folder / "imagenette2-160" / "val"
    if not ready.is_dir() and _reachable():
        _download(folder)
    if ready.is_dir():
        return ready, f"gallery: validation images of Imagenette, in {ready}"
    rendered = offline_gallery(folder / "rendered", progress)
    return rendered, f"gallery: no network; rendered images of {len(KINDS)} kinds and crops of photos, in {rendered}"


def _download(folder: Path) -> None:
    """Download Imagenette to `folder`; on failure, remove the partial download and continue without it."""
    from torchvision.datasets import Imagenette

    try:
        Imagenette(str(folder), split="val", size="160px", download=True)
    except (OSError, RuntimeError) as error:  # torchvision reports a damaged download as a RuntimeError
        log.warning("Imagenette could not be downloaded: %s", error)
        shutil.rmtree(folder / "imagenette2-160", ignore_errors=True)


def offline_gallery(folder: Path, progress: Progress = lambda done, total: None) -> Path:
    """Return the folder of rendered images and crops of photos, one subfolder per kind; create it on the first call."""
    if not folder.is_dir():
        partial = folder.with_name(folder.name + ".whole")
        shutil.rmtree(partial, ignore_errors=True)
        write_gallery(partial, progress)
        photo_crops(partial / "photos")
        for photo in (partial / "photos").iterdir():
            photo.rename(partial / f"photo-{photo.name}")
        (partial / "photos").rmdir()
        partial.rename(folder)
    return folder


def photo_crops(folder: Path) -> Path:
    """Return the folder of overlapping crops, one subfolder per photo; create it on the first call."""
    if not folder.is_dir():
        partial = folder.with_name(folder.name + ".part")
        shutil.rmtree(partial, ignore_errors=True)
        for name in PHOTOS:
            _write_crops(name, partial / name)
        partial.rename(folder)
    return folder


def key_of(folder: Path) -> str:
    """Return a short, stable name for the store of a gallery."""
    return hashlib.sha256(str(Path(folder).resolve()).encode()).hexdigest()[:12]


def _write_crops(name: str, folder: Path) -> None:
    from skimage import data

    photo = Image.fromarray(np.asarray(getattr(data, name)())).convert("RGB")
    folder.mkdir(parents=True)
    side = int(min(photo.size) * CROP_SIZE)
    across, down = (np.linspace(0, length - side, CROPS_PER_SIDE).astype(int) for length in photo.size)
    for row, top in enumerate(down):
        for column, left in enumerate(across):
            crop = photo.crop((left, top, left + side, top + side))
            crop.thumbnail((256, 256))
            crop.save(folder / f"{name}-{row}{column}.jpg", quality=90)


def _reachable() -> bool:
    """Return whether the download's host answers."""
    try:
        with urllib.request.urlopen(urllib.request.Request(IMAGENETTE, method="HEAD"), timeout=TIMEOUT_S):
            return True
    except urllib.error.HTTPError:
        return True  # the host rejects this address, but it answers
    except OSError:
        return False
