"""A run in progress, as its parts and the callbacks see it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import torch

from nnclr_hub.method import Learner

from .data.batches import Batches
from .distributed import Ranks
from .recipes import Recipe
from .verdict import Verdict


@dataclass
class Run:
    """A run in progress.

    out: the run folder.
    recipe: complete, with sizes that fit the data.
    learner: on its device.
    batches: of the images of the run.
    ranks: this process and the run's other processes.
    steps: of the whole run. With a time limit, these and the epochs of the recipe may change, see `TimedEpochs`.
    step: completed ones.
    scaler: of the loss, with precision fp16.
    scores: of the last evaluation, {"knn20/NAME": accuracy in [0, 1], "linear/NAME": ...}.
    tested: number of images that are scored, {"NAME": number}.
    verdict: of the finished run.
    """

    out: Path
    recipe: Recipe
    learner: Learner
    optimizer: torch.optim.Optimizer
    batches: Batches
    ranks: Ranks
    steps: int
    step: int = 0
    scaler: torch.amp.GradScaler = field(init=False)
    scores: dict[str, float] = field(default_factory=dict)
    tested: dict[str, int] = field(default_factory=dict)
    verdict: Verdict | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    requeue: bool = False  # Slurm is to start the job again

    def __post_init__(self) -> None:
        # gradients in fp16 would underflow; without fp16 the scaler does nothing
        self.scaler = torch.amp.GradScaler(self.ranks.where.type, enabled=self.recipe.precision == "fp16")

    @property
    def epoch(self) -> float:
        """Completed passes over the images."""
        return self.step / self.batches.steps_per_epoch

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.steps

    def plan(self, recipe: Recipe, steps: int) -> None:
        """Change the epochs of the recipe and the number of steps during the run."""
        self.recipe, self.steps, self.batches.steps = recipe, steps, steps

    def stop_for_requeue(self) -> None:
        """Let Slurm start the job again once the run has stopped."""
        self.requeue = True

    def stop(self) -> None:
        """Stop at the next step with a checkpoint, as Ctrl-C does; `--resume` continues."""
        self.stopping.set()
