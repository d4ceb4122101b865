"""Write the rendered gallery: labeled images with planted duplicates, foreign images and wrong labels.

    write_gallery(Path("gallery"), console_progress)

`gallery/KIND/NNN.jpg` are the images. `gallery/planted.json` is the truth: `duplicates` (pairs of paths), `outliers`
(paths), and `wrong_labels` (path -> true kind).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from .brush import Brush
from .graphics import GRAPHICS, PAPER
from .sprites import SPRITES
from .textures import TEXTURES, blend, noise

SIZE = 128
PER_KIND = 46
DUPLICATES, OUTLIERS, WRONG_LABELS = 20, 10, 20
KINDS = (*SPRITES, *TEXTURES, *GRAPHICS)
TRUTH = "planted.json"
Progress = Callable[[int, int], None]


def render(kind: str, number: int, size: int = SIZE) -> Image.Image:
    """Return image `number` of a kind: always the same RGB pixels, of (size, size) or a little narrower or lower."""
    rng = np.random.default_rng([KINDS.index(kind), number])
    if kind in TEXTURES:
        image = _image(TEXTURES[kind](rng, size))
    elif kind in GRAPHICS:
        brush = Brush(rng, 2 * size, (*PAPER,))
        GRAPHICS[kind](brush)
        image = brush.image.convert("RGB").resize((size, size), Image.Resampling.LANCZOS)
    else:
        image = _placed(kind, rng, size)
    return _framed(image, rng)


def write_gallery(folder: Path, progress: Progress = lambda done, total: None, per_kind: int = PER_KIND) -> Path:
    """Write all images to a new folder; an interrupted call leaves nothing under its name.

    Args:
        per_kind: images of each kind, at least 2.

    Returns:
        The folder.
    """
    if folder.is_dir():
        return folder
    partial = folder.with_name(folder.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    total = len(KINDS) * per_kind + DUPLICATES + OUTLIERS
    for done, _ in enumerate(_write_each(partial, per_kind), 1):
        progress(done, total)
    partial.rename(folder)
    return folder


def _write_each(folder: Path, per_kind: int) -> Iterator[None]:
    rng = np.random.default_rng(0)
    every = [(kind, number) for kind in KINDS for number in range(per_kind)]
    chosen = [every[i] for i in rng.permutation(len(every))[: WRONG_LABELS + DUPLICATES]]
    wrong = {one: str(rng.choice([kind for kind in KINDS if kind != one[0]])) for one in chosen[:WRONG_LABELS]}
    truth: dict[str, object] = {
        "wrong_labels": {f"{given}/{kind}-{number:03}.jpg": kind for (kind, number), given in wrong.items()}
    }
    for kind, number in every:
        _save(render(kind, number), folder / wrong.get((kind, number), kind) / f"{kind}-{number:03}.jpg")
        yield
    pairs = []
    for i, (kind, number) in enumerate(chosen[WRONG_LABELS:]):
        copy = f"{kind}/copy-{number:03}.jpg"
        _save(_copied(render(kind, number), i), folder / copy, quality=(60, 90)[i % 2])
        pairs.append([f"{kind}/{kind}-{number:03}.jpg", copy])
        yield
    outliers = []
    for i in range(OUTLIERS):
        path = f"{KINDS[i * 4]}/odd-{i:03}.jpg"
        _save(_odd(np.random.default_rng([99, i]), i), folder / path)
        outliers.append(path)
        yield
    (folder / TRUTH).write_text(json.dumps(truth | {"duplicates": pairs, "outliers": outliers}, indent=1))


def _save(image: Image.Image, path: Path, quality: int = 90) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, quality=quality)


def _image(values: np.ndarray) -> Image.Image:
    return Image.fromarray((255 * np.clip(values, 0, 1)).astype(np.uint8))


def _placed(kind: str, rng: np.random.Generator, size: int) -> Image.Image:
    """Draw an object, turn and scale it, and put it on a background."""
    brush = Brush(rng, 2 * size)
    SPRITES[kind](brush)
    side = int(size * rng.uniform(0.62, 0.98))
    sprite = brush.image.rotate(rng.normal(0, 12), Image.Resampling.BICUBIC).resize(
        (side, side), Image.Resampling.LANCZOS
    )
    if rng.random() < 0.5:
        sprite = ImageOps.mirror(sprite)
    image = _image(_background(rng, size))
    free = max(1, size - side)
    image.paste(sprite, (int(rng.integers(0, free)), int(rng.integers(0, free))), sprite)
    return image


def _background(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return a plain, graded or cloudy background in two colors."""
    low, high = np.clip(rng.random(3) * 0.5 + rng.uniform(0, 0.5), 0, 1), rng.random(3) * 0.5 + 0.5
    shade = rng.integers(3)
    share = np.zeros((size, size)) if shade == 0 else np.mgrid[:size, :size][rng.integers(2)] / size
    return blend(low, high, noise(rng, size, 3) if shade == 2 else share)


def _framed(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Change the light, and cut some images to another shape."""
    values = np.asarray(image, np.float64) / 255 * rng.uniform(0.75, 1.15) + rng.uniform(-0.05, 0.05)
    values = values + rng.normal(0, 0.015, values.shape)
    width, height = image.size
    if rng.random() < 0.3:
        width = int(width * rng.uniform(0.75, 1))
    elif rng.random() < 0.4:
        height = int(height * rng.uniform(0.75, 1))
    return _image(values[:height, :width])


def _copied(image: Image.Image, number: int) -> Image.Image:
    """Return a near duplicate: smaller, mirrored, or without its border."""
    width, height = image.size
    if number % 3 == 0:
        return image.resize((width * 3 // 4, height * 3 // 4), Image.Resampling.LANCZOS)
    if number % 3 == 1:
        return ImageOps.mirror(image)
    return image.crop((width // 16, height // 16, width - width // 16, height - height // 16))


def _odd(rng: np.random.Generator, number: int) -> Image.Image:
    """Return an image that is of no kind: static, one color, or spirals."""
    if number % 3 == 0:
        return _image(rng.random((SIZE, SIZE, 3)))
    if number % 3 == 1:
        return _image(np.ones((SIZE, SIZE, 3)) * rng.random(3))
    y, x = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
    spiral = np.sin(rng.integers(3, 9) * np.arctan2(y, x) + rng.uniform(10, 30) * np.hypot(x, y))
    return _image(blend(rng.random(3), rng.random(3), (spiral + 1) / 2))
