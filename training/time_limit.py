"""A time limit: the epochs of a run follow its measured speed, so the learning rate falls to 0 in time.

This holds for `auto`, and for every recipe with epochs=fit. `Auto.choose` estimates the speed before the first step.
Here it is measured during the run, with views, evaluations and checkpoints, on a CPU or a GPU. Epochs are lowered to
what fits, and raised again, with `auto` up to those that it chose.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

from rich.console import Console

from .optimization import Schedule
from .recipes import Recipe
from .recipes.auto import Auto
from .recipes.recipe import FIT
from .run import Callback, Run, StepResult
from .setup import SHORTENED

MARKED = 0.01  # share of the time between two measurements
SLACK = 0.03  # share of the remaining time that is not planned
CHANGE = 0.02  # share of the remaining steps; smaller changes are not made
RESERVED = 0.15  # largest share of the time that is kept free for an evaluation before the end
PRINTED = 0.1  # smaller changes of the epochs are not printed


def epochs_follow_time(given: Recipe) -> bool:
    """Return whether a run adapts its epochs to its time limit: with epochs=fit, and those of `auto`.

    Args:
        given: the recipe before `auto` has chosen.
    """
    return given.epochs == FIT or (isinstance(given, Auto) and "epochs" not in given.fixed)


class TimedEpochs(Callback):
    """Adapts the epochs of a run to its time limit.

    Args:
        until: end of the time limit, on the clock.
        given: the recipe before `auto` has chosen.
        schedule: learning rates of the run.
        changed: called after each change of the epochs.
        clock: seconds.
    """

    def __init__(
        self,
        until: float,
        given: Recipe,
        schedule: Schedule,
        changed: Callable[[], None],
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._until, self._given, self._clock = until, given, clock
        self._schedule, self._changed, self._console = schedule, changed, console
        self._chosen: Recipe | None = None  # by `auto`
        self._most: int | None = None  # steps
        self._marks: list[tuple[int, float]] = []  # steps and the times after them, from the first step on
        self._stepped_at = 0.0
        self._pause = 0.0  # longest time between two steps, in seconds: an evaluation with a checkpoint
        self._printed = 0.0
        self._began, self._size = 0.0, 0  # start of the first step, and side of the views of the last one

    def on_start(self, run: Run) -> None:
        self._chosen, self._printed = run.recipe, run.recipe.epochs
        self._most = None if self._given.epochs == FIT else run.steps

    def on_step(self, run: Run, result: StepResult) -> None:
        now = self._clock()
        marks, size = self._marks, run.recipe.size_at((run.step - 1) / run.steps)
        if size != self._size:  # views of another size have another speed
            self._began = self._began or now
            self._size = size
            marks.clear()
        if marks:
            self._pause = max(self._pause, now - self._stepped_at)
        self._stepped_at = now
        if run.finished:
            return
        if now >= self._until:  # it was slower than planned: it ends here, with scores and a verdict
            run.plan(dataclasses.replace(run.recipe, epochs=run.epoch), run.step)
            self._changed()
            return
        if marks and now - marks[-1][1] < MARKED * (self._until - self._began):
            return
        marks.append((run.step, now))
        if len(marks) < 3:
            return
        since = [marks[quarters * (len(marks) - 1) // 4] for quarters in (2, 3)]
        speed = min((run.step - step) / (now - then) for step, then in since)  # steps per second
        reserve = min(self._pause, RESERVED * (self._until - self._began))
        remaining = (1 - SLACK) * (self._until - reserve - now)
        self._plan(run, _steps_in_time(run, speed * remaining))

    def _plan(self, run: Run, steps: int) -> None:
        """Give the run this number of steps, but at least one more than are done, and at most those chosen."""
        assert self._chosen is not None
        chosen, per_epoch, before = self._chosen, run.batches.steps_per_epoch, run.recipe
        steps = min(max(steps, run.step + 1), self._most or steps)
        if abs(steps - run.steps) <= CHANGE * (run.steps - run.step):
            return
        epochs = chosen.epochs if steps == self._most else steps / per_epoch
        warmup = min(chosen.warmup_epochs, epochs / SHORTENED)
        if "warmup_epochs" in chosen.fixed and self._given.warmup_epochs < epochs:
            warmup = self._given.warmup_epochs
        recipe = dataclasses.replace(before, epochs=epochs, warmup_epochs=warmup)
        run.plan(recipe, recipe.steps(per_epoch))
        self._schedule.plan(run.recipe, run.steps)
        self._changed()
        if abs(epochs - self._printed) > PRINTED * self._printed:
            self._printed = epochs
            self._console.print(f"the time limit allows epochs={epochs:.3g}")


def _steps_in_time(run: Run, more: float) -> int:
    """Return how many steps the run has if `more` steps of the present size fit into its time.

    With `early_size` the later steps are slower, about in proportion to the pixels of their views.
    """
    share, recipe = run.recipe.early_share, run.recipe
    if share == 0 or run.step >= share * run.steps:
        most = run.step / share if share else math.inf  # more of them would begin with the early size again
        return int(min(run.step + more, most))
    slower = (recipe.image_size / recipe.early_size) ** 2
    return int((run.step + more) / (share + (1 - share) * slower))
