"""Speed of training with augmentation, compared with the model alone, in images/s.

    python benchmarks/data_path.py --data PHOTOS                    # ResNet-18 at 32 pixels, batch 256, BYOL's views
    python benchmarks/data_path.py --data PHOTOS --set image_size=48 --set channels=32,64,128,256

Three loops over the same learner take turns in one process: steps on views made once (the baseline), steps on views
from the project's batched augmentation, and steps on views that torchvision's transforms make one image at a time in
DataLoader workers, from the same decoded images.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from training_loop import LOOP, MODEL, TORCHVISION, Loops

from training.assemble import choose_precision
from training.data.datasets import training_files
from training.data.image_pack import build_pack
from training.recipes import find_recipe

BASE = [
    "image_size=32",
    "pack_size=48",
    "eval_size=32",
    "channels=",
    "prediction=paper",
    "gate=1",
    "warm_start=0",
    "ramp=0",
]


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--set", dest="settings", action="append", default=[])
    arguments.add_argument("--steps", type=int, default=12, help="steps a turn")
    arguments.add_argument("--turns", type=int, default=5)
    arguments.add_argument("--workers", type=int, default=2)
    chosen = arguments.parse_args()
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    recipe = find_recipe("small_cpu").with_settings([*BASE, *chosen.settings])
    recipe = recipe.with_settings([f"precision={choose_precision('auto', where)}"])
    pack = build_pack(training_files([chosen.data]), recipe.pack_size)
    loops = Loops(recipe, pack, where, chosen.workers)
    rates: dict[str, list[float]] = {MODEL: [], LOOP: [], TORCHVISION: []}
    for _ in range(chosen.turns):
        for kind in rates:
            rates[kind].append(chosen.steps * recipe.batch_size / loops.run(kind, chosen.steps))
    model = statistics.median(rates[MODEL])
    print(
        f"{recipe.backbone} at {recipe.image_size} pixels, batch {recipe.batch_size}, {recipe.precision}, {where.type}"
    )
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"model only (views made once): {model:.0f} images/s")
    for kind, name in ((LOOP, "end to end"), (TORCHVISION, f"torchvision in {chosen.workers} workers")):
        ratios = [one / base for one, base in zip(rates[kind], rates[MODEL], strict=True)]
        print(
            f"{name}: {statistics.median(rates[kind]):.0f} images/s, "
            f"{statistics.median(ratios):.2f} of the model alone ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
