"""The gallery of the demo: Imagenette; without a network, drawn images next to crops of the photos in scikit-image."""

from __future__ import annotations

import hashlib
import logging
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from .rendered import KINDS, Progress, write_gallery

log = logging.getLogger(__name__)
IMAGENETTE = "https://s3.amazonaws.com"  # host of torchvision's download
TIMEOUT_S = 4
PHOTOS = ("astronaut", "camera", "cat", "coffee", "coins", "hubble_deep_field", "immunohistochemistry")
PHOTOS += ("page", "rocket", "brick", "grass", "gravel")
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


def offline_gallery(folder: Path, progress: Progress = lambda done, total: None) -> Path:
    """Return the folder of rendered images and crops of photos, one subfolder per kind; create it on the first call."""
    if not folder.is_dir():
        with _whole(folder) as partial:
            write_gallery(partial, progress)
            _write_crops(partial, "photo-")
    return folder


def key_of(folder: Path) -> str:
    """Return a short, stable name for the store of a gallery."""
    return hashlib.sha256(str(Path(folder).resolve()).encode()).hexdigest()[:12]


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """Provide another folder that gets the name at the end, so that an interrupted call leaves nothing under it."""
    partial = folder.with_name(folder.name + ".whole")
    shutil.rmtree(partial, ignore_errors=True)
    yield partial
    partial.rename(folder)


def _download(folder: Path) -> None:
    """Download Imagenette to `folder`; on failure, remove the partial download and continue without it."""
    from torchvision.datasets import Imagenette

    try:
        Imagenette(str(folder), split="val", size="160px", download=True)
    except (OSError, RuntimeError) as error:  # torchvision reports a damaged download as a RuntimeError
        log.warning("Imagenette could not be downloaded: %s", error)
        shutil.rmtree(folder / "imagenette2-160", ignore_errors=True)


def _write_crops(folder: Path, prefix: str = "") -> None:
    from skimage import data

    for name in PHOTOS:
        photo = Image.fromarray(np.asarray(getattr(data, name)())).convert("RGB")
        (folder / f"{prefix}{name}").mkdir(parents=True)
        side = int(min(photo.size) * CROP_SIZE)
        across, down = (np.linspace(0, length - side, CROPS_PER_SIDE, dtype=int).tolist() for length in photo.size)
        for row, column in np.ndindex(CROPS_PER_SIDE, CROPS_PER_SIDE):
            crop = photo.crop((across[column], down[row], across[column] + side, down[row] + side))
            crop.thumbnail((256, 256))
            crop.save(folder / f"{prefix}{name}" / f"{name}-{row}{column}.jpg", quality=90)


def _reachable() -> bool:
    """Return whether the download's host answers."""
    try:
        with urllib.request.urlopen(urllib.request.Request(IMAGENETTE, method="HEAD"), timeout=TIMEOUT_S):
            return True
    except urllib.error.HTTPError:
        return True  # the host rejects this address, but it answers
    except OSError:
        return False
