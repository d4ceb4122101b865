"""The pretraining program, top to bottom.

    nnclr pretrain small_cpu --data PHOTOS --out RUN                    # a real run on two CPU cores
    nnclr pretrain small_cpu --data PHOTOS --out RUN --resume           # go on after a stop
    nnclr pretrain small_cpu --data PHOTOS --out RUN --minutes 9        # stop by itself, to go on later
    nnclr pretrain auto --data PHOTOS --out RUN --init nnclr_resnet18_small_cpu_starter
    nnclr pretrain resnet50_imagenet --data IMAGENET --out RUN --gpus 8

RUN gets `checkpoint.pt`, `log.jsonl`, `run.json`, `encoder/` (a model folder that everything else
loads) and `report.html`. SIGTERM and Ctrl-C save a checkpoint before they end the program, and a
resumed run is bit for bit the run that was never stopped.
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

from nnclr_hub.encoder.preprocess import Preprocessing
from nnclr_hub.progress import bar

from .assemble import build_learner, placed
from .checkpoint import check_same_run, digest, evaluation_changed, load_checkpoint, save_checkpoint
from .distributed import Ranks, joined
from .evaluation import Evaluation
from .evolution import record_neighbors
from .health import symptoms
from .interrupt import stop_signals
from .monitor import Monitor, rankme, stop_if_diverged
from .optimization import Schedule, make_optimizer
from .prepare import prepare
from .recipes import Recipe
from .report import write_report
from .run_folder import claim, disk_errors, export_encoder, write_about
from .starting_point import find_start, load_start, warn_if_worse
from .step import Stepper

SOME = 20  # last lines of the log that signs of trouble are looked for in


@dataclass(frozen=True)
class Outcome:
    """How a call of `pretrain` ended.

    finished: all epochs are done; false after a signal, or when the time was up.
    step: optimizer steps done so far.
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
    device: str | None = None,
    minutes: float | None = None,
    console: Console | None = None,
) -> Outcome:
    """Runs a recipe on images until its epochs are done, its time is up or a signal comes.

    Under torchrun every process calls this, and they work together.

    Args:
        name: the recipe's name, for the record.
        recipe: its settings.
        data: folders, or names of data sets; see `training.data.datasets` and `training.data.named`.
        out: the run folder.
        resume: go on with the checkpoint in `out`, or start there if there is none.
        init: source of an encoder to go on from.
        device: "cpu", "cuda", "cuda:1"; default the GPU if there is one.
        minutes: from now until the run saves a checkpoint and ends as after a signal, having taken one step at
            least; what saving takes comes on top.
        console: where the program talks; default the terminal's standard error.

    Raises:
        RunExists, NoImages, NoRoom, CheckpointError, TrainingDiverged, OutOfMemory, InvalidRequest, ModelError.
    """
    until = None if minutes is None else time.monotonic() + 60 * minutes
    with joined(device) as ranks, disk_errors(Path(out)):
        say = (console or Console(stderr=True)) if ranks.first else Console(quiet=True)
        return _pretrain(name, recipe, data, Path(out), resume, init, until, ranks, say)


def _pretrain(
    name: str,
    recipe: Recipe,
    data: Sequence[str | Path],
    out: Path,
    resume: bool,
    init: str | None,
    until: float | None,
    ranks: Ranks,
    say: Console,
) -> Outcome:
    # ------------------------------------------------------------------------ data
    start = find_start(init) if init else None
    claim(out, resume, ranks, say)
    ready = prepare(recipe, data, start, ranks, say)
    recipe, folders, files, batches = ready.recipe, ready.folders, ready.files, ready.batches
    steps_per_epoch = batches.steps_per_epoch
    steps = recipe.epochs * steps_per_epoch

    # ------------------------------------------------------------------------ network
    torch.manual_seed(recipe.seed)
    learner = build_learner(recipe)
    saved = load_checkpoint(out) if resume else None
    if start and saved is None:
        load_start(learner, start, say)
    learner = placed(learner, recipe, ranks)
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
        saved_at = step
        if step == steps and not evaluation_changed(saved, recipe):
            say.print(f"{out} is finished: {steps} steps; the encoder is in {out / 'encoder'}.", highlight=False)
            return Outcome(True, step, scores)
        say.print(f"going on at step {step} of {steps}", highlight=False)
    ranks.agree(pictures=len(batches), batch_size=recipe.batch_size, precision=recipe.precision, checkpoint=step)
    monitor = None
    if ranks.first:
        out.mkdir(parents=True, exist_ok=True)
        begun = None if saved is None else saved.get("unlogged")
        monitor = Monitor(out, resumed_at=step, begun=begun, tensorboard=recipe.tensorboard)
        write_about(out, name, recipe, folders, files, ranks, init, steps)
    preprocessing = Preprocessing(recipe.eval_size, recipe.eval_crop, recipe.mean, recipe.std)
    guess = learner.loss_of_a_guess(recipe.batch_size // recipe.accumulate)
    warned: set[str] = set()

    # ------------------------------------------------------------------------ once in a while
    evaluation = Evaluation(folders, preprocessing, recipe, ranks.where, say) if ranks.first else None

    def evaluate() -> None:
        if evaluation is not None and monitor is not None:
            scores.update(evaluation.scores(learner, out.name))
            monitor.record(step, step / steps_per_epoch, scores)
            evaluation.tell(step / steps_per_epoch, scores)
            warn_if_worse(scores, at_start, say)

    def save() -> None:
        if monitor is not None:
            state = {
                "recipe": name,
                "settings": dataclasses.asdict(recipe),
                "init": init,
                "files": digest(files),
                "step": step,
                "scores": scores,
                "at_start": at_start,
                "unlogged": monitor.unlogged,
                "learner": learner.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            save_checkpoint(out, state)
            figures: dict[str, Any] = {
                "metrics": {key: round(value, 4) for key, value in scores.items()},
                "measured_on": evaluation.pictures if evaluation is not None else {},
            }
            if (scored := monitor.last_scored(scores)) is not None:  # a stop saves weights without measuring them
                figures["measured_at_step"] = scored
            export_encoder(learner, preprocessing, recipe, out, name, step, steps, figures if scores else {})
            record_neighbors(out, learner, batches, recipe, step, step / steps_per_epoch)
            write_report([out], out / "report.html")
        ranks.wait()

    def warn(lines: Sequence[dict[str, float]]) -> None:
        for sign, sentence in (symptoms(lines, steps) or {}).items():
            if sign not in warned:
                say.print(f"[yellow]warning[/] {sentence}", highlight=False)
                warned.add(sign)

    if step == steps:  # trained already, but evaluated and exported otherwise than asked for now
        evaluate()
        save()
        return Outcome(True, step, scores)
    if start and saved is None:
        evaluate()
        at_start.update(scores)

    # ------------------------------------------------------------------------ go
    learner.train()
    stepper = Stepper(learner, optimizer, schedule, recipe, ranks, batches, steps)
    with stop_signals(patient=ranks.world > 1, until=until) as stop, bar(say, name, each=recipe.batch_size) as advance:
        while step < steps:
            started = time.perf_counter()
            batch = batches.at(step)
            waited = time.perf_counter() - started
            taken = stepper.take(batch, step)
            step += 1

            log_due = step % recipe.log_every == 0 or step == steps
            checkpoint_due = step % (recipe.checkpoint_every * steps_per_epoch) == 0 or step == steps
            # several ranks agree on stopping when they log: asking at each step would make the device wait
            stopping = ranks.any(stop.is_set()) if log_due or ranks.world == 1 else False
            if log_due or checkpoint_due or stopping:
                stop_if_diverged(learner, taken.loss.item(), step, out, saved_at)
            if monitor is not None:
                monitor.add(taken.figures, recipe.batch_size, waited + taken.augmented)
                if log_due:
                    monitor.log(step, step / steps_per_epoch, lr=taken.lr, rankme=rankme(taken.z1), **guess)
                    warn(monitor.lines[-SOME:])
                advance(step, steps)
            with monitor.paused() if monitor is not None else nullcontext():
                if checkpoint_due:
                    evaluate()
                if checkpoint_due or stopping:
                    save()
                    saved_at = step
            if stopping and step < steps:
                say.print(f"stopped at step {step} of {steps}; go on with --resume", highlight=False)
                break
    batches.close()
    if step == steps:
        if evaluation is not None:
            evaluation.warn_if_no_better_than_pixels(scores)
        say.print(f"done: the encoder is in {out / 'encoder'}, the report in {out / 'report.html'}", highlight=False)
    return Outcome(step == steps, step, scores)
