"""What a run writes: log lines, scores, checkpoints, the encoder, neighbors and the report.

RUN/neighbors.jsonl has the nearest neighbors of a few fixed images in the support set, with thumbnails: the data of the
paper's figure "Evolution of Nearest-Neighbors".
"""

from __future__ import annotations

import base64
import io
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.features import FeatureSource
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import ModelError, TrainingDiverged
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.images.channels import for_people
from nnclr_hub.images.readers.stack import as_image

from .callbacks import Callback
from .checkpoint import save_checkpoint, state_of
from .data.augment import make_views
from .data.batches import WHOLE, Batches
from .evals.task import Task
from .evaluation import LabeledSet, encoder_of, exact_inference, scores_of
from .monitor import EXAMPLES, NEIGHBORS, Monitor, peak_memory_mb, rankme, read_lines, stop_if_diverged
from .report import write_report
from .run import Origin, Run, export_encoder, keep_milestone, keep_parent, write_run_json
from .step import StepResult
from .verdict import RUN, TRAINED, UNTRAINED, References, judge, symptoms

RECENT = 20  # last lines of the log that are searched for symptoms
QUERIES, SHOWN = 8, 5  # images whose neighbors are recorded, and neighbors of each
THUMBNAIL = 56  # pixels of the longer side


class Recorder:
    """Logs, evaluates and saves a run. All processes of a distributed run call its methods, and the first one writes.

    Args:
        sets: labeled sets that score the run.
        saved: the checkpoint that the run resumes from, if any.
    """

    def __init__(
        self,
        run: Run,
        origin: Origin,
        callbacks: Callback,
        sets: Sequence[Task],
        saved: Mapping[str, Any] | None,
        console: Console,
    ) -> None:
        self._run, self._origin, self._callbacks, self._console = run, origin, callbacks, console
        self._warned: set[str] = set()
        recipe, ranks = run.recipe, run.ranks
        self._lineage = origin.lineage() if ranks.first else {}
        self._chance = run.learner.chance_loss(recipe.batch_size)
        self._monitor = Monitor(run.out, run.step, saved["unlogged"] if saved else None, ranks=ranks)
        self.paused = self._monitor.paused  # excludes work from the training time
        preprocessing, most = recipe.preprocessing, recipe.eval_images
        before = saved.get("references") if saved else None
        labeled = sets if ranks.first else ()
        self._sets = [LabeledSet(one, preprocessing, most, console) for one in labeled]
        self._references = References(labeled, recipe.preprocessing.reading, recipe.in_chans, before, console)

    def start(self) -> None:
        """Score what the run is compared with, and the encoder that it starts from as the start of its curve."""
        run, init = self._run, self._origin.init
        run.tested = {one.name: one.tested for one in self._sets}
        if run.ranks.first:
            self.write_run()
            known = run.step == 0 or init is not None  # the first step changes the untrained network
            self._references.measure(init or UNTRAINED, self._initial_encoder if known else None, self._origin.teacher)
        if run.step == 0 and init:
            self.evaluate()

    def write_run(self) -> None:
        """Write RUN/run.json."""
        write_run_json(self._run, self._origin)

    def _initial_encoder(self) -> FeatureSource:
        parent = self._parent()
        if parent is not None and parent.transform.preprocessing.in_chans == self._run.recipe.in_chans:
            return parent
        return encoder_of(self._run)

    def _parent(self) -> Encoder | None:
        init = self._origin.init
        try:
            return None if init is None else load_encoder(init, device=str(self._run.ranks.where))
        except ModelError as error:
            self._console.print(f"note: {init} is scored in this run: {error}", highlight=False)
            return None

    def add(self, result: StepResult) -> None:
        """Count a step."""
        self._monitor.add(result.metrics, self._run.recipe.batch_size, result.data_seconds)

    def stop_if_diverged(self, loss: float, saved_at: int | None) -> None:
        """Raise TrainingDiverged, after the log and the report show it; see `training.monitor.stop_if_diverged`."""
        run = self._run
        try:
            stop_if_diverged(run.learner, loss, run.step, run.out, saved_at)
        except TrainingDiverged:
            if run.ranks.first:
                self._monitor.record(
                    run.step, run.epoch, {"loss": loss, **({"weights": math.nan} if math.isfinite(loss) else {})}
                )
                write_report([run.out], run.out / "report.html")
            raise

    def log(self, result: StepResult) -> None:
        """Write a line of the log, and warn of symptoms of a run that does not learn."""
        run, ranks = self._run, self._run.ranks
        self._monitor.collect()
        z = ranks.gather(result.z1)
        facts = [peak_memory_mb(ranks.where), len(run.batches.pixels.unreadable)]
        of_ranks = ranks.gather(torch.tensor([facts], dtype=torch.float64, device=ranks.where))
        peak, unreadable = of_ranks[:, 0].max().item(), 0
        if of_ranks[:, 1].any():  # several ranks may have met the same image
            unreadable = len(set().union(*ranks.collect(set(run.batches.pixels.unreadable)) or ()))
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
        """Score the encoder on the labeled images, if there are any."""
        run = self._run
        if run.ranks.first:
            run.scores.update(scores_of(self._sets, encoder_of(run)) if self._sets else {})
            line = self._monitor.record(run.step, run.epoch, run.scores)
            if run.scores:  # without labels there are none
                shown = "  ".join(f"{key} {value:.3f}" for key, value in run.scores.items())
                self._console.print(f"epoch {run.epoch:g}  {shown}", highlight=False)
                self._callbacks.on_log(run, line)
                self._callbacks.on_evaluation(run, run.scores)
        run.ranks.wait_for_first()  # which scores for longer than other operations may take

    def save(self, *, checkpoint_only: bool = False) -> None:
        """Write the checkpoint and, unless it is one between two evaluations, the encoder, neighbors and report."""
        run = self._run
        self._monitor.collect()
        if run.ranks.first:
            save_checkpoint(run.out, state_of(run, self._origin, self._monitor, self._references.state))
            if not checkpoint_only:
                self._export()
                every = run.recipe.keep_every * run.batches.steps_per_epoch
                if every and run.step % every == 0:
                    keep_milestone(run)
                record_neighbors(run)
                write_report([run.out], run.out / "report.html")
            self._callbacks.on_checkpoint(run)
        run.ranks.wait_for_first()

    def finish(self) -> None:
        """Reach the verdict of the finished run, and write it into the encoder, run.json and the report.

        `--resume` takes a run as finished once run.json has the verdict, so it is written after the encoders.
        """
        run = self._run
        if not run.ranks.first:
            return
        with exact_inference():
            self._references.score(RUN, encoder_of(run))
        if self._references.examples:
            replace_file(run.out / EXAMPLES, json.dumps(self._references.examples) + "\n")
        parent = self._parent()
        same_input = parent is not None and parent.transform.preprocessing == run.recipe.preprocessing
        log, init = self._monitor.lines, self._origin.init
        run.verdict = judge(self._references, init, run.recipe, log, run.steps, same_input=same_input)
        self._export()
        shutil.rmtree(run.out / TRAINED, ignore_errors=True)
        if run.verdict.kept and parent is not None:
            keep_parent(run, parent)
        self.write_run()
        write_report([run.out], run.out / "report.html")
        self._console.print(f"verdict: {run.verdict.sentence}", style="bold", highlight=False)
        done = f"done: the encoder is in {run.out / 'encoder'}, the report in {run.out / 'report.html'}"
        self._console.print(done, highlight=False)

    def _export(self) -> None:
        run, about = self._run, dict(self._lineage)
        # a stopped run was last scored at an earlier step, with other weights
        if run.scores and self._monitor.last_scored(run.scores) == run.step:
            about["metrics"] = {key: round(value, 4) for key, value in run.scores.items()}
            about["measured_on"] = {one.name: one.images for one in self._sets}
            about["splits"] = {one.name: one.split for one in self._sets}
        export_encoder(run, about)


# ------------------------------------------------------------------------------ neighbors


@torch.no_grad()
def record_neighbors(run: Run) -> None:
    """Append a line to RUN/neighbors.jsonl and drop lines of later steps; nothing without a support set."""
    learner, batches, recipe = run.learner, run.batches, run.recipe
    if learner.support_set is None:
        return
    draws = torch.Generator().manual_seed(recipe.seed)
    queries = torch.randperm(len(batches), generator=draws)[:QUERIES].sort().values
    plain = replace(WHOLE, size=recipe.eval_size, mean=recipe.mean, std=recipe.std)
    batch = batches.of(queries, [plain], recipe.seed)
    [view] = make_views(batch.pixels, [plain], batch.numbers)
    learner.eval()
    with exact_inference():
        z = torch.nn.functional.normalize(learner.project(view, batch.ids).float(), dim=1)
    learner.train()
    similarity = z @ learner.support_set.queue.T
    similarity[:, learner.support_set.ids < 0] = -2  # initial random rows, or rows without an id
    similarity[batch.ids[:, None] == learner.support_set.ids[None]] = -2
    value, place = similarity.topk(min(SHOWN, similarity.shape[1]), dim=1)
    ids = learner.support_set.ids[place].cpu()
    line = {
        "step": run.step,
        "epoch": round(run.epoch, 4),
        "queries": queries.tolist(),
        "neighbors": ids.tolist(),
        "similarity": [[round(v, 4) for v in row] for row in value.tolist()],
        "thumbnails": _thumbnails(torch.cat([queries, ids[ids >= 0]]).unique(), batches, recipe.in_chans),
    }
    lines = [json.dumps(one) for one in read_lines(run.out / NEIGHBORS) if one["step"] < run.step]
    replace_file(run.out / NEIGHBORS, "\n".join([*lines, json.dumps(line)]) + "\n")


def _thumbnails(ids: Tensor, batches: Batches, channels: int) -> dict[str, str]:
    """Return small JPEGs in base64, with the proportions of the original images."""
    plain = replace(WHOLE, size=THUMBNAIL, mean=(0.0,) * channels, std=(1.0,) * channels)
    batch = batches.of(ids, [plain], 0)
    [squares] = make_views(batch.pixels, [plain], batch.numbers)
    pixels = (squares.permute(0, 2, 3, 1) * 255).round().to(torch.uint8).cpu().numpy()
    thumbnails = {}
    for number, square, size in zip(ids.tolist(), pixels, batch.pixels.sizes, strict=True):
        height, width = (max(1, round(THUMBNAIL * side / max(size))) for side in size)
        file = io.BytesIO()
        for_people(as_image(square)).resize((width, height)).save(file, "JPEG", quality=80)
        thumbnails[str(number)] = base64.b64encode(file.getvalue()).decode()
    return thumbnails
