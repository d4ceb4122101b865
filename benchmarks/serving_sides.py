"""Baselines of the server inside this library, each in a separate process.

python benchmarks/serving_sides.py bulk MODEL IMAGES       # reads a number of images, embeds them, prints images/s
python benchmarks/serving_sides.py ready MODEL             # the imports that every server needs, and the model
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nnclr_hub import load_encoder


def bulk(model: str, images: str) -> None:
    """Run `Encoder.embed` on the images for every line of standard input."""
    encoder = load_encoder(model, backend="auto")
    images: list[Any] = [path.read_bytes() for path in sorted(Path(images).iterdir())]
    encoder.embed(images[:2])
    print("ready", flush=True)
    for line in sys.stdin:
        chosen = (images * (int(line) // len(images) + 1))[: int(line)]
        begun = time.perf_counter()
        encoder.embed(chosen)
        print(len(chosen) / (time.perf_counter() - begun), flush=True)


def ready(model: str) -> None:
    """Import, load and exit."""
    for name in ("torch", "timm", "faiss", "fastapi"):
        import_module(name)
    load_encoder(model, backend="auto")


if __name__ == "__main__":
    {"bulk": bulk, "ready": ready}[sys.argv[1]](*sys.argv[2:])
