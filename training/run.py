"""A run in progress, what calls it back, and the checks of its folder.

    from nnclr_hub import Callback, pretrain

    class GoodEnough(Callback):
        def on_evaluation(self, run, scores):
            if scores["knn20/photos"] > 0.9:
                run.stop()

    pretrain("small", "photos", "run", callbacks=[GoodEnough()])

CALLBACKS has those that `--set callbacks=tensorboard` selects. A plug-in adds others, as examples/trackers.py does for
Weights & Biases and MLflow.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from nnclr_hub.cache import is_in_cache
from nnclr_hub.errors import ImageError, NoRoom, RunExists
from nnclr_hub.method import Learner

from .data.batches import Batches
from .distributed import Ranks
from .monitor import Metrics
from .recipes import Recipe
from .verdict import Verdict

CHECKPOINT = "checkpoint.pt"
OURS = {CHECKPOINT, "run.json", "log.jsonl"}
REFUSALS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.EIO, errno.ENOENT),
}


@dataclass
class Run:
    """A run in progress.

    out: the run folder.
    recipe: complete, with sizes that fit the data.
    learner: on its device.
    batches: batches of the images of the run.
    steps: number of steps of the whole run. With a time limit, it and the epochs of the recipe may change, see
        `TimedEpochs`.
    step: number of completed steps.
    scaler: scaler of the loss, with precision fp16.
    scores: scores of the last evaluation, {"knn20/NAME": accuracy in [0, 1], "linear/NAME": ...}.
    tested: number of images that are scored, {"NAME": number}.
    terms: terms of the images, if they are stated.
    plugins: {file name: sha256}.
    callbacks: called in their order.
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
    terms: str | None = None
    plugins: Mapping[str, str] = field(default_factory=dict)
    callbacks: list[Callback] = field(default_factory=list)

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

    @property
    def network(self) -> tuple[nn.Module, nn.Module]:
        """The backbone and projection that are evaluated and exported: online, or the momentum encoder's."""
        if self.recipe.encoder == "momentum" and self.learner.momentum is not None:
            return self.learner.target[0], self.learner.target[1]
        return self.learner.backbone, self.learner.projection

    def plan(self, recipe: Recipe, steps: int) -> None:
        """Change the epochs of the recipe and the number of steps during the run."""
        self.recipe, self.steps, self.batches.steps = recipe, steps, steps

    def call(self, event: str, *arguments: Any) -> None:
        """Call this method of each callback."""
        for callback in self.callbacks:
            getattr(callback, event)(self, *arguments)

    def stop(self) -> None:
        """Stop at the next step with a checkpoint, as Ctrl-C does; `--resume` continues."""
        self.stopping.set()


@dataclass(frozen=True)
class StepResult:
    """Result of a step; a later step may overwrite its tensors, so callbacks that keep them must copy them.

    loss: scalar float32 on the device.
    z1: (B, D) projections of the first view by the trained encoder.
    metrics: see `measure_step`.
    lr: learning rate of the heads.
    data_seconds: spent waiting for images and making views; on a GPU, the seconds to launch this work.
    """

    loss: Tensor
    z1: Tensor
    metrics: Metrics
    lr: float
    data_seconds: float


# ------------------------------------------------------------------------------ callbacks

NOT_METRICS = {"step", "epoch"}


class Callback:
    """Override the methods that you need. An exception in one ends the run; the last checkpoint stays intact.

    `run.steps` and `run.recipe.epochs` may change between steps, if `auto` has a time limit.

    In a distributed run, `on_start`, `on_step` and `on_end` are called in every process, the others only in the first.
    """

    def on_start(self, run: Run) -> None:
        """Before the first step of this call of `pretrain`, after a checkpoint was loaded."""

    def on_step(self, run: Run, result: StepResult) -> None:
        """After each step. Reading a tensor makes a GPU wait; `on_log` is the place for that."""

    def on_log(self, run: Run, line: Mapping[str, Any]) -> None:
        """After each line of RUN/log.jsonl, with its numbers by name. Lines with scores are among them."""

    def on_evaluation(self, run: Run, scores: Mapping[str, float]) -> None:
        """After each evaluation on labeled images; scores: {"knn20/NAME": accuracy in [0, 1], ...}."""

    def on_checkpoint(self, run: Run) -> None:
        """After RUN/checkpoint.pt was written."""

    def on_end(self, run: Run) -> None:
        """After the run has finished, stopped or failed; `run.finished` says whether all steps are done."""


class TensorBoard(Callback):
    """RUN/tensorboard, for `tensorboard --logdir RUN`."""

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._create = SummaryWriter

    def on_start(self, run: Run) -> None:
        if run.ranks.first:
            self._writer = self._create(str(run.out / "tensorboard"), purge_step=run.step + 1)

    def on_log(self, run: Run, line: Mapping[str, Any]) -> None:
        for name in line.keys() - NOT_METRICS:
            self._writer.add_scalar(name, line[name], line["step"])
        self._writer.flush()

    def on_end(self, run: Run) -> None:
        if run.ranks.first:
            self._writer.close()


CALLBACKS: dict[str, Callable[[], Callback]] = {"tensorboard": TensorBoard}


# ------------------------------------------------------------------------------ the folder


def claim(out: Path, resume: bool, ranks: Ranks, console: Console) -> None:
    """Check that the run folder is usable before any long work starts."""
    if out.is_file():
        raise NoRoom(f"--out {out} is a file; name a folder for the run.")
    held = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    ranks.wait()  # until all ranks have looked, because the first one fills it
    if held and not resume:
        raise RunExists(f"{out} is not empty; continue that run with --resume, or choose another folder with --out.")
    if held and not OURS & set(held):
        raise RunExists(f"{out} holds {held[0]}, but no run; name the folder of a run, or a new folder.")
    if ranks.first:
        if resume and CHECKPOINT not in held:
            console.print(f"{out} has no checkpoint; starting from the first step")
        existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
        try:
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(out)) from error


@contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    """Turn errors of a full or read-only disk into a NoRoom error; the last checkpoint stays intact."""
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        if is_in_cache(error.filename):
            place = f"{error.filename} cannot be written ({error.strerror})"
            raise NoRoom(f"{place}; set NNCLR_CACHE to another folder.") from error
        file = Path(os.fsdecode(error.filename or out)).absolute()
        if isinstance(error, FileNotFoundError) and not file.is_relative_to(out.absolute()):
            raise ImageError(f"{file} no longer exists; restore it, then continue with --resume.") from error
        raise NoRoom(
            f"{error.filename or out} cannot be written ({error.strerror}). Free some disk space or choose another "
            "--out, then continue with --resume; the last checkpoint is intact."
        ) from error
