"""Callbacks: a user's own code that a run calls.

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

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run import Run
    from .step import StepResult

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


class Callbacks(Callback):
    """Several callbacks as one, called in their order."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = list(callbacks)
        for name in ("on_start", "on_step", "on_log", "on_evaluation", "on_checkpoint", "on_end"):
            setattr(self, name, partial(self._call, name))

    def _call(self, name: str, run: Run, *arguments: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, name)(run, *arguments)


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
