"""Callbacks: a user's own code that a run calls.

    from nnclr_hub import Callback, pretrain

    class GoodEnough(Callback):
        def on_evaluation(self, run, scores):
            if scores["knn20/photos"] > 0.9:
                run.stop()

    pretrain("small", "photos", "run", callbacks=[GoodEnough()])

CALLBACKS has those that `--set callbacks=csv,wandb` selects.
"""

from __future__ import annotations

import csv
import io
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnclr_hub.file_replacement import replace_file

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


class CsvLog(Callback):
    """RUN/log.csv: the log as a table, written at each checkpoint and at the end."""

    def on_checkpoint(self, run: Run) -> None:
        self.on_end(run)

    def on_end(self, run: Run) -> None:
        if not run.ranks.first:
            return
        from .monitor import read_log

        lines, text = read_log(run.out), io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(name for line in lines for name in line)))
        writer.writeheader()
        writer.writerows(lines)
        replace_file(run.out / "log.csv", text.getvalue())


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


class WeightsAndBiases(Callback):
    """A run of Weights & Biases; `--resume` continues it. WANDB_PROJECT, WANDB_MODE=offline, ... have effect."""

    def __init__(self) -> None:
        self._wandb = import_module("wandb")

    def on_start(self, run: Run) -> None:
        if run.ranks.first:
            id = _run_id(run.out, "wandb", lambda: uuid.uuid4().hex)
            settings = run.recipe.values()
            self._run = self._wandb.init(id=id, resume="allow", name=run.out.name, dir=str(run.out), config=settings)

    def on_log(self, run: Run, line: Mapping[str, Any]) -> None:
        self._run.log({name: line[name] for name in line.keys() - NOT_METRICS}, step=line["step"])

    def on_end(self, run: Run) -> None:
        if run.ranks.first:
            self._run.finish(exit_code=0 if run.finished else 1)


class MLflow(Callback):
    """A run of MLflow; `--resume` continues it. MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, ... have effect."""

    def __init__(self) -> None:
        self._mlflow = import_module("mlflow")

    def on_start(self, run: Run) -> None:
        if run.ranks.first:
            self._mlflow.start_run(run_id=_run_id(run.out, "mlflow", lambda: self._new(run)))

    def _new(self, run: Run) -> str:
        with self._mlflow.start_run(run_name=run.out.name) as new:
            self._mlflow.log_params(run.recipe.values())
        return new.info.run_id

    def on_log(self, run: Run, line: Mapping[str, Any]) -> None:
        metrics = {name: float(line[name]) for name in line.keys() - NOT_METRICS}
        self._mlflow.log_metrics(metrics, step=line["step"])

    def on_end(self, run: Run) -> None:
        if run.ranks.first:
            self._mlflow.end_run("FINISHED" if run.finished else "KILLED")


CALLBACKS: dict[str, Callable[[], Callback]] = {
    "csv": CsvLog,
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def _run_id(out: Path, service: str, create: Callable[[], str]) -> str:
    file = out / f"{service}.json"
    if not file.exists():
        file.write_text(json.dumps({"run": create()}) + "\n")
    return str(json.loads(file.read_text())["run"])
