"""The pretraining program, top to bottom.

    nnclr pretrain small_cpu --data PHOTOS --out RUN                    # a real run on two CPU cores
    nnclr pretrain small_cpu --data PHOTOS --out RUN --resume           # go on after a stop
    nnclr pretrain resnet50_imagenet --data IMAGENET --out RUN --set batch_size=512

RUN gets `checkpoint.pt`, `log.jsonl`, `run.json`, `encoder/` (a model folder that everything else
loads) and `report.html`. SIGTERM and Ctrl-C save a checkpoint before they end the program, and a
resumed run is bit for bit the run that was never stopped.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.preprocess import Preprocessing
from nnclr_hub.errors import RunExists
from nnclr_hub.progress import bar

from .assemble import build_learner, choose_precision, fit_to_data
from .checkpoint import check_same_run, digest, evaluation_changed, load_checkpoint, save_checkpoint
from .data.augment import AUGMENTATIONS, IMAGENET_MEAN, IMAGENET_STD, make_view
from .data.datasets import epoch_order, evaluation_sets, training_files
from .data.image_pack import build_pack, resident
from .evals.knn import KNN
from .interrupt import stop_signals
from .monitor import Monitor, measure_step, rankme, stop_if_diverged
from .optimisation import make_optimizer, make_schedule
from .recipes import Recipe
from .report import write_report
from .run_folder import export_encoder, write_about


@dataclass(frozen=True)
class Outcome:
    """How a call of `pretrain` ended.

    finished: all epochs are done; false after a signal.
    step: optimizer steps done so far.
    scores: the last evaluation, {"knn20/NAME": accuracy in [0, 1]}.
    """

    finished: bool
    step: int
    scores: dict[str, float]


def pretrain(
    name: str,
    recipe: Recipe,
    data: Sequence[Path],
    out: Path,
    *,
    resume: bool = False,
    device: str | None = None,
    console: Console | None = None,
) -> Outcome:
    """Runs a recipe on folders of pictures until its epochs are done or a signal comes.

    Args:
        name: the recipe's name, for the record.
        recipe: its settings.
        data: folders; see `training.data.datasets` for what is read of them.
        out: the run folder.
        resume: go on with the checkpoint in `out`, or start there if there is none.
        device: "cpu", "cuda", "cuda:1"; default the GPU if there is one.
        console: where the program talks; default the terminal's standard error.

    Raises:
        RunExists, NoImages, CheckpointError, TrainingDiverged.
    """
    say = console or Console(stderr=True)
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))

    # ------------------------------------------------------------------------ data
    out = Path(out)
    if not resume and out.exists() and any(out.iterdir()):
        raise RunExists(f"{out} is not empty: go on with that run by --resume, or name another folder with --out.")
    files = training_files(data)
    with bar(say, "decoding") as advance:
        pack = build_pack(files.paths, recipe.pack_size, progress=advance)
    files = files.keep(pack.kept)
    for path, reason in pack.broken:
        say.print(f"[yellow]skipped[/] {path}: {reason}", highlight=False)
    recipe = fit_to_data(recipe, len(pack), say)
    steps_per_epoch = len(pack) // recipe.batch_size
    steps = recipe.epochs * steps_per_epoch

    # ------------------------------------------------------------------------ network
    recipe = dataclasses.replace(recipe, precision=choose_precision(recipe.precision, where))
    torch.manual_seed(recipe.seed)
    learner = build_learner(recipe).to(where).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = make_optimizer(learner, recipe, recipe.batch_size)
    schedule = make_schedule(optimizer, recipe, steps, steps_per_epoch)
    draws = torch.Generator().manual_seed(recipe.seed)  # every draw of the augmentation

    # ------------------------------------------------------------------------ resume
    out.mkdir(parents=True, exist_ok=True)
    step, scores = 0, {}
    if resume and (saved := load_checkpoint(out)) is not None:
        check_same_run(saved, name, recipe, files, out)
        learner.load_state_dict(saved["learner"])
        optimizer.load_state_dict(saved["optimizer"])
        draws.set_state(saved["draws"])
        torch.set_rng_state(saved["torch_rng"])
        step, scores = saved["step"], saved["scores"]
        if step == steps and not evaluation_changed(saved, recipe):
            say.print(f"{out} is finished: {steps} steps; the encoder is in {out / 'encoder'}.", highlight=False)
            return Outcome(True, step, scores)
        say.print(f"going on at step {step} of {steps}", highlight=False)
    monitor = Monitor(out, resumed_at=step)
    write_about(out, name, recipe, data, files, where)

    # ------------------------------------------------------------------------ evaluation
    preprocessing = Preprocessing(recipe.eval_size, recipe.eval_crop, IMAGENET_MEAN, IMAGENET_STD)
    judges = []
    for one in evaluation_sets(data):
        with bar(say, f"decoding {one.name} for 20-NN") as advance:
            judges.append(KNN(one, preprocessing, advance))

    def evaluate() -> None:
        encoder = Encoder(learner.backbone, preprocessing, name=out.name, device=where)
        scores.update(score for judge in judges for score in judge.run(encoder))
        learner.train()
        if scores:
            monitor.record(step, step / steps_per_epoch, scores)
            shown = "  ".join(f"{key} {value:.3f}" for key, value in scores.items())
            say.print(f"epoch {step / steps_per_epoch:g}  {shown}", highlight=False)

    def save() -> None:
        state = {
            "recipe": name,
            "settings": dataclasses.asdict(recipe),
            "files": digest(files),
            "step": step,
            "scores": scores,
            "learner": learner.state_dict(),
            "optimizer": optimizer.state_dict(),
            "draws": draws.get_state(),
            "torch_rng": torch.get_rng_state(),
        }
        save_checkpoint(out, state)
        export_encoder(learner, preprocessing, recipe, out, name, step, steps, scores)
        write_report(out)

    if step == steps:  # trained already, but evaluated and exported otherwise than asked for now
        evaluate()
        save()
        return Outcome(True, step, scores)

    # ------------------------------------------------------------------------ go
    pixels = resident(pack, where)
    aspect = torch.from_numpy(pack.aspect)
    labels = torch.from_numpy(files.labels)
    first, second = AUGMENTATIONS[recipe.augmentation]
    order: Tensor | None = None
    learner.train()
    with stop_signals() as stop, bar(say, name, each=recipe.batch_size) as advance:
        while step < steps:
            epoch, place = divmod(step, steps_per_epoch)
            if place == 0 or order is None:
                order = epoch_order(len(pack), recipe.seed, epoch)
            started = time.perf_counter()
            rows = order[place * recipe.batch_size : (place + 1) * recipe.batch_size]
            images = pixels[rows.to(pixels.device)].to(where)
            x1 = make_view(images, aspect[rows], first, recipe.image_size, draws)
            x2 = make_view(images, aspect[rows], second, recipe.image_size, draws)
            ids, classes = rows.to(where), labels[rows].to(where)
            waited = time.perf_counter() - started

            schedule.step_update(step)
            with torch.autocast(where.type, torch.bfloat16, enabled=recipe.precision == "bf16"):
                share = recipe.neighbour_share(step / steps)
                result = learner(x1, x2, ids=ids, labels=classes, neighbour_share=share)
            optimizer.zero_grad(set_to_none=True)
            result.loss.backward()
            optimizer.step()
            monitor.add(measure_step(result, learner.support_set, classes), len(rows), waited)
            learner.enqueue(result, ids=ids, labels=classes)
            step += 1

            # -------------------------------------------------------------- once in a while
            log_due = step % recipe.log_every == 0 or step == steps
            checkpoint_due = step % (recipe.checkpoint_every * steps_per_epoch) == 0 or step == steps
            if log_due or checkpoint_due or stop.is_set():
                stop_if_diverged(result.loss.item(), step, out)  # before anything of it is written
            if log_due:
                lr = optimizer.param_groups[0]["lr"]
                monitor.log(step, step / steps_per_epoch, lr=lr, rankme=rankme(result.z1))
            advance(step, steps)
            if checkpoint_due:
                evaluate()
            if checkpoint_due or stop.is_set():
                save()
            if stop.is_set() and step < steps:
                say.print(f"stopped at step {step} of {steps}; go on with --resume", highlight=False)
                return Outcome(False, step, scores)
    say.print(f"done: the encoder is in {out / 'encoder'}, the report in {out / 'report.html'}", highlight=False)
    return Outcome(True, step, scores)
