"""The pretraining program, top to bottom.

    nnclr pretrain small_cpu --data PHOTOS --out RUN                    # a real run on two CPU cores
    nnclr pretrain small_cpu --data PHOTOS --out RUN --resume           # continue after an interruption
    nnclr pretrain small_cpu --data PHOTOS --out RUN --minutes 60       # stop after an hour, continue with --resume
    nnclr pretrain auto --data PHOTOS --out RUN --init nnclr_resnet18_small_cpu_starter
    nnclr pretrain resnet50_imagenet --data IMAGENET --out RUN --gpus 8

RUN contains `checkpoint.pt`, `log.jsonl`, `run.json`, `encoder/` (a model folder that everything else loads) and
`report.html`. SIGTERM and Ctrl-C save a checkpoint and stop the program. On a CPU, a resumed run equals a run that
never stopped, bit for bit.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.progress import bar

from .assemble import build_learner, place_learner
from .checkpoint import check_same_run, digest, evaluation_changed, load_checkpoint, save_checkpoint
from .data.datasets import EvaluationSet
from .distributed import Ranks, joined
from .evaluation import Evaluation, table_set
from .floors import UNTRAINED, Floors
from .health import symptoms
from .initial_encoder import find_initial_encoder, load_initial_encoder, warn_if_worse
from .interrupt import stop_signals
from .lineage import lineage_of
from .monitor import Monitor, rankme, stop_if_diverged
from .neighbor_history import record_neighbors
from .optimization import Schedule, make_optimizer
from .prepare import prepare
from .recipes import Recipe
from .report import write_report
from .run_folder import claim, disk_errors, export_encoder, write_run_json
from .starter import compare_with_starter
from .step import Stepper

RECENT = 20  # last lines of the log that are searched for symptoms


@dataclass(frozen=True)
class PretrainResult:
    """Result of a call of `pretrain`.

    finished: whether all epochs are done; false after a signal or at the time limit.
    step: number of completed optimizer steps.
    scores: the last evaluation, {"knn20/NAME": accuracy in [0, 1], "linear/NAME": ...}.
    """

    finished: bool
    step: int
    scores: dict[str, float]


def pretrain(
    name: str,
    recipe: Recipe,
    data: Sequence[str | Path],
    out: Path,
    *,
    resume: bool = False,
    init: str | None = None,
    labels: Path | None = None,
    root: Path | None = None,
    device: str | None = None,
    minutes: float | None = None,
    terms: str | None = None,
    console: Console | None = None,
) -> PretrainResult:
    """Run a recipe on images until its epochs are done, the time limit is reached, or a signal stops it.

    Under torchrun every process calls this function, and the processes work together.

    Args:
        name: the recipe's name, for run.json.
        data: folders, or names of data sets; see `training.data.datasets` and `training.data.named_sets`.
        resume: continue from the checkpoint in `out`, or start there without one.
        init: source of an encoder to start from.
        labels: a table of labels. The run is scored on a fifth of each class, and in the end compared with a starter.
        root: folder to which the paths of `labels` are relative; see `table_set`.
        device: "cpu", "cuda", "cuda:1"; default the GPU if there is one.
        minutes: time limit. The run saves a checkpoint and stops, after at least one step; saving takes extra time.
        terms: of the images, such as "cc-by-4.0", for the encoder's record; a resumed run keeps the ones it has.
        console: for progress and messages; default standard error.

    Raises:
        RunExists, NoImages, NoRoom, CheckpointError, TrainingDiverged, OutOfMemory, InvalidRequest, ModelError.
    """
    until = None if minutes is None else time.monotonic() + 60 * minutes
    table = None if labels is None else table_set(Path(labels), root, data)  # a wrong table stops the run at once
    with joined(device) as ranks, disk_errors(Path(out)):
        console = (console or Console(stderr=True)) if ranks.first else Console(quiet=True)
        return _pretrain(name, recipe, data, Path(out), resume, init, table, until, terms, ranks, console)


def _pretrain(
    name: str,
    recipe: Recipe,
    data: Sequence[str | Path],
    out: Path,
    resume: bool,
    init: str | None,
    table: EvaluationSet | None,
    until: float | None,
    terms: str | None,
    ranks: Ranks,
    console: Console,
) -> PretrainResult:
    # ------------------------------------------------------------------------ data
    start = find_initial_encoder(init) if init else None
    claim(out, resume, ranks, console)
    ready = prepare(recipe, data, start, ranks, console)
    recipe, folders, files, batches = ready.recipe, ready.folders, ready.files, ready.batches
    steps_per_epoch = batches.steps_per_epoch
    steps = recipe.epochs * steps_per_epoch

    # ------------------------------------------------------------------------ network
    torch.manual_seed(recipe.seed)
    learner = build_learner(recipe)
    saved = load_checkpoint(out) if resume else None
    if start and saved is None:
        load_initial_encoder(learner, start, console)
    learner = place_learner(learner, recipe, ranks)
    optimizer = make_optimizer(learner, recipe, layer_decay=recipe.layer_decay if start else 1.0)
    heads_first = round(recipe.heads_first * steps) if start else 0
    schedule = Schedule(optimizer, recipe, steps, steps_per_epoch, heads_first=heads_first)

    # ------------------------------------------------------------------------ resume
    step, saved_at, scores, at_start = 0, None, {}, {}
    if saved is not None:
        check_same_run(saved, name, recipe, files, init, out)
        learner.load_state_dict(saved["learner"])
        optimizer.load_state_dict(saved["optimizer"])
        step, scores, at_start = saved["step"], saved["scores"], saved["at_start"]
        terms = terms or saved.get("terms")
        saved_at = step
        if step == steps and not evaluation_changed(saved, recipe):
            console.print(
                f"{out} is finished after {steps} steps; the encoder is in {out / 'encoder'}.", highlight=False
            )
            return PretrainResult(True, step, scores)
        console.print(f"continuing at step {step} of {steps}", highlight=False)
    ranks.require_equal(images=len(batches), batch_size=recipe.batch_size, precision=recipe.precision, checkpoint=step)
    monitor = None
    if ranks.first:
        out.mkdir(parents=True, exist_ok=True)
        unlogged = None if saved is None else saved.get("unlogged")
        monitor = Monitor(out, resumed_at=step, unlogged=unlogged, tensorboard=recipe.tensorboard)
        write_run_json(out, name, recipe, folders, files, ranks, init, steps)
    preprocessing = Preprocessing(recipe.eval_size, recipe.eval_crop, recipe.mean, recipe.std)
    lineage = lineage_of(start, folders, files, terms) if ranks.first else {}
    chance = learner.chance_loss(recipe.batch_size // recipe.accumulate)
    warned: set[str] = set()

    # ------------------------------------------------------------------------ at checkpoints and log lines
    evaluation = Evaluation(folders, preprocessing, recipe, ranks.where, console, table) if ranks.first else None

    def evaluate() -> None:
        if evaluation is not None and monitor is not None:
            scores.update(evaluation.scores(learner, out.name))
            monitor.record(step, step / steps_per_epoch, scores)
            evaluation.print_scores(step / steps_per_epoch, scores)
            warn_if_worse(scores, at_start, console)

    def save() -> None:
        if monitor is not None:
            state = {
                "recipe": name,
                "settings": dataclasses.asdict(recipe),
                "init": init,
                "terms": terms,
                "files": digest(files),
                "step": step,
                "scores": scores,
                "at_start": at_start,
                "unlogged": monitor.unlogged,
                "learner": learner.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            save_checkpoint(out, state)
            provenance: dict[str, Any] = {
                "metrics": {key: round(value, 4) for key, value in scores.items()},
                "measured_on": evaluation.images if evaluation is not None else {},
            }
            if (scored := monitor.last_scored(scores)) is not None:  # a stopped run saves weights without scoring them
                provenance["measured_at_step"] = scored
            export_encoder(
                learner, preprocessing, recipe, out, name, step, steps, lineage | (provenance if scores else {})
            )
            record_neighbors(out, learner, batches, recipe, step, step / steps_per_epoch)
            write_report([out], out / "report.html")
        ranks.wait()

    def warn(lines: Sequence[dict[str, float]]) -> None:
        for symptom, sentence in (symptoms(lines, steps) or {}).items():
            if symptom not in warned:
                console.print(f"[yellow]warning[/] {sentence}", highlight=False)
                warned.add(symptom)

    if step == steps:  # trained already; only the exported encoder's input has changed
        evaluate()
        save()
        return PretrainResult(True, step, scores)
    if start and saved is None:
        evaluate()
        at_start.update(scores)
    floors = Floors()
    if evaluation is not None:
        floors = evaluation.floors(out)
        if step == 0 and floors.images and not start:
            floors.scores[UNTRAINED] = evaluation.scores(learner, out.name)
            floors.write(out)

    # ------------------------------------------------------------------------ the loop
    learner.train()
    stepper = Stepper(learner, optimizer, schedule, recipe, ranks, batches, steps)
    with (
        stop_signals(ignore_repeats=ranks.world > 1, until=until) as stop,
        bar(console, name, each=recipe.batch_size) as advance,
    ):
        while step < steps:
            started = time.perf_counter()
            batch = batches.at(step)
            waited = time.perf_counter() - started
            result = stepper.run(batch, step)
            step += 1

            log_due = step % recipe.log_every == 0 or step == steps
            checkpoint_due = step % (recipe.checkpoint_every * steps_per_epoch) == 0 or step == steps
            # several ranks agree on stopping only when they log: agreeing at each step would make the device wait
            stopping = ranks.any(stop.is_set()) if log_due or ranks.world == 1 else False
            if log_due or checkpoint_due or stopping:
                stop_if_diverged(learner, result.loss.item(), step, out, saved_at)
            if monitor is not None:
                monitor.add(result.metrics, recipe.batch_size, waited + result.augmented)
                if log_due:
                    monitor.log(step, step / steps_per_epoch, lr=result.lr, rankme=rankme(result.z1), **chance)
                    warn(monitor.lines[-RECENT:])
                advance(step, steps)
            with monitor.paused() if monitor is not None else nullcontext():
                if checkpoint_due:
                    evaluate()
                if checkpoint_due or stopping:
                    save()
                    saved_at = step
            if stopping and step < steps:
                console.print(f"stopped at step {step} of {steps}; continue with --resume", highlight=False)
                break
    batches.close()
    if step == steps:
        if table is not None and ranks.first and (answer := compare_with_starter(out, table, init, console)):
            console.print(answer, highlight=False, markup=False)
            write_report([out], out / "report.html")
        floors.warn_if_below(scores, console)
        console.print(
            f"done: the encoder is in {out / 'encoder'}, the report in {out / 'report.html'}", highlight=False
        )
    return PretrainResult(step == steps, step, scores)
