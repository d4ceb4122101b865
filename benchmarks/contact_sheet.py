"""Contact sheet of two encoders: the nearest training images of the same queries, side by side in one PNG.

    python benchmarks/contact_sheet.py nnclr_resnet18_starter hog+color --data clothing160 --data grocery128 \\
        --queries 12 --seed 0 --out sheet.png

A row is a query, sampled from the test images of all folders, with its neighbors by the first source and then by the
second. A neighbor of the class of the query has a solid green frame, another one a dashed red frame with a cross. The
title has the share of neighbors of the same class, over these queries alone: `nnclr eval knn` has the accuracy.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from nnclr_hub.encoder.features import FeatureSource, extract_features, unit_rows
from nnclr_hub.encoder.hand_crafted import FLOORS
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import NNCLRHubError
from training.data.datasets import evaluation_set

TILE, TEXT, GAP = 88, 14, 24  # pixels: side of an image, height of a caption, space between the columns
FRAME, DASH = 3, 6
SAME, OTHER = (0, 130, 60), (200, 0, 30)

Labeled = list[tuple[Path, str]]  # an image and its class, as FOLDER/CLASS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs=2, help="any source of an encoder, or a floor such as hog+color")
    parser.add_argument("--data", type=Path, action="append", required=True, help="folder with train/ and test/")
    parser.add_argument("--queries", type=int, default=12)
    parser.add_argument("-k", type=int, default=10, help="neighbors of a query by each source")
    parser.add_argument("--most", type=int, default=0, help="training images that are searched, sampled; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("sheet.png"))
    options = parser.parse_args()
    if min(options.queries, options.k) < 1 or min(options.most, options.seed) < 0:
        parser.error("--queries and -k must be at least 1, --most and --seed at least 0.")
    if options.out.suffix.lower() != ".png" or not options.out.parent.is_dir():
        parser.error("--out must be a .png file in a folder that exists.")
    try:
        print(write_sheet(options))
    except (NNCLRHubError, OSError) as error:
        parser.error(str(error))


def write_sheet(options: argparse.Namespace) -> str:
    """Search and draw; return what was written."""
    random = np.random.default_rng(options.seed)
    train, test = images_of(options.data)
    queries = sample(test, options.queries, random)
    searched = sample(train, options.most or len(train), random)
    found = [neighbors(open_source(one), queries, searched, options.k) for one in options.sources]
    draw_sheet(options.sources, queries, searched, found).save(options.out)
    return f"Wrote {options.out}: {len(queries)} queries among {len(searched)} images"


def images_of(folders: list[Path]) -> tuple[Labeled, Labeled]:
    """Return the labeled images of train/ and of test/."""
    parts: tuple[Labeled, Labeled] = ([], [])
    for folder in folders:
        one = evaluation_set(folder, "test")
        for part, files in zip(parts, (one.train, one.test), strict=True):
            named = zip(files.paths, files.labels, strict=True)
            part += [(path, f"{one.name}/{files.classes[label]}") for path, label in named if label >= 0]
    return parts


def sample(images: Labeled, count: int, random: np.random.Generator) -> Labeled:
    return [images[i] for i in sorted(random.choice(len(images), min(count, len(images)), replace=False))]


def open_source(name: str) -> FeatureSource:
    return FLOORS[name] if name in FLOORS else load_encoder(name)


def neighbors(source: FeatureSource, queries: Labeled, searched: Labeled, k: int) -> np.ndarray:
    """Return (Q, k) int: the searched images with the highest cosine, best first."""
    vectors = [unit_rows(extract_features(source, [path for path, _ in part]).raw) for part in (queries, searched)]
    cosine = np.nan_to_num(vectors[0] @ vectors[1].T, nan=-1)  # of an image that cannot be read
    return np.argsort(-cosine, axis=1, kind="stable")[:, :k]


def draw_sheet(sources: list[str], queries: Labeled, searched: Labeled, found: list[np.ndarray]) -> Image.Image:
    k = found[0].shape[1]
    left = [TILE + GAP, TILE + GAP + k * TILE + GAP]  # of the columns of each source
    sheet = Image.new("RGB", (left[1] + k * TILE, 2 * TEXT + len(queries) * (TILE + TEXT)), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((2, 4), "query", fill="black")
    for source, rows, x in zip(sources, found, left, strict=True):
        right = np.mean([[searched[i][1] == query[1] for i in row] for query, row in zip(queries, rows, strict=True)])
        draw.text((x, 4), f"{source}: {right:.0%} of the neighbors have the class of the query", fill="black")
        for number, (query, row) in enumerate(zip(queries, rows, strict=True)):
            y = 2 * TEXT + number * (TILE + TEXT)
            paste(sheet, (0, y), query, None)
            for place, i in enumerate(row):
                paste(sheet, (x + place * TILE, y), searched[i], searched[i][1] == query[1])
    return sheet


def paste(sheet: Image.Image, at: tuple[int, int], labeled: tuple[Path, str], same: bool | None) -> None:
    """Draw an image with its class, and the frame of a neighbor; `same` is None for a query."""
    (path, name), (x, y), side = labeled, at, TILE - 4
    with Image.open(path) as image:
        sheet.paste(ImageOps.pad(image.convert("RGB"), (side - 2 * FRAME,) * 2, color="white"), (x + FRAME, y + FRAME))
    draw = ImageDraw.Draw(sheet)
    draw.text((x, y + side), name.rpartition("/")[2].encode("ascii", "replace").decode()[:14], fill="black")
    if same:
        draw.rectangle((x, y, x + side - 1, y + side - 1), outline=SAME, width=FRAME)
    elif same is False:
        end = side - FRAME
        for step in range(0, side, 2 * DASH):
            last = min(step + DASH, side) - 1
            for dx, dy in ((step, 0), (step, end)):
                draw.rectangle((x + dx, y + dy, x + last, y + dy + FRAME - 1), fill=OTHER)
                draw.rectangle((x + dy, y + dx, x + dy + FRAME - 1, y + last), fill=OTHER)
        for ends in ((4, 4, 16, 16), (4, 16, 16, 4)):
            draw.line([x + ends[0], y + ends[1], x + ends[2], y + ends[3]], fill=OTHER, width=4)


if __name__ == "__main__":
    main()
