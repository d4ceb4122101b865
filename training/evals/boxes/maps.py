"""Maps of images with boxes: an encoder's attention at some size, or a baseline that ignores the image.

The encoder processes each image once. Its feature maps are kept in a file until a query of another image needs them.
The results equal those of `Encoder.attention`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
from PIL import Image

from nnclr_hub.encoder.attention import AttentionSettings, Box
from nnclr_hub.encoder.attention.extractor import ImageFeatures, PreparedImage
from nnclr_hub.encoder.encoder import Encoder

from .boxed import BoxedImage

NO_PIXELS = Image.new("RGB", (1, 1))


@dataclass(frozen=True)
class StoredImage:
    """An image after its forward pass.

    size: width and height, in which boxes are given and maps are returned.
    seen: the encoder's result without pixels and features; None for a baseline.
    start, shape: position of the features in the file.
    """

    size: tuple[int, int]
    seen: ImageFeatures | None = None
    start: int = 0
    shape: tuple[int, ...] = ()


# ------------------------------------------------------------------------------ encoders


class EncoderMaps:
    """Attention maps of an encoder, for images at their size or at another one.

    Args:
        encoder: a ResNet or a vision transformer.
        short_side: the short side of the encoder's input in pixels; 0: the image's size.
        similarity: "dot" or "cosine".
        file: an empty file for feature maps.

    Raises:
        InvalidRequest: the encoder has no such maps.
    """

    uses_query = True  # the maps depend on the query

    def __init__(self, encoder: Encoder, short_side: int, similarity: str, file: BinaryIO) -> None:
        self._extractor, self._short_side, self._file = encoder.attention_extractor, short_side, file
        self._settings = AttentionSettings(similarity=similarity)
        self._extractor.check(self._settings)

    def map_of(self, image: BoxedImage) -> tuple[np.ndarray, StoredImage]:
        """Return the (H, W) map of an image without a query, and what `cross_map` needs of it.

        Raises:
            ImageError: the image cannot be read.
        """
        pixels = image.read()
        if self._short_side:
            scale = self._short_side / min(pixels.size)
            width, height = (max(1, round(scale * side)) for side in pixels.size)
            pixels = pixels.resize((width, height), Image.Resampling.BICUBIC)
        seen = self._extractor.forward(self._extractor.prepare(pixels, self._settings))
        # the same cells, in the pixels in which boxes are given
        grid = self._extractor.traits.grid(seen.features.shape[:2], seen.grid.input_size, image.size)
        (found,) = self._extractor.maps(self._settings, replace(seen, grid=grid))
        start = self._file.seek(0, os.SEEK_END)
        self._file.write(np.ascontiguousarray(seen.features).tobytes())
        self._file.flush()
        empty = np.zeros((0, 0, 0), np.float32)
        light = replace(seen, prepared=PreparedImage(NO_PIXELS, empty), grid=grid, features=empty, rows=None)
        return grid.upsampled(found.values), StoredImage(image.size, light, start, seen.features.shape)

    def cross_map(self, query: StoredImage, box: np.ndarray, target: StoredImage) -> np.ndarray:
        """Return the (H, W) map of a target for a box (x0, y0, x1, y1) of the query image."""
        settings = replace(self._settings, query=Box(*map(float, box)))
        (found,) = self._extractor.maps(settings, self._load(query), [self._load(target)])
        return found.grid.upsampled(found.values)

    def _load(self, stored: StoredImage) -> ImageFeatures:
        assert stored.seen is not None
        raw = os.pread(self._file.fileno(), 4 * int(np.prod(stored.shape)), stored.start)
        return replace(stored.seen, features=np.frombuffer(bytearray(raw), np.float32).reshape(stored.shape))


# ------------------------------------------------------------------------------ baselines


def center(width: int, height: int) -> np.ndarray:
    """Return (H, W): 1 at the center pixel, else 0."""
    values = np.zeros((height, width), np.float32)
    values[height // 2, width // 2] = 1
    return values


def gaussian(width: int, height: int) -> np.ndarray:
    """Return (H, W): exp(-r^2 / 2) around the center pixel, r in quarters of the sides.

    Its width does not matter, because only the order of the pixels counts.
    """
    x = (np.arange(width) - width // 2) / (width / 4)
    y = (np.arange(height) - height // 2) / (height / 4)
    return np.exp(-(x[None] ** 2 + y[:, None] ** 2) / 2).astype(np.float32)


def area(width: int, height: int) -> np.ndarray:
    """Return (H, W) of zeros. Its pointing score is the share of the image that boxes cover."""
    return np.zeros((height, width), np.float32)


@dataclass(frozen=True)
class Baseline:
    """A map that does not depend on the image's content; an encoder must score higher.

    draw: (width, height) -> (H, W) float32.
    """

    name: str
    draw: Callable[[int, int], np.ndarray]

    @property
    def fingerprint(self) -> str:
        """Identifier in results, in place of an encoder's fingerprint."""
        return f"place-{self.name}"


BASELINES = {function.__name__: Baseline(function.__name__, function) for function in (gaussian, center, area)}


class BaselineMaps:
    """Maps of a baseline, with the methods of `EncoderMaps`."""

    uses_query = False

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline

    def map_of(self, image: BoxedImage) -> tuple[np.ndarray, StoredImage]:
        return self._baseline.draw(*image.size), StoredImage(image.size)

    def cross_map(self, query: StoredImage, box: np.ndarray, target: StoredImage) -> np.ndarray:
        return self._baseline.draw(*target.size)


MapSource = EncoderMaps | BaselineMaps
