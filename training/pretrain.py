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
import json
import platform
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import timm
import torch
from rich.console import Console
from torch import Tensor

import nnclr_hub
from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.preprocess import Preprocessing
from nnclr_hub.errors import CheckpointError, NoImages, RunExists, TrainingDiverged
from nnclr_hub.method import METHODS, Learner, PredictionHead, ProjectionHead, SupportSet
from nnclr_hub.progress import bar
from nnclr_hub.publish.export import export_model

from .checkpoint import load_checkpoint, save_checkpoint
from .data.augment import AUGMENTATIONS, IMAGENET_MEAN, IMAGENET_STD, make_view
from .data.datasets import ImageFiles, evaluation_sets, training_files
from .data.image_pack import ImagePack, build_pack
from .evals.knn import KNN
from .monitor import Monitor, measure_step, rankme
from .optimisation import make_optimizer, make_schedule
from .recipes import Recipe
from .report import write_report

# settings that leave the weights alone, and so may differ between the parts of one run
FREE = ("eval_size", "eval_crop", "log_every", "checkpoint_every")


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
                stop_if_diverged(float(result.loss), step, out)  # before anything of it is written
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


# ------------------------------------------------------------------------------ before the loop


def fit_to_data(recipe: Recipe, images: int, say: Console) -> Recipe:
    """Shrinks the batch so that an epoch has at least four steps, and the queue to the number of pictures."""
    if images < 8:
        raise NoImages(f"{images} readable pictures are too few to learn from: give at least 8, better some thousands.")
    changes = {}
    if recipe.batch_size > images // 4:
        changes["batch_size"] = 1 << (images // 4).bit_length() - 1  # a power of two
    if recipe.queue_size > images:
        changes["queue_size"] = images
    for setting, value in changes.items():
        say.print(
            f"{setting}: {getattr(recipe, setting)} is too much for {images} pictures, using {value}", highlight=False
        )
    return dataclasses.replace(recipe, **changes)


def choose_precision(precision: str, where: torch.device) -> str:
    """bf16 where the hardware multiplies it; elsewhere it would be slower than fp32."""
    if precision != "auto":
        return precision
    if where.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    features = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return "bf16" if features.get("avx512_bf16") or features.get("amx_bf16") else "fp32"


def build_learner(recipe: Recipe) -> Learner:
    """Backbone, heads and support set as the recipe and its method say."""
    method = METHODS[recipe.method]
    if recipe.prediction != "method":
        method = dataclasses.replace(method, prediction=recipe.prediction)
    backbone = create_backbone(recipe.backbone, model_args=recipe.model_args, image_size=recipe.image_size)
    d = recipe.projection_dim
    return Learner(
        backbone,
        method,
        ProjectionHead(int(backbone.num_features), recipe.projection_hidden, d),  # type: ignore[arg-type]
        PredictionHead(d, recipe.prediction_hidden) if method.prediction == "paper" else None,
        SupportSet(recipe.queue_size, d, mask_own=recipe.mask_own, seed=recipe.seed)
        if method.target == "neighbour"
        else None,
        temperature=recipe.temperature,
        transposed_term=recipe.transposed_term,
    )


def check_same_run(saved: dict[str, Any], name: str, recipe: Recipe, files: ImageFiles, out: Path) -> None:
    """Refuses a checkpoint that this call would continue as something else."""
    now = json.loads(json.dumps(dataclasses.asdict(recipe)))
    before = json.loads(json.dumps(saved["settings"]))
    changed = [
        f"{key} was {before.get(key)}, is {now[key]}" for key in now if key not in FREE and before.get(key) != now[key]
    ]
    if saved["recipe"] != name:
        changed.insert(0, f"recipe was {saved['recipe']}, is {name}")
    if saved["files"] != digest(files):
        changed.append("the pictures are not the same")
    if changed:
        raise CheckpointError(
            f"The checkpoint in {out} is of another run ({'; '.join(changed)}): resume it with its own settings, "
            "or name another folder with --out."
        )


def evaluation_changed(saved: dict[str, Any], recipe: Recipe) -> bool:
    """Whether the encoder is to take its pictures otherwise than the checkpoint's was."""
    return any(saved["settings"].get(name) != getattr(recipe, name) for name in ("eval_size", "eval_crop"))


def digest(files: ImageFiles) -> list[Any]:
    """What must not change between the parts of one run: number, first and last picture."""
    return [len(files.paths), files.paths[0].name, files.paths[-1].name]


def write_about(
    out: Path, name: str, recipe: Recipe, data: Sequence[Path], files: ImageFiles, where: torch.device
) -> None:
    """RUN/run.json: what the report shows at its foot."""
    about = {
        "recipe": name,
        "data": [folder.name for folder in map(Path, data)],
        "pictures": len(files.paths),
        "device": str(where) if where.type == "cpu" else torch.cuda.get_device_name(where),
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "timm": timm.__version__,
            "nnclr_hub": nnclr_hub.__version__,
        },
        **dataclasses.asdict(recipe),
    }
    (out / "run.json").write_text(json.dumps(about, indent=2) + "\n")


def resident(pack: ImagePack, where: torch.device) -> Tensor:
    """The pixels on the device if they take less than half of its free memory, else memory-mapped."""
    pixels = torch.from_numpy(pack.pixels)
    if where.type == "cuda" and pixels.numel() < torch.cuda.mem_get_info(where)[0] / 2:
        return pixels.to(where)
    return pixels


# ------------------------------------------------------------------------------ in the loop


def epoch_order(images: int, seed: int, epoch: int) -> Tensor:
    """A permutation that depends on seed and epoch alone, so that a resumed epoch goes on in the same order."""
    key = int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0] >> 1)
    return torch.randperm(images, generator=torch.Generator().manual_seed(key))


def stop_if_diverged(loss: float, step: int, out: Path) -> None:
    """Raises TrainingDiverged if the loss is not finite."""
    if not np.isfinite(loss):
        raise TrainingDiverged(
            f"The loss is {loss} at step {step}: lower base_lr; the last good checkpoint, if there is one, is in {out}."
        )


def export_encoder(
    learner: Learner,
    preprocessing: Preprocessing,
    recipe: Recipe,
    out: Path,
    name: str,
    step: int,
    steps: int,
    scores: dict[str, float],
) -> None:
    """RUN/encoder/: the backbone as a model folder, with the heads beside it and its 20-NN in it."""
    heads = {"projection": learner.projection}
    if learner.method.prediction != "none":
        heads["prediction"] = learner.prediction
    export_model(
        learner.backbone,
        out / "encoder",
        architecture=recipe.backbone,
        model_args=recipe.model_args,
        preprocessing=preprocessing,
        heads=heads,
        provenance={
            "recipe": name,
            "method": recipe.method,
            "step": step,
            "steps": steps,
            "epochs": recipe.epochs,
            "seed": recipe.seed,
            "temperature": recipe.temperature,
            "support_set_size": recipe.queue_size if learner.support_set is not None else 0,
            "metrics": {key: round(value, 4) for key, value in scores.items()},
        },
    )


@contextmanager
def stop_signals():
    """An event that SIGTERM or Ctrl-C sets; the loop ends at the next step. A second one ends the program at once."""
    event = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        event.set()
        for one, handler in before.items():
            signal.signal(one, handler)

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before.update({one: signal.signal(one, handle) for one in (signal.SIGTERM, signal.SIGINT)})
    try:
        yield event
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
