"""Kinds of surfaces: each function returns an (S, S, 3) array of values in [0, 1] that fills the whole image."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

Texture = Callable[[np.random.Generator, int], np.ndarray]


def noise(rng: np.random.Generator, size: int, cells: int = 4, octaves: int = 4) -> np.ndarray:
    """Return (S, S) smooth random values in [0, 1] whose largest features are 1 / cells of the side."""
    total = np.zeros((size, size))
    for octave in range(octaves):
        grid = Image.fromarray(rng.random((cells * 2**octave + 1,) * 2).astype(np.float32))
        total += np.asarray(grid.resize((size, size), Image.Resampling.BICUBIC)) / 2**octave
    low, high = total.min(), total.max()
    return (total - low) / (high - low)


def blend(low: np.ndarray, high: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return colors between two (3,) colors, for shares (S, S) in [0, 1]."""
    return low + (high - low) * share[..., None]


def tones(rng: np.random.Generator, dark: tuple[float, ...], light: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return a dark and a light color, each with a small random shift."""
    shift = rng.uniform(-0.08, 0.08, 3)
    return np.clip(np.array(dark) + shift, 0, 1), np.clip(np.array(light) + shift, 0, 1)


def _grid(size: int) -> tuple[np.ndarray, np.ndarray]:
    y, x = np.mgrid[:size, :size] / size
    return x, y


def _turned(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = _grid(size)
    angle = rng.uniform(0, np.pi)
    return x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)


def wood(rng: np.random.Generator, size: int) -> np.ndarray:
    x, y = _grid(size)
    rings = np.sin((x * rng.uniform(6, 14) + noise(rng, size, 2) * rng.uniform(3, 7) + 0.3 * y) * 2 * np.pi)
    fine = noise(rng, size, 24, 2)
    return blend(*tones(rng, (0.35, 0.2, 0.1), (0.75, 0.52, 0.3)), 0.7 * (rings + 1) / 2 + 0.3 * fine)


def stone(rng: np.random.Generator, size: int) -> np.ndarray:
    points = rng.random((rng.integers(18, 50), 2))
    x, y = _grid(size)
    distance = np.sort((x[..., None] - points[:, 0]) ** 2 + (y[..., None] - points[:, 1]) ** 2, axis=-1)
    edge = np.clip((np.sqrt(distance[..., 1]) - np.sqrt(distance[..., 0])) * 14, 0, 1)
    return blend(*tones(rng, (0.2, 0.2, 0.2), (0.62, 0.6, 0.57)), edge * (0.6 + 0.4 * noise(rng, size, 8)))


def fabric(rng: np.random.Generator, size: int) -> np.ndarray:
    x, y = _grid(size)
    colors = rng.random((3, 3))
    cloth = np.ones((size, size, 3)) * colors[0]
    for color, along in ((colors[1], x), (colors[2], y)):
        count, share = rng.integers(3, 8), rng.uniform(0.2, 0.6)
        cloth = np.where(((along * count) % 1 < share)[..., None], 0.5 * cloth + 0.5 * color, cloth)
    weave = 0.85 + 0.15 * np.sign(np.sin(x * size * 0.8) * np.sin(y * size * 0.8))
    return cloth * weave[..., None]


def bricks(rng: np.random.Generator, size: int) -> np.ndarray:
    x, y = _grid(size)
    rows, mortar = int(rng.integers(5, 11)), rng.uniform(0.06, 0.14)
    row = np.floor(y * rows)
    across = x * rows / 2 + 0.5 * (row % 2)
    joint = ((y * rows) % 1 < mortar) | (across % 1 < mortar / 2)
    shade = rng.random(4096)[(row * 31 + np.floor(across) * 7).astype(int) % 4096]
    wall = blend(*tones(rng, (0.42, 0.15, 0.1), (0.75, 0.38, 0.28)), 0.7 * shade + 0.3 * noise(rng, size, 16))
    return np.where(joint[..., None], np.array([0.8, 0.78, 0.74]), wall)


def waves(rng: np.random.Generator, size: int) -> np.ndarray:
    x, y = _grid(size)
    height = sum(
        np.sin((y * (4 + 5 * i) * (1 + y) + x * rng.uniform(-2, 2) + noise(rng, size, 3) * 0.6) * 2 * np.pi) / (i + 1)
        for i in range(3)
    )
    share = np.clip((np.asarray(height) + 1.6) / 3.2, 0, 1) ** 1.5
    return blend(*tones(rng, (0.02, 0.18, 0.32), (0.6, 0.82, 0.9)), share)


def clouds(rng: np.random.Generator, size: int) -> np.ndarray:
    share = np.clip((noise(rng, size, 3, 5) - rng.uniform(0.35, 0.5)) * 3, 0, 1)
    return blend(*tones(rng, (0.25, 0.5, 0.85), (0.97, 0.97, 0.97)), share)


def stars(rng: np.random.Generator, size: int) -> np.ndarray:
    glow = blend(np.array([0.01, 0.01, 0.04]), rng.random(3) * 0.5, noise(rng, size, 2) ** 3)
    for _ in range(int(rng.integers(60, 220))):
        x, y = rng.integers(1, size - 2, 2)
        reach = 2 if rng.random() < 0.12 else 1
        glow[y : y + reach, x : x + reach] = rng.uniform(0.6, 1)
    return glow


def grass(rng: np.random.Generator, size: int) -> np.ndarray:
    blades = noise(rng, size, 32, 2)
    streaks = np.asarray(Image.fromarray(blades.astype(np.float32)).resize((size, max(2, size // 6))))
    tall = np.asarray(Image.fromarray(streaks).resize((size, size)))
    return blend(*tones(rng, (0.06, 0.2, 0.03), (0.45, 0.68, 0.2)), np.clip(tall * 1.2 - 0.1, 0, 1))


def marble(rng: np.random.Generator, size: int) -> np.ndarray:
    u, _ = _turned(rng, size)
    veins = np.abs(np.sin((u * rng.uniform(2, 4) + noise(rng, size, 3, 5) * 2.2) * np.pi)) ** 0.4
    return blend(*tones(rng, (0.35, 0.35, 0.4), (0.95, 0.94, 0.92)), veins)


def scales(rng: np.random.Generator, size: int) -> np.ndarray:
    x, y = _grid(size)
    count = int(rng.integers(5, 10))
    row = np.floor(y * count)
    dx, dy = (x * count + 0.5 * (row % 2)) % 1 - 0.5, (y * count) % 1
    share = np.clip(1.1 - np.hypot(dx * 1.2, dy), 0, 1)
    return blend(np.asarray(rng.random(3) * 0.4), 0.5 + 0.5 * rng.random(3), share)


def sand(rng: np.random.Generator, size: int) -> np.ndarray:
    u, _ = _turned(rng, size)
    ripples = np.sin((u * rng.uniform(8, 16) + noise(rng, size, 2) * 2) * 2 * np.pi)
    return blend(
        *tones(rng, (0.6, 0.45, 0.25), (0.93, 0.82, 0.6)), 0.4 * (ripples + 1) / 2 + 0.6 * noise(rng, size, 30, 2)
    )


TEXTURES: dict[str, Texture] = {
    one.__name__: one for one in (wood, stone, fabric, bricks, waves, clouds, stars, grass, marble, scales, sand)
}
