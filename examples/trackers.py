"""A plug-in: logs a run in Weights & Biases or MLflow, and continues their run with --resume.

nnclr pretrain auto --data PHOTOS --out RUN --plugin examples/trackers.py --set callbacks=wandb

It needs `pip install wandb`, or `pip install mlflow-skinny` for callbacks=mlflow.
"""

import json
import uuid
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from nnclr_hub import CALLBACKS, Callback

NOT_METRICS = {"step", "epoch"}


class WeightsAndBiases(Callback):
    """A run of Weights & Biases; `--resume` continues it. WANDB_PROJECT, WANDB_MODE=offline, ... have effect."""

    def __init__(self) -> None:
        self._wandb = import_module("wandb")

    def on_start(self, run: Any) -> None:
        if run.ranks.first:
            id = _run_id(run, "wandb", lambda: uuid.uuid4().hex)
            settings = run.recipe.values()
            self._run = self._wandb.init(id=id, resume="allow", name=run.out.name, dir=str(run.out), config=settings)

    def on_log(self, run: Any, line: Mapping[str, Any]) -> None:
        self._run.log({name: line[name] for name in line.keys() - NOT_METRICS}, step=line["step"])

    def on_end(self, run: Any) -> None:
        if run.ranks.first:
            self._run.finish(exit_code=0 if run.finished else 1)


class MLflow(Callback):
    """A run of MLflow; `--resume` continues it. MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, ... have effect."""

    def __init__(self) -> None:
        self._mlflow = import_module("mlflow")

    def on_start(self, run: Any) -> None:
        if run.ranks.first:
            self._mlflow.start_run(run_id=_run_id(run, "mlflow", lambda: self._new(run)))

    def _new(self, run: Any) -> str:
        with self._mlflow.start_run(run_name=run.out.name) as new:
            self._mlflow.log_params(run.recipe.values())
        return new.info.run_id

    def on_log(self, run: Any, line: Mapping[str, Any]) -> None:
        metrics = {name: float(line[name]) for name in line.keys() - NOT_METRICS}
        self._mlflow.log_metrics(metrics, step=line["step"])

    def on_end(self, run: Any) -> None:
        if run.ranks.first:
            self._mlflow.end_run("FINISHED" if run.finished else "KILLED")


def _run_id(run: Any, service: str, create: Callable[[], str]) -> str:
    """Return the id of the run in a service, which its folder keeps."""
    file = run.out / f"{service}.json"
    if not file.exists():
        file.write_text(json.dumps({"run": create()}) + "\n")
    return str(json.loads(file.read_text())["run"])


CALLBACKS["wandb"] = WeightsAndBiases
CALLBACKS["mlflow"] = MLflow
