"""More copies are never found less: no threshold assumes that the images of a collection are mostly different."""

import io
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from nnclr_hub import inspect
from nnclr_hub.encoder.hand_crafted import FLOORS
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.workbench.duplicates import near_duplicates
from nnclr_hub.workbench.inspection.findings import find
from nnclr_hub.workbench.inspection.subject import folder_subject


def photo(seed: int) -> Image.Image:
    """An image with structure at several scales and a color of its own."""
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
    left, top = rng.integers(0, 6, 2).tolist()
    cut = image.crop((left, top, 96 - int(rng.integers(0, 6)), 96 - int(rng.integers(0, 6)))).resize((80, 80))
    return reencoded(ImageEnhance.Brightness(cut).enhance(float(rng.uniform(0.85, 1.15))), number)


VERSIONS: dict[str, Callable] = {"exact": exact, "reencoded": reencoded, "jittered": jittered}


def write(folder, copies: dict[int, int], version: Callable, *, odd: int = 0, odd_copies: int = 1) -> None:
    """Write images by their number of copies, and odd images with copies of their own."""
    folder.mkdir()
    for seed, count in copies.items():
        for number in range(count):
            split = "test" if number == 1 else "train"
            (folder / split / "all").mkdir(parents=True, exist_ok=True)
            image = photo(seed) if number == 0 else version(photo(seed), number)
            image.convert("RGB").save(folder / split / "all" / f"{seed:03}-{number:03}.png")
    for seed in range(odd):
        noise = np.random.default_rng(1000 + seed).integers(0, 255, (96, 96, 3), np.uint8)
        for number in range(odd_copies):
            version(Image.fromarray(noise), number).convert("RGB").save(
                folder / "train" / "all" / f"odd{seed}-{number}.png"
            )


def counts(folder) -> tuple[int, int, list[tuple[str, ...]]]:
    """Return the number of surplus images, of leaks, and groups by the names of their images."""
    found = find(folder_subject(folder, FLOORS["hog+color"])).as_json()
    groups = [one["items"] for kind in ("exact_duplicates", "near_duplicates") for one in found[kind]]
    surplus = sum(len(group) - 1 for group in groups)
    return surplus, len(found["leaks"]), [tuple({item.rpartition("/")[2][:3] for item in group}) for group in groups]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("copies", "least"),
    [
        (dict.fromkeys(range(30), 20), 0.95),
        ({0: 200, **dict.fromkeys(range(1, 31), 1)}, 0.95),
        ({**dict.fromkeys(range(30), 2), **dict.fromkeys(range(30, 60), 1)}, 0.95),
    ],
    ids=["30 images 20 times", "one image 200 times", "half are copies"],
)
def test_copies_are_found_however_many(copies, least, version, tmp_path):
    if version != "jittered" and len(copies) == 60:
        copies = {seed: count for seed, count in copies.items() if seed % 2}
    write(tmp_path / "in", copies, VERSIONS[version])
    surplus, leaks, groups = counts(tmp_path / "in")
    planted = sum(count - 1 for count in copies.values())
    assert least * planted <= surplus <= planted
    assert [names for names in groups if len(names) > 1] == []  # no group of two images
    assert leaks >= 0.9 * sum(count > 1 for count in copies.values())


@pytest.mark.parametrize("version", VERSIONS)
def test_findings_grow_with_the_number_of_copies(version, tmp_path):
    found = []
    for number in (1, 2, 3, 6, 12):
        write(tmp_path / str(number), dict.fromkeys(range(12), number), VERSIONS[version])
        found.append(counts(tmp_path / str(number))[:2])
    for (surplus, leaks), (more, more_leaks) in pairwise(found):
        assert more > surplus
        assert more_leaks >= leaks
    assert found[0] == (0, 0)


@pytest.mark.parametrize("dim", [32, 256])
@pytest.mark.parametrize("jitter", [0.0, 0.003, 0.01])
@pytest.mark.parametrize("times", [2, 20])
def test_copies_are_found_by_vectors_alone(times, jitter, dim, store):
    rng = np.random.default_rng(0)
    different = rng.normal(size=(30, dim)) + 2 * rng.normal(size=dim)
    vectors = np.repeat(different, times, axis=0) + jitter * rng.normal(size=(30 * times, dim)) * np.sqrt(dim) / 4
    groups = inspect.near_duplicates(vectors).groups
    assert sorted(map(len, groups)) == [times] * 30
    collection = store.create("c", CollectionSpec(dim))
    collection.upsert([Item(f"i{n:03}", row) for n, row in enumerate(vectors.astype(np.float32))])
    assert sorted(map(len, near_duplicates(collection))) == [times] * 30


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
