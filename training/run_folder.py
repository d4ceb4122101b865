"""The run folder: claim it, and write run.json and encoder/."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timm
import torch
from rich.console import Console
from torch import nn

import nnclr_hub
from nnclr_hub.cache import is_in_cache
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import ImageError, NoRoom, RunExists
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.method import Learner
from nnclr_hub.publish.export import export_model

from .checkpoint import NAME as CHECKPOINT
from .data.image_index import ImageIndex
from .distributed import Ranks
from .recipes import Recipe
from .run import Run

OURS = {CHECKPOINT, "run.json", "log.jsonl"}
REFUSALS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.EIO, errno.ENOENT),
}


def claim(out: Path, resume: bool, ranks: Ranks, console: Console) -> None:
    """Check that the run folder is usable before any long work starts.

    Raises:
        RunExists: the folder holds a run, or other files.
        NoRoom: the folder is not writable.
    """
    if out.is_file():
        raise NoRoom(f"--out {out} is a file; name a folder for the run.")
    held = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    ranks.wait()  # until all ranks have looked, because the first one fills it
    if held and not resume:
        raise RunExists(f"{out} is not empty; continue that run with --resume, or choose another folder with --out.")
    if held and not OURS & set(held):
        raise RunExists(f"{out} holds {held[0]}, but no run; name the folder of a run, or a new folder.")
    if ranks.first:
        if resume and held and CHECKPOINT not in held:
            console.print(f"{out} has no checkpoint; starting from the first step", highlight=False)
        existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
        try:
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(out)) from error


@contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    """Turn errors of a full or read-only disk into a NoRoom error; the last checkpoint stays intact.

    Raises:
        NoRoom: with the cause.
        ImageError: a file outside the run folder has gone.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        if is_in_cache(error.filename):
            place = f"{error.filename} cannot be written ({error.strerror})"
            raise NoRoom(f"{place}; set NNCLR_CACHE to another folder.") from error
        file = Path(os.fsdecode(error.filename or out)).absolute()
        if isinstance(error, FileNotFoundError) and not file.is_relative_to(out.absolute()):
            raise ImageError(f"{file} no longer exists; restore it, then continue with --resume.") from error
        raise NoRoom(
            f"{error.filename or out} cannot be written ({error.strerror}). Free some disk space or choose another "
            "--out, then continue with --resume; the last checkpoint is intact."
        ) from error


def write_run_json(
    run: Run, data: Sequence[Path | str], files: ImageIndex, start: str | None, plugins: Mapping[str, str]
) -> None:
    """Write RUN/run.json, which the report shows at the end of the page."""
    recipe, where = run.recipe, run.ranks.where
    about = {
        **({"verdict": run.verdict.record} if run.verdict else {}),
        "recipe": recipe.name,
        "init": start,
        "steps": run.steps,
        "data": [folder.name for folder in map(Path, data)],
        "images": len(files),
        "scored_on": run.tested,
        "device": str(where) if where.type == "cpu" else torch.cuda.get_device_name(where),
        "processes": run.ranks.world,
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "timm": timm.__version__,
            "nnclr_hub": nnclr_hub.__version__,
        },
        **({"plugins": dict(plugins)} if plugins else {}),
        **{key: getattr(recipe, key) for key, _, _ in recipe.settings()},
    }
    replace_file(run.out / "run.json", json.dumps(about, indent=2) + "\n")


def keep_milestone(out: Path, epoch: int) -> None:
    """Keep the checkpoint and the encoder in RUN/kept/epoch-N, a run folder from which `--resume` continues."""
    kept, half = out / "kept" / f"epoch-{epoch}", out / "kept" / f"epoch-{epoch}.part"
    for folder in (kept, half):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(out / "encoder", half / "encoder")
    shutil.copyfile(out / CHECKPOINT, half / CHECKPOINT)
    half.rename(kept)


def network(learner: Learner, recipe: Recipe) -> tuple[nn.Module, nn.Module]:
    """Return the backbone and projection that the recipe evaluates and exports: online, or the momentum encoder's."""
    if recipe.encoder == "momentum" and learner.momentum is not None:
        return learner.target[0], learner.target[1]
    return learner.backbone, learner.projection


def export_encoder(
    learner: Learner,
    preprocessing: Preprocessing,
    recipe: Recipe,
    out: Path,
    step: int,
    steps: int,
    scores: Mapping[str, Any],
) -> None:
    """Write RUN/encoder/: the backbone as a model folder, with the heads.

    `scores` has the keys "metrics", "measured_on" (digests of the sets), "splits" (names of their parts that score) and
    "measured_at_step".
    """
    backbone, projection = network(learner, recipe)
    heads = {"projection": projection, "prediction": learner.prediction}
    export_model(
        backbone,
        out / "encoder",
        architecture=recipe.backbone,
        model_args=recipe.model_args,
        preprocessing=preprocessing,
        heads={name: head for name, head in heads.items() if head.state_dict()},
        provenance={
            "recipe": recipe.name,
            "method": recipe.method,
            "encoder": recipe.encoder,
            "step": step,
            "steps": steps,
            "epochs": recipe.epochs,
            "images_seen": step * recipe.batch_size,
            "seed": recipe.seed,
            "temperature": recipe.temperature,
            "support_set_size": recipe.queue_size if learner.support_set is not None else 0,
            **scores,
        },
    )
