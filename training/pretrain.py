"""The pretraining program, top to bottom.

    nnclr pretrain small_cpu --data PHOTOS --out RUN                    # a real run on two CPU cores
    nnclr pretrain small_cpu --data PHOTOS --out RUN --resume           # continue after an interruption
    nnclr pretrain small_cpu --data PHOTOS --out RUN --minutes 60       # stop after an hour, continue with --resume
    nnclr pretrain auto --data PHOTOS --out RUN --init nnclr_resnet18_free_starter
    nnclr pretrain resnet50_imagenet --data IMAGENET --out RUN --gpus 8

RUN contains `checkpoint.pt`, `log.jsonl`, `run.json`, `encoder/` (a model folder that everything else loads) and
`report.html`. SIGTERM, SIGUSR1 and Ctrl-C save a checkpoint and stop the program. On a CPU, a resumed run equals a run
that never stopped, bit for bit. The epochs of `auto` follow --minutes, see `training.time_limit`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from nnclr_hub.arguments import checked
from nnclr_hub.encoder.features import FeatureSource
from nnclr_hub.errors import InvalidRequest, missing_package
from nnclr_hub.method import Learner, Objective, SupportSet
from nnclr_hub.plural import counted
from nnclr_hub.progress import bar
from nnclr_hub.table_rows import LabelTable
from nnclr_hub.terminal import PlainConsole

from .checkpoint import check_parts, check_same_run, evaluation_changed, load_checkpoint, restore
from .data.image_index import has_labels
from .data.views import View
from .distributed import joined
from .evals.task import table_set
from .interrupt import stop_signals
from .network import build_learner, find_initial_encoder, load_initial_encoder, place_learner
from .optimization import Schedule, make_optimizer
from .plugins import load_plugins, with_parts
from .recipes import Recipe, find_recipe
from .recipes.recipe import FIT, OF_PLUGIN, assignments, one_of
from .recorder import Recorder, write_run_json
from .run import CALLBACKS, Callback, Run, claim, disk_errors
from .setup import Setup
from .step import Stepper
from .time_limit import TimedEpochs, epochs_follow_time
from .verdict import TRAINED, Verdict

NO_ENCODER = "none"  # --init none: random weights


@dataclass(frozen=True)
class PretrainResult:
    """Result of a call of `pretrain`.

    finished: whether all epochs are done; false after a signal or at the time limit.
    step: number of completed optimizer steps.
    scores: the last evaluation, {"knn20/NAME": accuracy in [0, 1], "linear/NAME": ...}.
    verdict: verdict of a finished run, see `training.verdict`.
    """

    finished: bool
    step: int
    scores: dict[str, float]
    verdict: Verdict | None = None


@checked
def pretrain(
    recipe: str | Recipe,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    settings: Sequence[str] | Mapping[str, Any] = (),
    learner: Callable[..., Learner] | None = None,
    support_set: Callable[..., SupportSet] | None = None,
    objective: Objective | None = None,
    augmentation: tuple[View, View] | None = None,
    callbacks: Sequence[Callback] = (),
    plugins: Sequence[str | Path] = (),
    resume: bool = False,
    init: str | None = None,
    labels: LabelTable | Path | None = None,
    teacher: FeatureSource | None = None,
    device: str | torch.device | None = None,
    minutes: float | None = None,
    terms: str | None = None,
    console: Console | None = None,
) -> PretrainResult:
    """Run a recipe on images until its epochs are done, the time limit is reached, or a signal stops it.

    Under torchrun every process calls this function, and the processes work together.

    Args:
        recipe: its name, such as "auto" or "small", or a Recipe.
        data: folders, or names of data sets; see `training.data.named_sets`.
        out: the run folder.
        settings: changes of the recipe, {"epochs": 50} or ["epochs=50"].
        learner: replaces `Learner`; called with its arguments.
        support_set: replaces `SupportSet`; called with its arguments.
        objective: replaces the method's loss, for methods whose targets are vectors; see `Objective`.
        augmentation: the two large views, whose order also styles the small ones.
        callbacks: in addition to those that the recipe names.
        plugins: Python files that register parts; see `training.plugins`.
        resume: continue from the checkpoint in `out`, or start there without one.
        init: source of an encoder to start from, or "none" for random weights. By default `auto` starts from the free
            starter, and other recipes from random weights; a resumed run keeps its source.
        labels: a table of labels. The run is scored on a fifth of each class. Its other columns may guide neighbors,
            see the settings `same` and `not_same`; then it needs no labels.
        teacher: an encoder for the methods with a teacher, instead of the source in the setting `teacher`.
        device: "cpu", "cuda", "cuda:1", or a torch.device; default the GPU if there is one.
        minutes: time limit. The run saves a checkpoint and stops, after at least one step; saving takes extra time.
            The epochs of `auto` follow it, see `training.time_limit`; those of a resumed run do not.
        terms: terms of the images, such as "cc-by-4.0", for the encoder's record; a resumed run keeps the ones it has.
        console: for progress and messages; default standard error.

    Raises:
        InvalidRequest: an unknown setting, plug-in, folder or table; among them NoImages.
        ModelError: the source of `init` is not available.
        MissingDependency: a callback needs a package that is not installed.
        RunExists: `out` holds a run, and `resume` is false; or other files.
        CheckpointError: the checkpoint is damaged, or belongs to a different run.
        NoRoom: the disk is full or not writable.
        OutOfMemory: a step does not fit into the device; the message names a smaller batch.
        TrainingDiverged: the loss or a weight became infinite.
    """
    until = math.inf if minutes is None else time.monotonic() + 60 * minutes
    digests = load_plugins([Path(one) for one in plugins])
    if teacher is not None:
        settings = [*assignments(settings), f"teacher={teacher.name}"]
    chosen = (find_recipe(recipe) if isinstance(recipe, str) else recipe).with_settings(settings)
    chosen = with_parts(chosen, learner, support_set, objective, augmentation)
    data = [data] if isinstance(data, str | Path) else data
    given = None if labels is None else LabelTable.of(labels)
    scored = given if given and (has_labels(given) or not (chosen.same or chosen.not_same)) else None
    table = None if scored is None else table_set(scored, data)  # a wrong table stops the run at once
    try:
        for name in chosen.callbacks:
            one_of("callbacks", name, CALLBACKS, OF_PLUGIN)
        called = [*(CALLBACKS[name]() for name in chosen.callbacks), *callbacks]
    except ModuleNotFoundError as error:
        raise missing_package(error) or error from error
    out, console = Path(out), console or PlainConsole(stderr=True)
    with joined(device, chosen.collective_minutes) as ranks, disk_errors(out):
        console = console if ranks.first else Console(quiet=True)
        # ------------------------------------------------------------------------ data
        fits = chosen.epochs == FIT
        if fits and (minutes is None or ranks.world > 1):
            raise InvalidRequest(
                "epochs=fit needs a time limit, --minutes, and a single process. Set epochs to a number otherwise."
            )
        start = find_initial_encoder(init) if init and init != NO_ENCODER else None
        claim(out, resume, ranks, console)
        for note in table.left_out if table else ():
            console.print(note, style="yellow")
        saved = load_checkpoint(out) if resume else None
        if saved is not None:
            check_parts(saved, out)
            if init is None and saved["init"]:
                start = find_initial_encoder(saved["init"])
        ready = Setup.of(
            chosen,
            data,
            ranks,
            console,
            start=start,
            saved=saved,
            minutes=minutes,
            table=table,
            choose_start=init is None and saved is None,
            labels=given,
            teacher=teacher,
        )
        recipe, batches, start = ready.recipe, ready.batches, ready.start

        # ------------------------------------------------------------------------ network
        torch.manual_seed(recipe.seed)
        learner = build_learner(recipe, ready.tables)
        if start and saved is None:
            load_initial_encoder(learner, start, console, recipe.in_chans)
        learner = place_learner(learner, recipe, ranks)
        steps = recipe.steps(batches.steps_per_epoch)
        # trained weights: the heads learn first, and early layers slower
        optimizer = make_optimizer(learner, recipe, layer_decay=recipe.layer_decay if start else 1.0)
        schedule = Schedule(optimizer, recipe, steps, batches.steps_per_epoch, from_encoder=start is not None)
        run = Run(out, recipe, learner, optimizer, batches, ranks, steps, terms=terms, plugins=digests)
        run.callbacks += called

        # ------------------------------------------------------------------------ resume
        trained_before = rescored = False
        if saved is not None:
            check_same_run(saved, ready, out)
            restore(run, saved, ready.files, console)
            run.terms = terms or saved["terms"]
            trained_before = run.finished
            rescored = evaluation_changed(saved, recipe)
            verdict = Verdict.read(out)  # None if the run was killed after its last checkpoint
            complete = verdict is not None and (not verdict.kept or (out / TRAINED).is_dir())
            if trained_before and complete and not rescored:
                console.print(
                    f"{out} is finished after {counted(run.steps, 'step')}; the encoder is in {out / 'encoder'}."
                )
                return PretrainResult(True, run.step, run.scores, verdict)
            console.print(f"continuing at step {run.step} of {run.steps}")
        ranks.require_equal(
            images=len(batches), batch_size=recipe.batch_size, precision=recipe.precision, checkpoint=run.step
        )
        if ranks.first:
            out.mkdir(parents=True, exist_ok=True)
        recorder = Recorder(run, ready, saved, console)
        if (
            minutes  # a limit of 0 stops after a step, to be resumed
            and epochs_follow_time(chosen)
            and (saved is None or fits)
            and ranks.world == 1
        ):
            changed = partial(write_run_json, run, ready)
            run.callbacks.append(TimedEpochs(until, chosen, schedule, changed, console))
        run.call("on_start")
        try:
            if trained_before:  # what is exported has changed, or the verdict is missing
                recorder.start()
                if rescored:
                    recorder.evaluate()
                recorder.save()
            else:
                with recorder.paused():
                    recorder.start()
                    ranks.wait_for_first()
                stepper = Stepper(run, schedule)
                if stepper.eager_because is not None:
                    console.print(f"Steps are not recorded as a graph: {stepper.eager_because}.")
                _train(run, stepper, recorder, until, console, resumed=saved is not None)
            if run.finished:
                recorder.finish()
        finally:
            batches.close()
            run.call("on_end")
        return PretrainResult(run.finished, run.step, run.scores, run.verdict)


def _train(
    run: Run,
    stepper: Stepper,
    recorder: Recorder,
    until: float,
    console: Console,
    *,
    resumed: bool,
) -> None:
    """Run steps until they are done or the run is stopped, by a signal, a callback or at the time `until`."""
    recipe, ranks = run.recipe, run.ranks
    saved_at, saved_when = run.step if resumed else None, time.monotonic()
    run.learner.train()
    with (
        stop_signals(run.stopping, ignore_repeats=ranks.world > 1),
        bar(console, recipe.name, each=recipe.batch_size) as advance,
    ):
        while not run.finished:
            result = stepper.run(run.step)
            run.step += 1
            run.call("on_step", result)

            log_due = run.step % recipe.log_every == 0 or run.finished
            periods = [one * run.batches.steps_per_epoch for one in (recipe.checkpoint_every, recipe.keep_every) if one]
            checkpoint_due = run.finished or any(run.step % period == 0 for period in periods)
            # several ranks agree on stopping only when they log: agreeing at each step would make the device wait
            agreeing = log_due or ranks.world == 1
            stopping = agreeing and ranks.any(run.stopping.is_set() or time.monotonic() >= until)
            minutes_due = agreeing and ranks.any(0 < recipe.checkpoint_minutes < (time.monotonic() - saved_when) / 60)
            if log_due or checkpoint_due or stopping or minutes_due:
                recorder.stop_if_diverged(result.loss.item(), saved_at)
            recorder.add(result)
            if log_due:
                recorder.log(result)
            advance(run.step, run.steps)
            with recorder.paused():
                if checkpoint_due:
                    recorder.evaluate()
                if checkpoint_due or stopping:
                    recorder.save()
                elif minutes_due:
                    recorder.save(checkpoint_only=True)
                if checkpoint_due or stopping or minutes_due:
                    saved_at, saved_when = run.step, time.monotonic()
            if stopping and not run.finished:
                console.print(f"stopped at step {run.step} of {run.steps}; continue with --resume")
                break
