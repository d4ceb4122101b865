"""A planted scanner effect: NNCLR with neighbors of another scanner (--not-same scanner) against plain NNCLR.

    python benchmarks/scanner.py clothing160 --epochs 40 --seeds 3 --out scanner

Each image of the folder, which has train/ and test/ with a folder per class, gets one of two styles of color and blur
at random. The program prints how well a linear probe finds the style of test images (chance is half), and 20-NN of the
classes. The aim: a probe of at most .55, and 20-NN at least 5 points above plain NNCLR.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from statistics import mean, stdev

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from PIL import Image, ImageFilter
from sklearn.linear_model import LogisticRegression

from nnclr_hub import load_encoder
from nnclr_hub.images.decode import decode_image
from nnclr_hub.images.listing import list_images
from nnclr_hub.probe.knn import knn_classify
from training.pretrain import pretrain

ARMS = {"plain": [], "guided": ["not_same=scanner"]}
# factors of red, green and blue, and the radius of the blur
STYLES = {"warm": ((1.15, 1.0, 0.75), 0.0), "cold": ((0.75, 0.95, 1.2), 1.2)}


def plant(source: Path, out: Path) -> Path:
    """Write the images of train/ and test/ in one of two styles each, with labels.csv; return the folder."""
    if (out / "labels.csv").exists():
        return out
    draws, rows = np.random.default_rng(0), [("path", "label", "scanner")]
    for split in ("train", "test"):
        for path in list_images(source / split):
            scanner = list(STYLES)[draws.integers(2)]
            factors, radius = STYLES[scanner]
            image = decode_image(path).filter(ImageFilter.GaussianBlur(radius))
            pixels = (np.asarray(image, np.float32) * factors).clip(0, 255).astype(np.uint8)
            target = out / path.relative_to(source).with_suffix(".png")
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(target)
            rows.append((target.relative_to(out).as_posix(), path.parent.name, scanner))
    with (out / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return out


def scores(encoder: Path, data: Path) -> tuple[float, float]:
    """Return the accuracy of a probe for the scanner, and of 20-NN for the classes, on test/."""
    with (data / "labels.csv").open(newline="") as file:
        rows = [(row["path"], row["label"], row["scanner"]) for row in csv.DictReader(file)]
    paths, labels, scanners = (np.array(column) for column in zip(*rows, strict=True))
    vectors = load_encoder(encoder, backend="torch").embed([data / path for path in paths])
    train = np.char.startswith(paths, "train/")
    classes = np.unique(labels, return_inverse=True)[1]
    probe = LogisticRegression(max_iter=2000).fit(vectors[train], scanners[train])
    right = knn_classify(vectors[train], classes[train], vectors[~train], k=20) == classes[~train]
    return float(probe.score(vectors[~train], scanners[~train])), float(right.mean())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--epochs", default="40")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("scanner"))
    given = parser.parse_args(arguments)
    data = plant(given.source, given.out / "planted")
    print("| neighbors | probe for the scanner | 20-NN of the classes |\n|---|---|---|")
    for arm, settings in ARMS.items():
        found = []
        for seed in range(given.seeds):
            run = given.out / f"{arm}-{seed}"
            chosen = ["method=nnclr", f"epochs={given.epochs}", f"seed={seed}", *settings, *given.set]
            pretrain("small_cpu", data, run, settings=chosen, init="none", resume=True)
            found.append(scores(run / "encoder", data))
        cells = [f"{mean(one):.3f} ± {stdev(one) if len(one) > 1 else 0:.3f}" for one in zip(*found, strict=True)]
        print(f"| {arm} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
