"""20-NN of encoders on labelled folders, beside untrained weights and plain pixels.

    python benchmarks/knn.py --data imagenette128 --data clothing160 RUN/encoder OTHER/encoder

Each folder needs train/ and val/ or test/ with class folders; --split says which is scored. The first
source is also run with fresh weights (seed 0), and 16 x 16 RGB pixels are the floor: both must be beaten
for an encoder to have learned anything.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.encoder import Encoder, load_encoder
from nnclr_hub.encoder.preprocess import decode_image
from nnclr_hub.probe.knn import knn_classify
from training.data.datasets import EvaluationSet, evaluation_set
from training.evals.knn import TEMPERATURE, K, knn
from training.evals.labelled import LabelledSet

PIXELS = 16


def untrained(source: str) -> Encoder:
    """The network of a model folder with fresh weights."""
    trained = load_encoder(source)
    assert trained.config is not None
    torch.manual_seed(0)
    backbone = create_backbone(trained.config.architecture, model_args=trained.config.model_args)
    return Encoder(backbone, trained.transform.preprocessing, name=f"untrained, as {source}")


def pixel_floor(data: EvaluationSet) -> float:
    """20-NN on small pictures, mean removed, by cosine."""

    def features(paths: tuple[Path, ...]) -> np.ndarray:
        small = [decode_image(path).resize((PIXELS, PIXELS), Image.Resampling.BOX) for path in paths]
        flat = np.stack([np.asarray(one, np.float32).ravel() for one in small])
        return flat - flat.mean(axis=1, keepdims=True)

    predicted = knn_classify(features(data.train.paths), data.train.labels, features(data.test.paths), k=K)
    return float((predicted == data.test.labels).mean())


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("sources", nargs="+")
    arguments.add_argument("--data", action="append", type=Path, required=True)
    arguments.add_argument("--split", default="test")
    chosen = arguments.parse_args()
    makers: dict[str, Callable[[], Encoder]] = {one: lambda one=one: load_encoder(one) for one in chosen.sources}
    makers["untrained"] = lambda: untrained(chosen.sources[0])
    sets = [evaluation_set(folder, chosen.split) for folder in chosen.data]
    table = Table(f"{K}-NN, T = {TEMPERATURE}", *(f"{one.name} {chosen.split}" for one in sets))
    for name, make in makers.items():
        encoder = make()
        crops = [LabelledSet(one, encoder.transform.preprocessing) for one in sets]
        scores = [score for one in crops for _, score in knn(one.embed(encoder))]
        table.add_row(name, *(f"{score:.3f}" for score in scores))
    table.add_row(f"{PIXELS} x {PIXELS} pixels", *(f"{pixel_floor(one):.3f}" for one in sets))
    console = Console()
    console.print(table)
    print("command: python " + " ".join(sys.argv))


if __name__ == "__main__":
    main()
