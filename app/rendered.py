"""A gallery that needs no network: labeled images that are drawn, with planted copies, foreign images and wrong labels.

    write_gallery(Path("gallery"), console_progress)

The names show what is planted: `star/star-003.jpg` is a star, `star/fish-007.jpg` a fish with a wrong label,
`star/copy-003.jpg` a copy of the first, and `star/odd-1.jpg` is of no kind.
"""

from __future__ import annotations

import colorsys
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image, ImageDraw, ImageOps

SIZE = 128
PER_KIND = 46
DUPLICATES, OUTLIERS, WRONG_LABELS = 20, 10, 20
INK, PAPER = (35, 35, 40), (250, 248, 242)
Color = tuple[int, ...]
Points = Sequence[tuple[float, float]]
Progress = Callable[[int, int], None]
T = TypeVar("T")


class Brush:
    """Draw on a square with coordinates from 0 to 1. All randomness of an image comes from its generator."""

    def __init__(self, rng: np.random.Generator, size: int) -> None:
        self.rng = rng
        self.size = size
        self.image = Image.new("RGBA", (size, size), (0, 0, 0, 0))
        self._draw = ImageDraw.Draw(self.image)

    def between(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def integer(self, low: int, high: int) -> int:
        """Return an integer from low to high - 1."""
        return int(self.rng.integers(low, high))

    def choice(self, options: Sequence[T]) -> T:
        return options[self.integer(0, len(options))]

    def color(self, hue: float | None = None, saturation: float | None = None, value: float | None = None) -> Color:
        """Return a color near a hue in [0, 1]; None: any."""
        hue = self.between(0, 1) if hue is None else hue + self.between(-0.03, 0.03)
        saturation = self.between(0.5, 0.95) if saturation is None else saturation
        value = self.between(0.55, 0.95) if value is None else value
        return tuple(round(255 * one) for one in colorsys.hsv_to_rgb(hue % 1, saturation, value))

    def polygon(self, points: Points, color: Color) -> None:
        self._draw.polygon([(x * self.size, y * self.size) for x, y in points], fill=color)

    def line(self, points: Points, color: Color, width: float) -> None:
        scaled = [(x * self.size, y * self.size) for x, y in points]
        self._draw.line(scaled, fill=color, width=max(1, round(width * self.size)), joint="curve")

    def box(self, x0: float, y0: float, x1: float, y1: float, color: Color, radius: float = 0.0) -> None:
        self._draw.rounded_rectangle([one * self.size for one in (x0, y0, x1, y1)], radius * self.size, fill=color)

    def circle(self, x: float, y: float, radius: float, color: Color, height: float | None = None) -> None:
        """Fill a circle, or an ellipse if it has a height."""
        high = radius if height is None else height
        corners = (x - radius, y - high, x + radius, y + high)
        self._draw.ellipse([one * self.size for one in corners], fill=color)

    def around(self, count: int, radii: Sequence[float]) -> Points:
        """Return points around the middle whose distances take turns."""
        angles = np.arange(count * len(radii)) * 2 * np.pi / (count * len(radii))
        return [
            (0.5 + radii[i % len(radii)] * np.sin(a), 0.5 - radii[i % len(radii)] * np.cos(a))
            for i, a in enumerate(angles)
        ]


def darker(color: Color) -> Color:
    return tuple(round(0.65 * one) for one in color)


# ---- objects, on a transparent square


def leaf(b: Brush) -> None:
    width, green = b.between(0.12, 0.26), b.color(b.choice([0.2, 0.28, 0.33, 0.09, 0.13]))
    half = [(0.5 + width * np.sin(np.pi * t) ** b.between(0.8, 1.2), 0.1 + 0.7 * t) for t in np.linspace(0, 1, 20)]
    b.polygon([*half, *((1 - x, y) for x, y in reversed(half))], green)
    b.line([(0.5, 0.12), (0.5, 0.95)], darker(green), 0.02)
    for y in np.arange(0.25, 0.75, b.between(0.08, 0.14)):
        b.line([(0.5 - width * 0.7, y - 0.04), (0.5, y + 0.08), (0.5 + width * 0.7, y - 0.04)], darker(green), 0.01)


def flower(b: Brush) -> None:
    petals, long, color = b.integer(5, 13), b.between(0.2, 0.3), b.color()
    b.line([(0.5, 0.5), (0.5, 0.98)], b.color(0.33), 0.03)
    for x, y in b.around(petals, [long]):
        b.circle(x, y - 0.08, 1.9 * long / petals + 0.05, color)
    b.circle(0.5, 0.42, long * 0.5, b.color(0.14))


def fish(b: Brush) -> None:
    body, height = b.color(), b.between(0.14, 0.24)
    b.polygon([(0.66, 0.5), (0.95, 0.5 - height), (0.95, 0.5 + height)], darker(body))
    b.circle(0.42, 0.5, 0.32, body, height)
    for x in np.arange(0.34, 0.66, b.between(0.07, 0.12)):
        b.line([(x, 0.5 - 0.7 * height), (x, 0.5 + 0.7 * height)], darker(body), 0.015)
    b.circle(0.22, 0.46, 0.035, (255, 255, 255))
    b.circle(0.215, 0.46, 0.018, INK)


def house(b: Brush) -> None:
    wall, roof = b.color(saturation=0.35, value=0.9), b.color(b.choice([0.0, 0.04, 0.6, 0.08]), 0.7, 0.6)
    left, right, top = b.between(0.12, 0.22), b.between(0.78, 0.88), b.between(0.4, 0.5)
    b.box(left, top, right, 0.9, wall)
    b.polygon([(left - 0.06, top), (0.5, b.between(0.1, 0.22)), (right + 0.06, top)], roof)
    b.box(0.44, 0.68, 0.56, 0.9, b.color(0.08, 0.6, 0.4))
    for x in (left + 0.07, right - 0.19):
        b.box(x, top + 0.1, x + 0.12, top + 0.22, (170, 210, 240))


def car(b: Brush) -> None:
    paint, slope = b.color(), b.between(0.04, 0.14)
    b.box(0.06, 0.48, 0.94, 0.7, paint, radius=0.06)
    b.polygon([(0.2, 0.5), (0.2 + slope, 0.3), (0.72 - slope / 2, 0.3), (0.82, 0.5)], darker(paint))
    b.polygon([(0.26, 0.48), (0.25 + slope, 0.34), (0.7 - slope / 2, 0.34), (0.77, 0.48)], (190, 220, 240))
    for x in (0.26, 0.74):
        b.circle(x, 0.7, 0.11, INK)
        b.circle(x, 0.7, 0.05, (190, 190, 195))


def rocket(b: Brush) -> None:
    body, fin = b.color(saturation=0.15, value=0.95), b.color()
    b.polygon([(0.5, 0.05), (0.4, 0.28), (0.6, 0.28)], fin)
    b.polygon([(0.5, 0.5), (0.26, 0.82), (0.74, 0.82)], fin)
    b.box(0.4, 0.28, 0.6, 0.75, body)
    for y in np.linspace(0.36, 0.6, b.integer(1, 4)):
        b.circle(0.5, y, 0.045, (90, 160, 220))
    b.polygon([(0.43, 0.82), (0.57, 0.82), (0.5, b.between(0.9, 1))], (255, 170, 30))


def clock(b: Brush) -> None:
    b.circle(0.5, 0.5, 0.42, b.color())
    b.circle(0.5, 0.5, 0.36, PAPER)
    for x, y in b.around(12, [0.31]):
        b.circle(x, y, 0.015, INK)
    for long, width in ((0.2, 0.03), (0.29, 0.018)):
        angle = b.between(0, 2 * np.pi)
        b.line([(0.5, 0.5), (0.5 + long * np.sin(angle), 0.5 - long * np.cos(angle))], INK, width)


def bottle(b: Brush) -> None:
    glass, width = b.color(b.choice([0.33, 0.3, 0.08, 0.55, 0.6]), 0.6, 0.6), b.between(0.12, 0.2)
    b.box(0.5 - width, 0.38, 0.5 + width, 0.95, glass, radius=0.06)
    b.polygon([(0.5 - width, 0.42), (0.45, 0.28), (0.55, 0.28), (0.5 + width, 0.42)], glass)
    b.box(0.45, 0.1, 0.55, 0.3, glass)
    b.box(0.44, 0.05, 0.56, 0.12, b.color())
    b.box(0.5 - width, 0.55, 0.5 + width, 0.78, PAPER)


def star(b: Brush) -> None:
    b.polygon(b.around(b.integer(5, 9), [0.42, b.between(0.15, 0.25)]), b.color(b.between(0.1, 0.16)))


def gear(b: Brush) -> None:
    metal, deep = b.color(saturation=b.between(0, 0.3), value=0.65), b.between(0.05, 0.1)
    b.polygon(b.around(b.integer(8, 17), [0.33, 0.33 + deep, 0.33 + deep, 0.33]), metal)
    b.circle(0.5, 0.5, b.between(0.08, 0.2), darker(metal))


# ---- surfaces and graphics, which fill the image


def noise(rng: np.random.Generator, size: int, cells: int = 4, octaves: int = 4) -> np.ndarray:
    """Return (S, S) smooth random values in [0, 1] whose largest features are 1 / cells of the side."""
    total = np.zeros((size, size))
    for octave in range(octaves):
        grid = Image.fromarray(rng.random((cells * 2**octave + 1,) * 2).astype(np.float32))
        total += np.asarray(grid.resize((size, size), Image.Resampling.BICUBIC)) / 2**octave
    return (total - total.min()) / (total.max() - total.min())


def blend(rng: np.random.Generator, low: ArrayLike, high: ArrayLike, share: np.ndarray) -> np.ndarray:
    """Return colors between two, which get a small shift, for shares (S, S) in [0, 1]."""
    first, second = np.clip(np.array([low, high]) + rng.uniform(-0.08, 0.08, 3), 0, 1)
    return first + (second - first) * share[..., None]


def wood(rng: np.random.Generator, size: int) -> np.ndarray:
    y, x = np.mgrid[:size, :size] / size
    rings = np.sin((x * rng.uniform(6, 14) + noise(rng, size, 2) * rng.uniform(3, 7) + 0.3 * y) * 2 * np.pi)
    return blend(rng, (0.35, 0.2, 0.1), (0.75, 0.52, 0.3), 0.7 * (rings + 1) / 2 + 0.3 * noise(rng, size, 24, 2))


def bricks(rng: np.random.Generator, size: int) -> np.ndarray:
    y, x = np.mgrid[:size, :size] / size
    rows, mortar = int(rng.integers(5, 11)), rng.uniform(0.06, 0.14)
    row = np.floor(y * rows)
    across = x * rows / 2 + 0.5 * (row % 2)
    joint = ((y * rows) % 1 < mortar) | (across % 1 < mortar / 2)
    shade = rng.random(4096)[(row * 31 + np.floor(across) * 7).astype(int) % 4096]
    wall = blend(rng, (0.42, 0.15, 0.1), (0.75, 0.38, 0.28), 0.7 * shade + 0.3 * noise(rng, size, 16))
    return np.where(joint[..., None], np.array([0.8, 0.78, 0.74]), wall)


def waves(rng: np.random.Generator, size: int) -> np.ndarray:
    y, x = np.mgrid[:size, :size] / size
    slopes = [(y * (4 + 5 * i) * (1 + y) + x * rng.uniform(-2, 2) + noise(rng, size, 3) * 0.6) for i in range(3)]
    height = sum(np.sin(slope * 2 * np.pi) / (i + 1) for i, slope in enumerate(slopes))
    return blend(rng, (0.02, 0.18, 0.32), (0.6, 0.82, 0.9), np.clip((np.asarray(height) + 1.6) / 3.2, 0, 1) ** 1.5)


def clouds(rng: np.random.Generator, size: int) -> np.ndarray:
    share = np.clip((noise(rng, size, 3, 5) - rng.uniform(0.35, 0.5)) * 3, 0, 1)
    return blend(rng, (0.25, 0.5, 0.85), (0.97, 0.97, 0.97), share)


def bars(b: Brush) -> None:
    b.box(0, 0, 1, 1, PAPER)
    b.line([(0.12, 0.06), (0.12, 0.88), (0.96, 0.88)], INK, 0.012)
    count, color = b.integer(4, 11), b.color()
    for left in np.linspace(0.15, 0.95, count, endpoint=False):
        b.box(left, b.between(0.12, 0.75), left + 0.6 / count, 0.87, color)


def board(b: Brush) -> None:
    cells, colors = b.integer(4, 9), (b.color(saturation=0.3, value=0.9), b.color(value=0.45))
    for row, column in np.ndindex(cells, cells):
        b.box(column / cells, row / cells, (column + 1) / cells, (row + 1) / cells, colors[(row + column) % 2])
    for _ in range(b.integer(0, 8)):
        x, y = b.integer(0, cells) + 0.5, b.integer(0, cells) + 0.5
        b.circle(x / cells, y / cells, 0.35 / cells, b.choice([PAPER, INK]))


OBJECTS = {one.__name__: one for one in (leaf, flower, fish, house, car, rocket, clock, bottle, star, gear)}
SURFACES = {one.__name__: one for one in (wood, bricks, waves, clouds)}
GRAPHICS = {one.__name__: one for one in (bars, board)}
KINDS = (*OBJECTS, *SURFACES, *GRAPHICS)


# ---- images


def render(kind: str, number: int, size: int = SIZE) -> Image.Image:
    """Return image `number` of a kind: always the same RGB pixels, of (size, size) or a little narrower or lower."""
    rng = np.random.default_rng([KINDS.index(kind), number])
    if kind in SURFACES:
        image = _image(SURFACES[kind](rng, size))
    else:
        brush = Brush(rng, 2 * size)
        (OBJECTS | GRAPHICS)[kind](brush)
        turned = brush.image.rotate(rng.normal(0, 12) if kind in OBJECTS else 0, Image.Resampling.BICUBIC)
        side = int(size * rng.uniform(0.62, 0.98)) if kind in OBJECTS else size
        sprite = turned.resize((side, side), Image.Resampling.LANCZOS)
        share = noise(rng, size, 3) if rng.random() < 0.5 else np.mgrid[:size, :size][0] / size
        image = _image(blend(rng, rng.random(3) * 0.6, rng.random(3) * 0.5 + 0.5, share))
        left, top = rng.integers(0, size - side + 1, 2)
        image.paste(sprite, (int(left), int(top)), sprite)
    light = np.asarray(image, np.float64) / 255 * rng.uniform(0.75, 1.15) + rng.normal(0, 0.015, (size, size, 3))
    width, height = (int(size * (rng.uniform(0.75, 1) if rng.random() < 0.3 else 1)) for _ in range(2))
    return _image(light[:height, :width])


def write_gallery(folder: Path, progress: Progress = lambda done, total: None, per_kind: int = PER_KIND) -> Path:
    """Write all images to a new folder, and return it; an interrupted call leaves nothing under its name.

    Args:
        per_kind: images of each kind, at least 3.
    """
    if not folder.is_dir():
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
    for kind, number in every:
        _save(render(kind, number), folder / wrong.get((kind, number), kind) / f"{kind}-{number:03}.jpg")
        yield
    for i, (kind, number) in enumerate(chosen[WRONG_LABELS:]):
        image = render(kind, number)
        _save(ImageOps.scale(image, 0.75) if i % 2 else ImageOps.mirror(image), folder / kind / f"copy-{number:03}.jpg")
        yield
    for i in range(OUTLIERS):  # static, or one color
        values = rng.random((SIZE, SIZE, 3)) if i % 2 else np.ones((SIZE, SIZE, 3)) * rng.random(3)
        _save(_image(values), folder / KINDS[i] / f"odd-{i}.jpg")
        yield


def _save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, quality=90)


def _image(values: np.ndarray) -> Image.Image:
    return Image.fromarray((255 * np.clip(values, 0, 1)).astype(np.uint8))
