"""More copies are never found less: no threshold assumes that the images of a collection are mostly different."""

import io
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from nnclr_hub import inspect
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.workbench.duplicates import near_duplicates
from nnclr_hub.workbench.inspection.scan import Scanned, scan_image


@cache
def photo(seed: int) -> Image.Image:
    """An image with structure at several scales and another color."""
    rng = np.random.default_rng(seed)
    pixels = np.zeros((96, 96, 3))
    for side in (3, 6, 12, 24, 48):
        part = Image.fromarray(rng.integers(0, 255, (side, side, 3), np.uint8)).resize(
            (96, 96), Image.Resampling.BICUBIC
        )
        pixels += np.asarray(part, float) / 5
    return Image.fromarray(pixels.astype(np.uint8)).filter(ImageFilter.SHARPEN)


def exact(image: Image.Image, number: int) -> Image.Image:
    return image


def reencoded(image: Image.Image, number: int) -> Image.Image:
    image.save(file := io.BytesIO(), "JPEG", quality=40 + number % 50)
    return Image.open(file)


def jittered(image: Image.Image, number: int) -> Image.Image:
    rng = np.random.default_rng(number)
    left, top = rng.integers(0, 2, 2).tolist()
    cut = image.crop((left, top, 95, 95)).resize((80, 80))
    return reencoded(ImageEnhance.Brightness(cut).enhance(float(rng.uniform(0.85, 1.15))), number)


def counts(copies: dict[int, int], version: Callable) -> tuple[int, int]:
    """Return the number of surplus images and of leaks between the first and the second version of each image."""
    named = [(seed, number) for seed, count in copies.items() for number in range(count)]
    images = [photo(seed) if number == 0 else version(photo(seed), number) for seed, number in named]
    scanned = [one for one in map(scan_image, images) if isinstance(one, Scanned)]
    small, color = (np.stack([getattr(one, part) for one in scanned]) for part in ("small", "color"))
    pixels = small.reshape(len(small), -1).astype(np.float32)
    found = inspect.near_duplicates(pixels - pixels.mean(axis=1, keepdims=True), small, color)
    assert all(len({named[i][0] for i in group}) == 1 for group in found.groups)  # no group of two images
    leaks = inspect.find_leaks(
        zip(found.groups, found.scores, strict=True), ["test" if number == 1 else "train" for _, number in named]
    )
    return sum(len(group) - 1 for group in found.groups), len(leaks)


EACH = dict.fromkeys(range(10), 6)
ONE = {0: 30, **dict.fromkeys(range(1, 16), 1)}
HALF = {**dict.fromkeys(range(10), 2), **dict.fromkeys(range(10, 20), 1)}


@pytest.mark.parametrize(
    ("copies", "version"),
    [
        (EACH, exact),
        (ONE, reencoded),
        *(pytest.param(*other, marks=pytest.mark.slow) for other in ((EACH, jittered), (ONE, exact), (HALF, jittered))),
    ],
    ids=["each 6 times", "one reencoded", "each jittered", "one 30 times", "half jittered"],
)
def test_copies_are_found_however_many(copies, version):
    surplus, leaks = counts(copies, version)
    assert surplus == sum(count - 1 for count in copies.values())
    assert leaks == sum(count > 1 for count in copies.values())


@pytest.mark.parametrize(("times", "jitter", "dim"), [(2, 0.01, 32), (20, 0.0, 256), (20, 0.01, 32)])
def test_copies_are_found_by_vectors_alone(times, jitter, dim, store):
    rng = np.random.default_rng(0)
    different = rng.normal(size=(30, dim)) + 2 * rng.normal(size=dim)
    vectors = np.repeat(different, times, axis=0) + jitter * rng.normal(size=(30 * times, dim)) * np.sqrt(dim) / 4
    groups = inspect.near_duplicates(vectors).groups
    assert sorted(map(len, groups)) == [times] * 30
    collection = store.create("c", CollectionSpec(dim))
    collection.upsert([Item(f"i{n:03}", row) for n, row in enumerate(vectors.astype(np.float32))])
    assert sorted(map(len, near_duplicates(collection))) == [times] * 30


@pytest.mark.parametrize("dim", [32, 256])
@pytest.mark.parametrize(
    ("copies", "jitter"), [([60], 0.0), ([40, 40], 0.0), ([40, 40], 0.002), ([3], 0.002), ([2, 2], 0.002)]
)
def test_copies_of_few_images_are_found_by_vectors_alone(dim, copies, jitter):
    rng = np.random.default_rng(0)
    different = rng.normal(size=(len(copies), dim)) + 2 * rng.normal(size=dim)
    vectors = different.repeat(copies, axis=0)
    vectors += jitter * rng.normal(size=vectors.shape) * np.sqrt(dim) / 4
    assert sorted(map(len, inspect.near_duplicates(vectors).groups)) == copies


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("odd_copies", [1, 8])
@pytest.mark.parametrize("times", [1, 4])
def test_outliers_are_found_however_many_copies_there_are(times, odd_copies, share):
    rng = np.random.default_rng(0)
    count = 100
    usual = np.repeat(np.eye(64)[0] * 4 + rng.normal(size=(count, 64)) * 0.5, times, axis=0)
    number = max(1, round(share * count))
    odd = np.repeat(rng.normal(size=(number, 64)) * 2, odd_copies, axis=0)
    vectors = np.concatenate([usual, odd])
    groups = inspect.near_duplicates(vectors).groups
    scores = inspect.outliers(vectors, groups=groups)
    low, high = np.quantile(
        scores[np.unique([next((g[0] for g in groups if i in g), i) for i in range(len(scores))])], [0.25, 0.75]
    )
    flagged = scores > high + 1.5 * (high - low)
    assert flagged[len(usual) :].mean() >= 0.9
    assert flagged[: len(usual)].mean() <= 0.05
