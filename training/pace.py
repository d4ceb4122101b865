"""`auto` with a time limit: the run gets the epochs that fit into it, so the learning rate falls to 0 in time.

`Auto.choose` estimates the speed before the first step. Here it is measured during the run, with views, evaluations and
checkpoints, on a CPU or a GPU. A run that is faster than estimated keeps its epochs.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from .callbacks import Callback
from .checkpoint import SHORTENED
from .optimization import Schedule
from .recipes import Recipe
from .recipes.auto import Auto
from .run import Run
from .step import StepResult

MEASURED = 0.05  # share of the time after the first log line before the epochs may change
SLACK = 0.03  # share of the remaining time that is not planned
CHANGE = 0.01  # share of the steps; smaller changes are not made


def fits_to_time(asked: Recipe, chosen: Recipe, processes: int) -> bool:
    """Return whether the epochs of a run follow its time limit.

    Those of other recipes and of `--set epochs=N` are kept. Small views at the start (`early_share`) would give a wrong
    speed, and several processes would have to agree on it.
    """
    free = isinstance(asked, Auto) and "epochs" not in asked.fixed
    return free and not chosen.early_share and processes == 1


class FitToTime(Callback):
    """Lowers the epochs of a run to what fits into its time limit, by the speed since the first log line.

    Args:
        until: end of the time limit, on the clock of `time.monotonic`.
        schedule: learning rates of the run.
        changed: called after each change of the epochs.
    """

    def __init__(self, until: float, schedule: Schedule, changed: Callable[[], None], console: Console) -> None:
        self._until, self._schedule, self._changed, self._console = until, schedule, changed, console
        self._first: tuple[int, float] | None = None  # step and time of the first log line
        self._stepped_at = time.monotonic()
        self._pause = 0.0  # longest time between two steps, in seconds: an evaluation with a checkpoint

    def on_step(self, run: Run, result: StepResult) -> None:
        now = time.monotonic()
        if run.step > 1:
            self._pause = max(self._pause, now - self._stepped_at)
        self._stepped_at = now

    def on_log(self, run: Run, line: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = (run.step, now)
            return
        step, began = self._first
        if now >= self._until or run.step == step or now - began < MEASURED * (self._until - began):
            return
        speed = (run.step - step) / (now - began)  # steps per second
        remaining = (1 - SLACK) * (self._until - self._pause - now)
        fitting = max(run.step + 1, run.step + int(speed * remaining))
        if fitting < (1 - CHANGE) * run.steps:
            self._shorten(run, fitting, speed)

    def _shorten(self, run: Run, steps: int, speed: float) -> None:
        per_epoch, before = run.batches.steps_per_epoch, run.recipe
        epochs = steps / per_epoch
        warmup = min(before.warmup_epochs, epochs / SHORTENED)
        run.recipe = dataclasses.replace(before, epochs=epochs, warmup_epochs=warmup)
        run.steps = run.recipe.steps(per_epoch)
        self._schedule.plan(run.recipe, run.steps)
        self._changed()
        self._console.print(
            f"auto: {epochs:.3g} instead of {before.epochs:.3g} epochs, which is what fits into the time limit at "
            f"{speed * before.batch_size:.0f} images/s",
            highlight=False,
        )
