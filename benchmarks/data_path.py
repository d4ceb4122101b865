"""How much of the model's own speed is left when the pictures have to be made: end-to-end over model-only images/s.

    python benchmarks/data_path.py --data PHOTOS                    # ResNet-18 at 32 pixels, batch 256, BYOL's views
    python benchmarks/data_path.py --data PHOTOS --set image_size=48 --set channels=32,64,128,256

Three loops over the same learner, turn by turn in one process: steps on views made once (the baseline), steps on
views that our batched augmentation makes, and steps on views that torchvision's transforms make picture by picture
in DataLoader workers, from the same decoded pictures.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from nnclr_hub.method import Gather
from training import step as steps_module
from training.assemble import build_learner, choose_precision
from training.data.augment import IMAGENET_MEAN, IMAGENET_STD, blur_taps, make_views
from training.data.batches import Batch, Batches
from training.data.datasets import training_files
from training.data.image_pack import ImagePack, build_pack
from training.distributed import Ranks
from training.optimisation import Schedule, make_optimizer
from training.recipes import Recipe, find_recipe
from training.step import Stepper

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
    files = training_files([chosen.data])
    pack = build_pack(files.paths, recipe.pack_size)
    files = files.keep(pack.kept)
    batches = Batches(pack, files.labels, files.origin, batch_size=recipe.batch_size, seed=0, where=where)
    stepper = make_stepper(recipe, batches, where)
    once = make_views(*views_of(batches.at(0)), stepper.views(0), torch.Generator().manual_seed(0))
    loader = torchvision_views(pack, recipe, chosen.workers)

    def run(kind: str) -> float:
        """Images a second over some steps of one kind."""
        began = None
        for number in range(chosen.steps + 1):
            if number == 1:  # the first of a turn is not counted
                wait(where)
                began = time.perf_counter()
            views = once if kind == "model" else next(loader) if kind == "torchvision" else None
            steps_module.make_views = make_views if views is None else lambda *_, views=views: views  # type: ignore[assignment]
            stepper.take(batches.at(number), number)
        wait(where)
        assert began is not None
        return chosen.steps * recipe.batch_size / (time.perf_counter() - began)

    rates: dict[str, list[float]] = {"model": [], "ours": [], "torchvision": []}
    for _ in range(chosen.turns):
        for kind in rates:
            rates[kind].append(run(kind))
    model = statistics.median(rates["model"])
    print(
        f"{recipe.backbone} at {recipe.image_size} pixels, batch {recipe.batch_size}, {recipe.precision}, {where.type}"
    )
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"model only (views made once): {model:.0f} images/s")
    for kind, name in (("ours", "end to end"), ("torchvision", f"torchvision in {chosen.workers} workers")):
        ratios = [one / base for one, base in zip(rates[kind], rates["model"], strict=True)]
        print(
            f"{name}: {statistics.median(rates[kind]):.0f} images/s, "
            f"{statistics.median(ratios):.2f} of the model alone ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def make_stepper(recipe: Recipe, batches: Batches, where: torch.device) -> Stepper:
    torch.manual_seed(0)
    learner = build_learner(recipe).to(where).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = make_optimizer(learner, recipe)
    schedule = Schedule(optimizer, recipe, 1000, 100)
    return Stepper(learner, optimizer, schedule, recipe, Ranks(0, 1, where, Gather()), batches, 1000)


def views_of(batch: Batch) -> tuple[Tensor, Tensor]:
    return batch.images, batch.aspect


class Pictures(Dataset[list[Tensor]]):
    """The pack's pictures through torchvision's own transforms, one by one, twice."""

    def __init__(self, pack: ImagePack, recipe: Recipe) -> None:
        self.pixels = pack.pixels
        size = recipe.image_size
        blur = v2.GaussianBlur(blur_taps(size), (0.1, 2.0))
        head = [
            v2.RandomResizedCrop(size, (0.08, 1.0), interpolation=v2.InterpolationMode.BICUBIC, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
            v2.RandomGrayscale(0.2),
        ]
        tail = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
        self.first = v2.Compose([*head, blur, *tail])
        self.second = v2.Compose([*head, v2.RandomApply([blur], 0.1), v2.RandomSolarize(128, 0.2), *tail])

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> list[Tensor]:
        picture = torch.from_numpy(self.pixels[index]).permute(2, 0, 1)
        return [self.first(picture), self.second(picture)]


def torchvision_views(pack: ImagePack, recipe: Recipe, workers: int) -> Iterator[list[Tensor]]:
    pictures = Pictures(pack, recipe)
    loader = DataLoader(
        pictures, recipe.batch_size, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=True
    )
    while True:
        for views in loader:
            yield [view.contiguous(memory_format=torch.channels_last) for view in views]


def wait(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
