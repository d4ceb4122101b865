"""How fast a run will go here, before it begins: so that its epochs, and with them its schedule, fit a given time.

    pace = measure_pace(recipe, ["photos"])
    recipe.with_settings([f"epochs={pace.epochs_within(480, recipe)}"])

A few steps of the run itself, at each size of its views, with weights that are then thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from .assemble import build_learner, placed
from .distributed import Ranks, joined
from .optimization import Schedule, make_optimizer
from .prepare import prepare
from .recipes import Recipe
from .step import Stepper

WARM = 3  # steps before the clock runs: compilation, and cuDNN trying its algorithms
STEPS = 1000  # of the run that the steps are taken from: only the share that lies behind a step counts


@dataclass(frozen=True)
class Pace:
    """What was measured.

    steps_per_epoch: of this recipe on these images.
    early, late: seconds a step at the early size and at the full one; the same where there is no early size.
    start: seconds until all this was known: decoding and compiling, much of which the run itself is spared.
    """

    steps_per_epoch: int
    early: float
    late: float
    start: float

    def epochs_within(self, seconds: float, recipe: Recipe) -> int:
        """The most epochs whose steps take at most so long; at least one."""
        step = recipe.early_share * self.early + (1 - recipe.early_share) * self.late
        return max(1, int(seconds / (step * self.steps_per_epoch)))


def measure_pace(
    recipe: Recipe,
    data: Sequence[str | Path],
    *,
    steps: int = 12,
    device: str | None = None,
    console: Console | None = None,
) -> Pace:
    """Takes some steps of the recipe on the images, which are decoded and stay so for the run.

    Args:
        recipe: with its settings made.
        data: as for `pretrain`.
        steps: that are timed, of each size.
        device: default the GPU if there is one.
        console: where progress is shown; default the terminal's standard error.

    Raises:
        NoImages, NoRoom, OutOfMemory, InvalidRequest: as `pretrain` would.
    """
    began = time.perf_counter()
    with joined(device) as ranks:
        ready = prepare(recipe, data, None, ranks, console or Console(stderr=True))
        recipe, batches = ready.recipe, ready.batches
        torch.manual_seed(recipe.seed)
        learner = placed(build_learner(recipe), recipe, ranks)
        optimizer = make_optimizer(learner, recipe)
        schedule = Schedule(optimizer, recipe, STEPS, batches.steps_per_epoch)
        stepper = Stepper(learner, optimizer, schedule, recipe, ranks, batches, STEPS)

        def seconds_a_step(first: int) -> float:
            for number in range(WARM):
                stepper.take(batches.at(first + number), first + number)
            _wait(ranks)
            since = time.perf_counter()
            for number in range(first + WARM, first + WARM + steps):
                stepper.take(batches.at(number), number)
            _wait(ranks)
            return (time.perf_counter() - since) / steps

        late = seconds_a_step(STEPS - WARM - steps)
        early = seconds_a_step(0) if recipe.early_share else late
        batches.close()
    torch._dynamo.reset()  # the run's own network is another object, and torch counts the programs of both together
    return Pace(batches.steps_per_epoch, early, late, time.perf_counter() - began)


def _wait(ranks: Ranks) -> None:
    if ranks.where.type == "cuda":
        torch.cuda.synchronize(ranks.where)
