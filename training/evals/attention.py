"""Attention maps scored with boxes: within an image, and from a box of one image to its class in another.

Within: the map without a query, scored in all boxes of the image. Across: the query is a box and the target another
image with its class, scored in the boxes of that class and averaged over classes. Control: the same target, with a box
of another class as the query. Pointing is whether the upsampled map's maximum is in a box; AUROC compares pixels in
boxes with those outside. Intervals are 95%, from a bootstrap over images.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Literal

import numpy as np
from PIL import Image
from rich.console import Console

from nnclr_hub.encoder.attention import AttentionSettings, Box
from nnclr_hub.encoder.attention.extractor import ImageFeatures, PreparedImage
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.progress import bar

from .boxed_images import BoxedImage, BoxedSet

METRICS = ("pointing", "auroc")
PARTS = ("within", "across", "control")
AT_ONCE = 100  # resamples; limits the memory
NO_PIXELS = Image.new("RGB", (1, 1))
Place = tuple[int, int]  # (image, its box), positions in the set


@dataclass(frozen=True)
class BoxedEvaluation:
    """An encoder or a baseline on a set of images with boxes; `broken` receives unreadable files with the reason."""

    source: Encoder | Baseline
    boxed: BoxedSet
    console: Console
    broken: dict[str, str] = field(default_factory=dict)


def attention(
    subject: BoxedEvaluation,
    *,
    short_side: tuple[int, ...] = (0, 448),
    pairs: int = 50,
    pairs_of_one_class: int = 2000,
    least: int = 32,
    similarity: Literal["dot", "cosine"] = "dot",
    draws: int = 1000,
    seed: int = 0,
) -> Iterator[tuple[str, float]]:
    """Yield ("attention/NAME", pointing within at the first size) and the details.

    For each size: ("attention/NAME/own/within/pointing", mean) with /low and /high, and the same for across, control
    and auroc. For an encoder also /over, the gain over the Gaussian on the same images or pairs, and for across
    /over_control. Further values: the number of images that boxes cover completely (they have no AUROC), and the
    numbers of pairs and of their classes.

    Args:
        short_side: sizes, each the short side in pixels; 0 is the image's size.
        pairs: maximum number of pairs per class, sampled with the seed.
        pairs_of_one_class: the same, for a set with a single class.
        least: queries are boxes whose area has a square root of at least this many pixels.

    Raises:
        InvalidRequest: no size, an encoder without attention maps, or no readable image.
    """
    boxed, source, name = subject.boxed, subject.source, f"attention/{subject.boxed.name}"
    if not short_side:
        raise InvalidRequest("short_side is empty; use 0 for the image's size, or a number of pixels.")
    one_class = len({int(kind) for one in boxed.images for kind in one.kinds}) == 1
    chosen = choose_pairs(boxed, most=pairs_of_one_class if one_class else pairs, least=least, seed=seed)
    baseline = source if isinstance(source, Baseline) else BASELINES["gaussian"]
    reference = found = score(subject, chosen, baseline, baseline.name)
    for number, side in enumerate(short_side):
        size = str(side) if side else "own"
        if isinstance(source, Encoder):
            with tempfile.TemporaryFile() as file:
                found = score(subject, chosen, EncoderMaps(source, side, similarity, file), f"short side {size}")
        if number == 0:
            readable = ~np.isnan(found["within"][:, 0])
            if not readable.any():
                raise InvalidRequest(f"No image of {boxed.name} can be read, such as {boxed.images[0].path}.")
            yield name, float(found["within"][readable, 0].mean())
            yield f"{name}/covered", float(np.isnan(found["within"][readable, 1]).sum())
        gains = {} if source is baseline else {f"{part}/{{}}/over": found[part] - reference[part] for part in PARTS}
        gains |= {"across/{}/over_control": found["across"] - found["control"]} if gains else {}
        for key, values in ({f"{part}/{{}}": found[part] for part in PARTS} | gains).items():
            for metric, column in zip(METRICS, values.T, strict=True):
                if not np.isnan(column).all():
                    mean, low, high = _estimate(key.partition("/")[0], column, chosen, draws, seed)
                    shown = f"{name}/{size}/{key.format(metric)}"
                    yield from ((shown, mean), (f"{shown}/low", low), (f"{shown}/high", high))
    yield f"{name}/pairs", float(len(chosen))
    yield f"{name}/classes", float(len({pair.kind for pair in chosen}))


# ------------------------------------------------------------------------------ pairs


@dataclass(frozen=True)
class Pair:
    """One query in one target.

    query: the box to search for.
    target: the image to search, a different image with the same class.
    kind: the class, whose boxes in the target are the right answer.
    control: a box of another class, not from the target; None if the set has none.
    """

    query: Place
    target: int
    kind: int
    control: Place | None


def choose_pairs(boxed: BoxedSet, *, most: int, least: float, seed: int) -> list[Pair]:
    """Sample at most `most` pairs of each class without repetition; queries are boxes of at least `least`² pixels."""
    rng = np.random.default_rng(seed)
    large = [
        (number, int(box))
        for number, one in enumerate(boxed.images)
        for box in np.flatnonzero((one.boxes[:, 2:] - one.boxes[:, :2]).prod(axis=1) >= least**2)
    ]
    kinds = np.array([boxed.images[image].kinds[box] for image, box in large], np.int64)
    pairs = []
    for kind in range(len(boxed.classes)):
        queries = [large[i] for i in np.flatnonzero(kinds == kind)]
        others = [large[i] for i in np.flatnonzero(kinds != kind)]
        shown = [number for number, one in enumerate(boxed.images) if kind in one.kinds]
        each = len(shown) - 1  # a query's image shows the class too, and is skipped as a target
        total = len(queries) * each
        for n in np.sort(rng.choice(total, min(most, total), replace=False)) if total > 0 else ():
            query, place = queries[n // each], n % each
            target = shown[place + (place >= shown.index(query[0]))]
            controls = [box for box in others if box[0] != target]
            pairs.append(Pair(query, target, kind, controls[int(rng.integers(len(controls)))] if controls else None))
    return pairs


# ------------------------------------------------------------------------------ maps


@dataclass(frozen=True)
class ComputedImage:
    """An image after its forward pass.

    size: width and height, in which boxes are given and maps are returned.
    seen: the encoder's result without pixels and features; None for a baseline.
    start, shape: position of the features in the file.
    """

    size: tuple[int, int]
    seen: ImageFeatures | None = None
    start: int = 0
    shape: tuple[int, ...] = ()


class EncoderMaps:
    """The maps of `Encoder.attention`, for images at their size or at another one.

    The network processes each image once. Its feature maps are kept in a file until a query of another image needs
    them.

    Args:
        short_side: the short side of the encoder's input in pixels; 0: the image's size.

    Raises:
        InvalidRequest: the encoder has no attention maps.
    """

    uses_query = True  # the maps depend on the query

    def __init__(self, encoder: Encoder, short_side: int, similarity: str, file: BinaryIO) -> None:
        self._extractor, self._short_side, self._file = encoder.attention_extractor, short_side, file
        self._settings = AttentionSettings(similarity=similarity)
        self._extractor.check(self._settings)

    def map_of(self, image: BoxedImage) -> tuple[np.ndarray, ComputedImage]:
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
        return grid.upsampled(found.values), ComputedImage(image.size, light, start, seen.features.shape)

    def cross_map(self, query: ComputedImage, box: np.ndarray, target: ComputedImage) -> np.ndarray:
        """Return the (H, W) map of a target for a box (x0, y0, x1, y1) of the query image."""
        settings = replace(self._settings, query=Box(*map(float, box)))
        (found,) = self._extractor.maps(settings, self._load(query), [self._load(target)])
        return found.grid.upsampled(found.values)

    def _load(self, stored: ComputedImage) -> ImageFeatures:
        assert stored.seen is not None
        raw = os.pread(self._file.fileno(), 4 * int(np.prod(stored.shape)), stored.start)
        return replace(stored.seen, features=np.frombuffer(bytearray(raw), np.float32).reshape(stored.shape))


@dataclass(frozen=True)
class Baseline:
    """A map that does not depend on the image's content, with the methods of `EncoderMaps`.

    draw: (width, height) -> (H, W) float32.
    """

    name: str
    draw: Callable[[int, int], np.ndarray]
    uses_query = False

    @property
    def fingerprint(self) -> str:
        """Identifier in results, in place of an encoder's fingerprint."""
        return f"place-{self.name}"

    def map_of(self, image: BoxedImage) -> tuple[np.ndarray, ComputedImage]:
        return self.draw(*image.size), ComputedImage(image.size)

    def cross_map(self, query: ComputedImage, box: np.ndarray, target: ComputedImage) -> np.ndarray:
        return self.draw(*target.size)


def _center(width: int, height: int) -> np.ndarray:
    values = np.zeros((height, width), np.float32)
    values[height // 2, width // 2] = 1
    return values


def _gaussian(width: int, height: int) -> np.ndarray:
    """Return exp(-r^2 / 2), r in quarters of the sides; only the order of the pixels counts, not the width."""
    x = (np.arange(width) - width // 2) / (width / 4)
    y = (np.arange(height) - height // 2) / (height / 4)
    return np.exp(-(x[None] ** 2 + y[:, None] ** 2) / 2).astype(np.float32)


def _area(width: int, height: int) -> np.ndarray:
    """Return zeros, whose pointing score is the share of the image that boxes cover."""
    return np.zeros((height, width), np.float32)


BASELINES = {
    name: Baseline(name, draw) for name, draw in (("gaussian", _gaussian), ("center", _center), ("area", _area))
}


# ------------------------------------------------------------------------------ scores


def pointing(values: np.ndarray, inside: np.ndarray) -> float:
    """Return whether the highest pixel is in a box, 0 or 1; with several equal maxima, the share that is.

    A constant map therefore scores the share of the image that boxes cover.

    Args:
        values: (H, W) float.
        inside: (H, W) bool, pixels in boxes.
    """
    return float(inside[values == values.max()].mean())


def auroc(values: np.ndarray, inside: np.ndarray) -> float:
    """Return the probability that a pixel in a box is higher than one outside; ties count half.

    The arguments are those of `pointing`. The result is NaN if all pixels are inside or all are outside.
    """
    within, without = np.sort(values[inside]), np.sort(values[~inside])
    if not len(within) or not len(without):
        return float("nan")
    # the area is Mann and Whitney's U: for each pixel of the smaller side, how many of the other side are below it
    few, many = sorted((within, without), key=len)
    below = np.searchsorted(many, few, "left").sum(dtype=np.float64)
    not_above = np.searchsorted(many, few, "right").sum(dtype=np.float64)
    share = float((below + not_above) / (2 * len(few) * len(many)))
    return share if few is within else 1 - share


def score(
    subject: BoxedEvaluation, pairs: Sequence[Pair], maps: EncoderMaps | Baseline, title: str
) -> dict[str, np.ndarray]:
    """Compute the map of each image once, then the map of each query in its target.

    Returns:
        Pointing and AUROC in two columns, NaN where a score does not exist: "within" (N, 2), each image without a
        query; "across" (P, 2), each pair; "control" (P, 2), the same for a query of another class.
    """
    images = subject.boxed.images
    within, stored = np.full((len(images), 2), np.nan), {}
    title = f"{title} on {subject.boxed.name}"
    with bar(subject.console, f"{title}, images", unit="images") as advance:
        for number, image in enumerate(images):
            try:
                values, stored[number] = maps.map_of(image)
                within[number] = _both(values, image.inside())
            except ImageError as error:
                subject.broken[str(image.path)] = str(error)
            advance(number + 1, len(images))
    found: dict[Any, tuple[float, float]] = {}  # a baseline's map is the same for all queries
    across, control = np.full((2, len(pairs), 2), np.nan)
    with bar(subject.console, f"{title}, pairs", unit="pairs") as advance:
        for number, pair in enumerate(pairs):
            for scores, box in ((across, pair.query), (control, pair.control)):
                if box is None or box[0] not in stored or pair.target not in stored:
                    continue
                key = (pair.target, pair.kind, box if maps.uses_query else None)
                if key not in found:
                    values = maps.cross_map(stored[box[0]], images[box[0]].boxes[box[1]], stored[pair.target])
                    found[key] = _both(values, images[pair.target].inside(pair.kind))
                scores[number] = found[key]
            advance(number + 1, len(pairs))
    return {"within": within, "across": across, "control": control}


def _both(values: np.ndarray, inside: np.ndarray) -> tuple[float, float]:
    return pointing(values, inside), auroc(values, inside)


# ------------------------------------------------------------------------------ intervals


def _estimate(
    part: str, scores: np.ndarray, pairs: Sequence[Pair], draws: int, seed: int
) -> tuple[float, float, float]:
    """Return `bootstrap` of one column of `score`."""
    if part == "within":
        return bootstrap(scores, np.arange(len(scores))[:, None], np.zeros(len(scores)), draws, seed)
    # a pair without a control has no score
    queries = [(pair.control or pair.query) if part == "control" else pair.query for pair in pairs]
    images = np.array([(query[0], pair.target) for query, pair in zip(queries, pairs, strict=True)])
    return bootstrap(scores, images, np.array([pair.kind for pair in pairs]), draws, seed)


def bootstrap(
    scores: np.ndarray, images: np.ndarray, classes: np.ndarray, draws: int, seed: int
) -> tuple[float, float, float]:
    """Return the mean over classes of the mean scores, and the 2.5th and 97.5th percentiles of its resamples.

    Each resample has as many images as the set. A score counts as often as its images were sampled: the score of a
    pair as the product of both counts. A class without any score in a resample is left out of it.

    Args:
        scores: (N,) float; NaN does not count, and at least one is not NaN.
        images: (N, 1) or (N, 2) int, the images that a score belongs to.
        classes: (N,).
    """
    known = ~np.isnan(scores)
    scores = scores[known]
    distinct, places = np.unique(images[known], return_inverse=True)
    places = places.reshape(len(scores), -1)
    _, kinds = np.unique(classes[known], return_inverse=True)
    members = np.eye(kinds.max() + 1)[kinds]  # (N, C)
    rng = np.random.default_rng(seed)
    found = []
    for start in range(0, draws, AT_ONCE):
        rows = min(AT_ONCE, draws - start)
        counts = rng.multinomial(len(distinct), np.full(len(distinct), 1 / len(distinct)), size=rows)
        found.append(_means(counts[:, places].prod(axis=2), scores, members))
    low, high = np.nanpercentile(np.concatenate(found), [2.5, 97.5])
    return float(_means(np.ones((1, len(scores))), scores, members)[0]), float(low), float(high)


def _means(weights: np.ndarray, scores: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Return the mean over classes for each row of (R, N) weights: (R,), NaN for a row of zeros."""
    total, sums = weights @ members, (weights * scores) @ members  # (R, C)
    means = np.divide(sums, total, out=np.zeros_like(sums), where=total > 0)
    count = (total > 0).sum(axis=1)
    return np.divide(means.sum(axis=1), count, out=np.full(len(count), np.nan), where=count > 0)
