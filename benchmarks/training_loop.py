"""Training steps on generated images, and torchvision's way of feeding them, for several benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision.transforms import v2

from nnclr_hub.method import Gather, Learner
from training import step as steps_module
from training.assemble import build_learner, place_learner
from training.data.augment import blur_taps, make_views
from training.data.batches import Batches
from training.data.image_pack import ImagePack, PackedPixels
from training.data.order import Order
from training.data.views import IMAGENET_MEAN, IMAGENET_STD
from training.distributed import Ranks
from training.optimization import Schedule, make_optimizer
from training.recipes import Recipe
from training.run import Run
from training.step import Stepper

STEPS = 1000  # of the run that the steps are taken from
ENDLESS = 1_000_000  # batches
MODEL, LOOP, TORCHVISION = "model only", "whole loop", "torchvision workers"


def noise_pack(images: int, side: int) -> ImagePack:
    """Return a pack of colored noise; the speed does not depend on the content."""
    return ImagePack.of_squares(np.random.default_rng(0).integers(0, 256, (images, side, side, 3), dtype=np.uint8))


def batches_of(pack: ImagePack, recipe: Recipe, where: torch.device) -> Batches:
    order = Order(np.array([len(pack)]), recipe.batch_size, 0)
    return Batches(
        PackedPixels(pack, where, recipe.residency), np.full(len(pack), -1), order,
        views=lambda step: recipe.views_at(step / STEPS), batch_size=recipe.batch_size, seed=0, where=where,
    )  # fmt: skip


def make_stepper(recipe: Recipe, batches: Batches, where: torch.device) -> tuple[Learner, Stepper]:
    torch.manual_seed(0)
    ranks = Ranks(0, 1, where, Gather())
    learner = place_learner(build_learner(recipe), recipe, ranks)
    learner.train()
    optimizer = make_optimizer(learner, recipe)
    return learner, Stepper(
        Run(Path(), recipe, learner, optimizer, batches, ranks, STEPS), Schedule(optimizer, recipe, STEPS, 100)
    )


class Loops:
    """One learner, with steps on views made once, on the project's views, and on torchvision's views.

    Args:
        recipe: with a resolved precision.
        pack: the images.
        where: the device.
        workers: number of torchvision's worker processes.
    """

    def __init__(self, recipe: Recipe, pack: ImagePack, where: torch.device, workers: int) -> None:
        recipe = recipe.with_settings(["graph=false"])  # a recorded step makes its own views
        self.recipe, self.where, self.workers = recipe, where, workers
        self.batches = batches_of(pack, recipe, where)
        self.learner, self.stepper = make_stepper(recipe, self.batches, where)
        first = self.batches.at(0)
        self._once = make_views(first.pixels, first.views, first.numbers)
        self._fed = torchvision_views(pack, recipe, workers, where)  # its workers start with the first batch
        self._step = 0

    def run(self, kind: str, steps: int, before: int = 1) -> float:
        """Return the seconds of some steps, after `before` steps that are not counted."""
        for _ in range(before):
            self.step(kind)
        wait(self.where)
        began = time.perf_counter()
        for _ in range(steps):
            self.step(kind)
        wait(self.where)
        return time.perf_counter() - began

    def run_fed(self, steps: int) -> float:
        """Return the seconds per step with views from torchvision's workers, over about that many steps.

        Each worker makes whole batches, so batches come in rounds of as many as there are workers. Only whole rounds
        are counted, without the first, which would only measure batches that were ready before.
        """
        workers = max(1, self.workers)
        counted = max(2, -(-steps // workers)) * workers
        return self.run(TORCHVISION, counted, before=workers) / counted

    def step(self, kind: str) -> None:
        views = {MODEL: lambda: self._once, LOOP: lambda: None, TORCHVISION: lambda: next(self._fed)}[kind]()
        with _views(views):
            self.stepper.run(self._step % STEPS)
        self._step += 1

    def close(self) -> None:
        """Stop torchvision's workers."""
        self._fed.close()
        self.batches.close()


class _views:
    """Replace the views of a step while the context is active; None keeps the views that the step makes."""

    def __init__(self, views: Sequence[Tensor] | None) -> None:
        self._made: Callable[..., Sequence[Tensor]] = make_views if views is None else lambda *_: views

    def __enter__(self) -> None:
        steps_module.make_views = self._made  # type: ignore[assignment]

    def __exit__(self, *error: object) -> None:
        steps_module.make_views = make_views


class Images(Dataset[list[Tensor]]):
    """The pack's images, each through torchvision's transforms twice."""

    def __init__(self, pack: ImagePack, recipe: Recipe) -> None:
        self.pack = pack
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
        return len(self.pack)

    def __getitem__(self, index: int) -> list[Tensor]:
        image = torch.from_numpy(self.pack.image(index)).permute(2, 0, 1)
        return [self.first(image), self.second(image)]


def torchvision_views(
    pack: ImagePack, recipe: Recipe, workers: int, where: torch.device
) -> Generator[list[Tensor], None, None]:
    """Yield batches of two views on the device without end, from pinned memory on a GPU."""
    images = Images(pack, recipe)
    # one long epoch: at the end of a short one most workers of a loader stand still
    drawn = RandomSampler(images, replacement=True, num_samples=recipe.batch_size * ENDLESS)
    loader = DataLoader(
        images, recipe.batch_size, sampler=drawn, num_workers=workers, pin_memory=where.type == "cuda"
    )  # fmt: skip
    for views in loader:
        yield [view.to(where, non_blocking=True, memory_format=torch.channels_last) for view in views]


def wait(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize(where)
