"""A planted scanner effect: NNCLR that forgets the scanner (--not-same scanner) against plain NNCLR.

    python examples/scanner.py clothing160 --epochs 10 --seeds 3 --out scanner

Each image of the folder, which has train/ and test/ with a folder per class, gets one of two styles of color and blur
at random. The program prints, for test images: how well a linear probe finds the style (chance is half), on unit
vectors and on standardized ones; 20-NN of the classes; and 20-NN from the images of one style to those of the other.
"""

import argparse
import csv
from pathlib import Path
from statistics import mean, stdev

import numpy as np
from PIL import Image, ImageFilter
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from nnclr_hub import knn_classify, load_encoder, pretrain
from nnclr_hub.images.decode import decode_image
from nnclr_hub.images.listing import list_images

ARMS = {"plain": [], "not_same": ["not_same=scanner"]}
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


def score(encoder: Path, data: Path) -> list[float]:
    """Return the four accuracies on test/, see above."""
    with (data / "labels.csv").open(newline="") as file:
        rows = [(row["path"], row["label"], row["scanner"]) for row in csv.DictReader(file)]
    paths, labels, scanners = (np.array(column) for column in zip(*rows, strict=True))
    vectors = load_encoder(encoder, backend="torch").embed([data / path for path in paths])
    train, classes = np.char.startswith(paths, "train/"), np.unique(labels, return_inverse=True)[1]

    def knn(known: np.ndarray, asked: np.ndarray) -> np.ndarray:
        return knn_classify(vectors[known], classes[known], vectors[asked], k=20) == classes[asked]

    found = []
    for scale in ([], [StandardScaler()]):
        probe = make_pipeline(*scale, LogisticRegression(max_iter=3000)).fit(vectors[train], scanners[train])
        found.append(probe.score(vectors[~train], scanners[~train]))
    across = [knn(train & (scanners == one), ~train & (scanners != one)) for one in STYLES]
    return [*map(float, found), float(knn(train, ~train).mean()), float(np.concatenate(across).mean())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--epochs", default="10")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("scanner"))
    given = parser.parse_args()
    data = plant(given.source, given.out / "planted")
    print("| run | probe | standardized probe | 20-NN | 20-NN across scanners |\n|---|---|---|---|---|")
    for arm, settings in ARMS.items():
        scores = []
        for seed in range(given.seeds):
            run = given.out / f"{arm}-{seed}"
            chosen = ["method=nnclr", f"epochs={given.epochs}", f"seed={seed}", *settings, *given.set]
            pretrain("small_cpu", data, run, settings=chosen, init="none", resume=True)
            scores.append(score(run / "encoder", data))
        columns = zip(*scores, strict=True)
        cells = [f"{mean(one):.3f} ± {stdev(one) if len(one) > 1 else 0:.3f}" for one in columns]
        print(f"| {arm} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
