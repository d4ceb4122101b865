"""What a run writes: log lines, scores, checkpoints, the encoder and the report. The first process writes all of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console

from nnclr_hub.encoder.features import FeatureSource
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import ModelError

from .callbacks import Callback
from .checkpoint import save_checkpoint
from .data.datasets import EvaluationSet
from .data.image_index import ImageIndex
from .evaluation import Evaluation, exact_inference
from .monitor import Monitor, peak_memory_mb, rankme
from .neighbor_history import record_neighbors
from .references import UNTRAINED, References
from .report import write_report
from .run import Run
from .run_folder import export_encoder, keep_milestone
from .step import StepResult
from .verdict import RUN, judge, symptoms

RECENT = 20  # last lines of the log that are searched for symptoms


class Recorder:
    """Logs, evaluates and saves a run. All processes of a distributed run call its methods, and the first one writes.

    Args:
        sets: labeled sets that score the run.
        files: the images that the run learns from.
        init: source of the encoder that the run starts from, if any.
        terms: of the images.
        lineage: see `lineage_of`.
        write_run: writes RUN/run.json.
        saved: the checkpoint that the run resumes from, if any.
    """

    def __init__(
        self,
        run: Run,
        callbacks: Callback,
        sets: Sequence[EvaluationSet],
        files: ImageIndex,
        init: str | None,
        terms: str | None,
        lineage: Mapping[str, Any],
        write_run: Callable[[], None],
        saved: Mapping[str, Any] | None,
        console: Console,
    ) -> None:
        self._run, self._callbacks, self._console = run, callbacks, console
        self._files, self._init, self._terms, self._lineage, self._write_run = files, init, terms, lineage, write_run
        self._warned: set[str] = set()
        recipe = run.recipe
        self._preprocessing = recipe.preprocessing
        self._chance = run.learner.chance_loss(recipe.batch_size // recipe.accumulate)
        self._monitor = Monitor(
            run.out, resumed_at=run.step, unlogged=saved["unlogged"] if saved else None, ranks=run.ranks
        )
        self._evaluation = Evaluation(sets, self._preprocessing, recipe, run.ranks, console)
        before = saved.get("references") if saved else None
        labeled = sets if run.ranks.first else ()
        self._references = References(labeled, self._preprocessing.reading, recipe.in_chans, before, console)
        self._keep_color = "augmentation=keep_color"
        if len(lineage.get("data", ())) > 1 and len(sets) == 1:
            self._keep_color = f"keep_color_of={sets[0].name}"

    def start(self) -> None:
        """Score what the run is compared with, and the encoder that it starts from as the start of its curve."""
        run = self._run
        run.tested = self._evaluation.tested
        if run.ranks.first:
            self._write_run()
            known = run.step == 0 or self._init is not None  # the first step changes the untrained network
            self._references.measure(self._init or UNTRAINED, self._initial_encoder if known else None)
        if run.step == 0 and self._init:
            self.evaluate()

    def _initial_encoder(self) -> FeatureSource:
        """Return the parent as it is; or the network before its first step, which may take other channels."""
        if self._init is not None:
            try:
                parent = load_encoder(self._init, device=str(self._run.ranks.where))
                if parent.transform.preprocessing.in_chans == self._preprocessing.in_chans:
                    return parent
            except ModelError as error:
                self._console.print(f"note: {self._init} is scored in this run: {error}", highlight=False)
        return self._evaluation.encoder(self._run.learner, self._run.out.name)

    def add(self, result: StepResult) -> None:
        """Count a step."""
        self._monitor.add(result.metrics, self._run.recipe.batch_size, result.data_seconds)

    def log(self, result: StepResult) -> None:
        """Write a line of the log, and warn of symptoms of a run that does not learn."""
        run, ranks = self._run, self._run.ranks
        self._monitor.collect()
        z = ranks.gather(result.z1)
        facts = [peak_memory_mb(ranks.where), len(run.batches.unreadable)]
        of_ranks = ranks.gather(torch.tensor([facts], dtype=torch.float64, device=ranks.where))
        peak, unreadable = of_ranks[:, 0].max().item(), 0
        if of_ranks[:, 1].any():  # several ranks may have met the same image
            unreadable = len(set().union(*ranks.collect(set(run.batches.unreadable)) or ()))
        extra = {**self._chance, "peak_memory_mb": peak, **({"unreadable": unreadable} if unreadable else {})}
        line = self._monitor.log(run.step, run.epoch, lr=result.lr, rankme=rankme(z) if ranks.first else 0.0, **extra)
        if not ranks.first:
            return
        warmup = run.recipe.warmup_epochs / run.recipe.epochs
        for symptom, sentence in symptoms(self._monitor.lines[-RECENT:], run.steps, warmup=warmup).items():
            if symptom not in self._warned:
                self._console.print(f"warning: {sentence}", highlight=False)
                self._warned.add(symptom)
        self._callbacks.on_log(run, line)

    def evaluate(self) -> None:
        """Score the encoder on the labeled images, if there are any. Each rank computes features of its share."""
        scores = self._evaluation.scores(self._run.learner, self._run.out.name)
        if self._run.ranks.first:
            self._record(scores)
        self._run.ranks.wait_for_first()  # which scores for longer than other operations may take

    def _record(self, scores: Mapping[str, float]) -> None:
        run = self._run
        run.scores.update(scores)
        line = self._monitor.record(run.step, run.epoch, run.scores)
        self._evaluation.print_scores(run.epoch, run.scores)
        if run.scores:  # without labels there are none
            self._callbacks.on_log(run, line)
            self._callbacks.on_evaluation(run, run.scores)

    def save_checkpoint(self) -> None:
        """Write the checkpoint alone, between two that also score and export the encoder."""
        self._monitor.collect()
        if self._run.ranks.first:
            save_checkpoint(self._run.out, self._state())
            self._callbacks.on_checkpoint(self._run)
        self._run.ranks.wait_for_first()

    def save(self) -> None:
        """Write the checkpoint, the encoder, the neighbors and the report."""
        run = self._run
        self._monitor.collect()
        if run.ranks.first:
            save_checkpoint(run.out, self._state())
            self._export()
            every = run.recipe.keep_every * run.batches.steps_per_epoch
            if every and run.step % every == 0:
                keep_milestone(run.out, round(run.epoch))
            record_neighbors(run.out, run.learner, run.batches, run.recipe, run.step, run.epoch)
            write_report([run.out], run.out / "report.html")
            self._callbacks.on_checkpoint(run)
        run.ranks.wait_for_first()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the enclosed work from the training time."""
        with self._monitor.paused():
            yield

    def finish(self) -> None:
        """Reach the verdict of the finished run, and write it into run.json, the encoder and the report."""
        run = self._run
        if not run.ranks.first:
            return
        with exact_inference():
            self._references.score(RUN, self._evaluation.encoder(run.learner, run.out.name))
        run.verdict = judge(self._references, self._init, run.recipe, self._monitor.lines, run.steps, self._keep_color)
        self._write_run()
        self._export()
        write_report([run.out], run.out / "report.html")
        self._console.print(f"verdict: {run.verdict.sentence}", style="bold", highlight=False)
        done = f"done: the encoder is in {run.out / 'encoder'}, the report in {run.out / 'report.html'}"
        self._console.print(done, highlight=False)

    def _state(self) -> dict[str, Any]:
        run = self._run
        return {
            "recipe": run.recipe.name,
            "settings": dataclasses.asdict(run.recipe),
            "init": self._init,
            "terms": self._terms,
            "files": self._files.digest,
            **({"images": torch.from_numpy(self._files.fingerprints)} if len(self._files.fingerprints) else {}),
            "steps_per_epoch": run.batches.steps_per_epoch,
            "step": run.step,
            "scores": run.scores,
            "references": self._references.state,
            "unlogged": self._monitor.unlogged,
            "learner": run.learner.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "scaler": run.scaler.state_dict(),
        }

    def _export(self) -> None:
        run = self._run
        provenance: dict[str, Any] = {
            "metrics": {key: round(value, 4) for key, value in run.scores.items()},
            "measured_on": self._evaluation.images,
            "splits": self._evaluation.splits,
        }
        if (scored := self._monitor.last_scored(run.scores)) is not None:  # a stopped run is saved without scores
            provenance["measured_at_step"] = scored
        about = {**self._lineage, **(provenance if run.scores else {})}
        if run.verdict is not None:
            about["verdict"] = run.verdict.record
        export_encoder(run.learner, self._preprocessing, run.recipe, run.out, run.step, run.steps, about)
