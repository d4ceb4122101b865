"""Score attention maps with boxes: within an image, and from a box of one image to its class in another.

    python examples/attention_boxes.py runs/mine/encoder gaussian center area --data coco128 --short-side 448
    python examples/attention_boxes.py 'runs/mine/encoder*gaussian' gaussian --data coco128 --short-side 256 --pairs 0

`--data` is a folder with COCO's annotations.json, or with a boxes.csv: columns file, x0, y0, x1, y1 in whole pixels,
both ends inclusive; the class of an image is its folder. The program prints a table with 95% intervals.

- within: the map without a query, scored in all boxes of the image. `SOURCE*gaussian`: with the center prior.
- across: the query is a box of at least 32 x 32 pixels' area, the target another image with its class. Scores are
  averaged over classes.
- control: the same targets, with a box of another class as the query.

Pointing is whether the map's maximum is in a box (equal maxima count by their share); AUROC compares pixels in boxes
with those outside. An image with a short side below 224 pixels is enlarged to 224 first, with its boxes.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.metrics import roc_auc_score

from nnclr_hub import Box, load_encoder
from nnclr_hub.encoder.attention import AttentionSettings
from nnclr_hub.images.decode import decode_image

LEAST_SIDE = 224  # pixels; the attention of an encoder enlarges smaller images, too
LEAST_QUERY = 32.0**2  # pixels of a box that is a query
PARTS = ("within", "across", "control")


# ---- images with boxes


@dataclass(frozen=True)
class BoxedImage:
    """An image with boxes (n, 4): x0, y0, x1, y1 in its pixels, from edge to edge; kinds (n,): names of classes."""

    image: Image.Image
    boxes: np.ndarray
    kinds: np.ndarray

    def inside(self, kind: str | None = None) -> np.ndarray:
        """Return (H, W) bool: the pixels whose centers are in a box, of one class or of any class."""
        width, height = self.image.size
        x, y = np.arange(width) + 0.5, np.arange(height) + 0.5
        found = np.zeros((height, width), bool)
        for x0, y0, x1, y1 in self.boxes if kind is None else self.boxes[self.kinds == kind]:
            found |= np.outer((y0 <= y) & (y < y1), (x0 <= x) & (x < x1))
        return found


def read_boxes(folder: Path, short_side: int = 0) -> list[BoxedImage]:
    """Read the images of a folder that have a box; `short_side`: resize them to it, with their boxes."""
    listed: dict[str, list[tuple[list[float], str]]] = {}
    if (folder / "annotations.json").exists():
        coco = json.loads((folder / "annotations.json").read_text("utf-8"))
        files = {one["id"]: one["file_name"] for one in coco["images"]}
        names = {one["id"]: one["name"] for one in coco["categories"]}
        for one in coco["annotations"]:
            if not one.get("iscrowd", 0):
                x, y, width, height = one["bbox"]
                entry = ([x, y, x + width, y + height], names[one["category_id"]])
                listed.setdefault(files[one["image_id"]], []).append(entry)
    else:
        with (folder / "boxes.csv").open(newline="", encoding="utf-8-sig") as file:
            for row in csv.DictReader(file):
                x0, y0, x1, y1 = (float(row[name]) for name in ("x0", "y0", "x1", "y1"))
                entry = ([x0, y0, x1 + 1, y1 + 1], Path(row["file"]).parent.name)
                listed.setdefault(row["file"], []).append(entry)
        parts = {Path(name).parts[0] for name in listed}
        scored = next((part for part in ("test", "val") if part in parts), None)  # then only its files count
        listed = {name: boxes for name, boxes in listed.items() if scored in (None, Path(name).parts[0])}
    images = [_boxed(decode_image(folder / name), boxes, short_side) for name, boxes in listed.items()]
    return [one for one in images if len(one.boxes)]


def _boxed(image: Image.Image, listed: list[tuple[list[float], str]], short_side: int) -> BoxedImage:
    scale = (short_side or max(LEAST_SIDE, min(image.size))) / min(image.size)
    size = (round(scale * image.width), round(scale * image.height))
    boxes = np.array([box for box, _ in listed], float) * np.tile(np.divide(size, image.size), 2)
    boxes = np.clip(boxes, 0, np.tile(size, 2))
    full = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    resized = image if size == image.size else image.resize(size, Image.Resampling.BICUBIC)
    return BoxedImage(resized, boxes[full], np.array([kind for _, kind in listed])[full])


@dataclass(frozen=True)
class Pair:
    """A query (image, its box) whose class is searched in a target; control: a box of another class."""

    query: tuple[int, int]
    target: int
    kind: str
    control: tuple[int, int] | None


def choose_pairs(images: Sequence[BoxedImage], most: int, seed: int = 0) -> list[Pair]:
    """Sample at most `most` pairs of each class without repetition."""
    rng, pairs = np.random.default_rng(seed), []
    large = [
        (number, int(box))
        for number, one in enumerate(images)
        for box in np.flatnonzero((one.boxes[:, 2:] - one.boxes[:, :2]).prod(axis=1) >= LEAST_QUERY)
    ]
    for kind in sorted({str(kind) for one in images for kind in one.kinds}):
        queries = [one for one in large if images[one[0]].kinds[one[1]] == kind]
        others = [one for one in large if images[one[0]].kinds[one[1]] != kind]
        every = [
            (query, target)
            for query in queries
            for target, one in enumerate(images)
            if target != query[0] and kind in one.kinds
        ]
        for number in np.sort(rng.permutation(len(every))[:most]):
            query, target = every[number]
            controls = [one for one in others if one[0] != target]
            control = controls[int(rng.integers(len(controls)))] if controls else None
            pairs.append(Pair(query, target, kind, control))
    return pairs


# ---- maps: of an encoder, or of a baseline that ignores the image
Maps = Callable[[int, tuple[int, int] | None], np.ndarray]  # (target, query or None) -> (H, W)


def encoder_maps(source: str, images: Sequence[BoxedImage]) -> Maps:
    """Return the maps of an encoder; each image passes the network once."""
    name, times, _ = source.partition("*gaussian")
    extractor = load_encoder(name, backend="torch").attention_extractor
    settings = AttentionSettings(center_prior=bool(times))
    seen = [extractor.forward(extractor.prepare(one.image, settings)) for one in images]

    def map_of(target: int, query: tuple[int, int] | None) -> np.ndarray:
        if query is None:
            (found,) = extractor.maps(settings, seen[target])
            if times:
                return found.shown()
        else:
            box = Box(*map(float, images[query[0]].boxes[query[1]]))
            (found,) = extractor.maps(AttentionSettings(query=box), seen[query[0]], [seen[target]])
        return found.grid.upsampled(found.values)

    return map_of


# of the distance from the center, in widths and heights; only the order of the pixels counts
BASELINES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "gaussian": lambda x, y: -(x**2 + y**2),
    "center": lambda x, y: ((x == 0) & (y == 0)).astype(float),
    "area": lambda x, y: 0 * (x + y),  # its pointing is the share that boxes cover
}


def baseline_maps(name: str, images: Sequence[BoxedImage]) -> Maps:
    """Return maps that depend on nothing but the size of the target."""

    def map_of(target: int, query: tuple[int, int] | None) -> np.ndarray:
        width, height = images[target].image.size
        x, y = np.arange(width) - width // 2, np.arange(height) - height // 2
        return BASELINES[name](x[None] / width, y[:, None] / height)

    return map_of


# ---- scores


def scores_of(values: np.ndarray, inside: np.ndarray) -> tuple[float, float]:
    """Return pointing and AUROC of a map (H, W); AUROC is NaN if boxes cover everything or nothing."""
    partly = inside.any() and not inside.all()
    auroc = roc_auc_score(inside.ravel(), values.ravel()) if partly else float("nan")
    return float(inside[values == values.max()].mean()), float(auroc)


def bootstrap(
    scores: np.ndarray, images: np.ndarray, classes: np.ndarray, draws: int = 1000, seed: int = 0
) -> tuple[float, float, float]:
    """Return the mean over classes of the mean scores, and its 95% interval from resampled images.

    Args:
        scores: (N,); NaN does not count.
        images: (N, 1) or (N, 2), the images of a score; it counts as often as all of them were sampled.
        classes: (N,).
    """
    known = ~np.isnan(scores)
    distinct, places = np.unique(images[known], return_inverse=True)
    places = places.reshape(int(known.sum()), -1)
    member = np.unique(classes[known], return_inverse=True)[1]
    members = np.eye(member.max() + 1)[member]  # (N, C)
    rng, found = np.random.default_rng(seed), list[float]()
    for _ in range(draws + 1):
        counts = rng.multinomial(len(distinct), np.full(len(distinct), 1 / len(distinct)))
        weight = counts[places].prod(axis=1) if found else np.ones(len(places))  # the first one is the set itself
        total = weight @ members
        if total.any():
            sums = (weight * scores[known]) @ members
            found.append(float((sums[total > 0] / total[total > 0]).mean()))
    low, high = np.percentile(found[1:], [2.5, 97.5])
    return found[0], float(low), float(high)


def evaluate(maps: Maps, images: Sequence[BoxedImage], pairs: Sequence[Pair]) -> dict[str, np.ndarray]:
    """Return pointing and AUROC in two columns: "within" of each image, "across" and "control" of each pair."""
    found = {"within": np.array([scores_of(maps(n, None), one.inside()) for n, one in enumerate(images)])}
    for part in PARTS[1:]:
        found[part] = np.full((len(pairs), 2), np.nan)
        for number, pair in enumerate(pairs):
            query = pair.query if part == "across" else pair.control
            if query is not None:
                found[part][number] = scores_of(maps(pair.target, query), images[pair.target].inside(pair.kind))
    return found


def interval_of(part: str, scores: np.ndarray, pairs: Sequence[Pair]) -> tuple[float, float, float] | None:
    """Return `bootstrap` of one column of `evaluate`; None if it has no score."""
    if np.isnan(scores).all():
        return None
    if part == "within":
        return bootstrap(scores, np.arange(len(scores))[:, None], np.zeros(len(scores)))
    queries = [(pair.control or pair.query) if part == "control" else pair.query for pair in pairs]
    images = np.array([(query[0], pair.target) for query, pair in zip(queries, pairs, strict=True)])
    return bootstrap(scores, images, np.array([pair.kind for pair in pairs]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", help="encoders, or a baseline: gaussian, center, area")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--short-side", type=int, default=0, help="of the images, in pixels; 0: their own")
    parser.add_argument("--pairs", type=int, default=50, help="most pairs of a class")
    given = parser.parse_args()
    images = read_boxes(given.data, given.short_side)
    pairs = choose_pairs(images, given.pairs)
    names = [f"{part} {metric}" for part in PARTS for metric in ("pointing", "AUROC")]
    print(f"{len(images)} images, {len(pairs)} pairs\n\n| source | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for source in given.sources:
        maps = baseline_maps(source, images) if source in BASELINES else encoder_maps(source, images)
        found = evaluate(maps, images, pairs)
        cells = [interval_of(part, column, pairs) for part in PARTS for column in found[part].T]
        shown = ["" if one is None else f"{one[0]:.3f} [{one[1]:.3f}, {one[2]:.3f}]" for one in cells]
        print(f"| {source} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
