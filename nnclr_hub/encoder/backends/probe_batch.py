"""Synthetic images for comparing backends without photographs.

Noise alone is not enough, because a network returns similar vectors for all of it. These images have statistics of
photographs: amplitudes that fall with frequency, correlated color channels, and shapes with edges and stripes.
"""

from __future__ import annotations

import numpy as np

IMAGES = 8


def probe_images(side: int, count: int = IMAGES, channels: int = 3) -> np.ndarray:
    """Return (count, side, side, channels) uint8, the same on every machine; beyond RGB the colors are repeated."""
    images = np.stack([_image(np.random.default_rng(seed), side) for seed in range(count)])
    return images if channels == 3 else images[..., np.arange(channels) % 3]


def _image(rng: np.random.Generator, side: int) -> np.ndarray:
    mixing = np.eye(3) * 0.5 + rng.uniform(0.2, 0.8, 3)  # correlated channels: mostly gray, a little color
    scene = np.stack([_clouds(rng, side) for _ in range(3)], axis=-1) @ mixing
    scene = rng.uniform(60, 190, 3) + scene * rng.uniform(25, 60)
    y, x = np.mgrid[0:side, 0:side] / side
    for _ in range(int(rng.integers(2, 6))):
        scene = np.where(_shape(rng, x, y)[..., None], _surface(rng, x, y), scene)
    return np.clip(scene, 0, 255).astype(np.uint8)


def _clouds(rng: np.random.Generator, side: int) -> np.ndarray:
    """Return (side, side) with mean 0, deviation 1 and the spectrum of photographs."""
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    frequency[0, 0] = np.inf
    field = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((side, side))) / frequency**1.3, s=(side, side))
    return (field - field.mean()) / max(field.std(), 1e-9)


def _shape(rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the mask of an ellipse or a rectangle at a random angle."""
    angle, (cx, cy), (width, height) = rng.uniform(0, np.pi), rng.uniform(0.2, 0.8, 2), rng.uniform(0.08, 0.35, 2)
    u = (x - cx) * np.cos(angle) + (y - cy) * np.sin(angle)
    v = (y - cy) * np.cos(angle) - (x - cx) * np.sin(angle)
    if rng.random() < 0.5:
        return (u / width) ** 2 + (v / height) ** 2 < 1
    return (abs(u) < width) & (abs(v) < height)


def _surface(rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return (side, side, 3): a shaded color, plain or striped."""
    light = rng.uniform(-60, 60) * x + rng.uniform(-60, 60) * y
    across = x * rng.uniform(-1, 1) + y * rng.uniform(-1, 1)
    stripes = rng.choice([0, 40]) * np.sign(np.sin(across * rng.uniform(20, 120)))
    return rng.uniform(20, 235, 3) + (light + stripes)[..., None]
