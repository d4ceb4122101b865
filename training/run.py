"""A run in progress, as its parts and the callbacks see it, and the files of its folder but logs and checkpoints."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from nnclr_hub.cache import is_in_cache
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.features import FeatureSource
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import ImageError, NoRoom, RunExists
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.hub.layout import HEADS, read_weights
from nnclr_hub.hub.sources import resolve
from nnclr_hub.method import Learner
from nnclr_hub.publish.export import export_model
from nnclr_hub.publish.provenance import DIRTY, NO_LICENSE, parent_record

from .data.batches import Batches
from .data.image_index import ImageIndex
from .distributed import Ranks
from .evals.results import versions
from .recipes import Recipe
from .verdict import TRAINED, Verdict

ROOT = Path(__file__).parents[1]
CHECKPOINT = "checkpoint.pt"
OURS = {CHECKPOINT, "run.json", "log.jsonl"}
REFUSALS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.EIO, errno.ENOENT),
}


@dataclass
class Run:
    """A run in progress.

    out: the run folder.
    recipe: complete, with sizes that fit the data.
    learner: on its device.
    batches: batches of the images of the run.
    steps: number of steps of the whole run. With a time limit, it and the epochs of the recipe may change, see
        `TimedEpochs`.
    step: number of completed steps.
    scaler: scaler of the loss, with precision fp16.
    scores: scores of the last evaluation, {"knn20/NAME": accuracy in [0, 1], "linear/NAME": ...}.
    tested: number of images that are scored, {"NAME": number}.
    """

    out: Path
    recipe: Recipe
    learner: Learner
    optimizer: torch.optim.Optimizer
    batches: Batches
    ranks: Ranks
    steps: int
    step: int = 0
    scaler: torch.amp.GradScaler = field(init=False)
    scores: dict[str, float] = field(default_factory=dict)
    tested: dict[str, int] = field(default_factory=dict)
    verdict: Verdict | None = None
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        # gradients in fp16 would underflow; without fp16 the scaler does nothing
        self.scaler = torch.amp.GradScaler(self.ranks.where.type, enabled=self.recipe.precision == "fp16")

    @property
    def epoch(self) -> float:
        """Completed passes over the images."""
        return self.step / self.batches.steps_per_epoch

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.steps

    @property
    def network(self) -> tuple[nn.Module, nn.Module]:
        """The backbone and projection that are evaluated and exported: online, or the momentum encoder's."""
        if self.recipe.encoder == "momentum" and self.learner.momentum is not None:
            return self.learner.target[0], self.learner.target[1]
        return self.learner.backbone, self.learner.projection

    def plan(self, recipe: Recipe, steps: int) -> None:
        """Change the epochs of the recipe and the number of steps during the run."""
        self.recipe, self.steps, self.batches.steps = recipe, steps, steps

    def stop(self) -> None:
        """Stop at the next step with a checkpoint, as Ctrl-C does; `--resume` continues."""
        self.stopping.set()


@dataclass(frozen=True)
class Origin:
    """Where a run comes from, for its records.

    folders: the data.
    files: the images that it learns from.
    init: source of the encoder that it starts from, if any.
    terms: terms of the images, if they are stated.
    plugins: {file name: sha256}.
    teacher: source of the encoder that gives the targets, if any.
    """

    folders: Sequence[Path | str]
    files: ImageIndex
    init: str | None = None
    terms: str | None = None
    plugins: Mapping[str, str] = field(default_factory=dict)
    teacher: FeatureSource | None = None

    def lineage(self) -> dict[str, Any]:
        """Return "data", "data_images", "data_terms", "parents" and "commit", as far as they are known."""
        found: dict[str, Any] = {"data": [Path(one).resolve().name for one in self.folders]}
        found["data_images"] = len(self.files)
        if self.terms:
            found["data_terms"] = self.terms
        parents = [] if self.init is None else [parent_record(self.init, load_encoder(self.init, device="cpu"))]
        if isinstance(self.teacher, Encoder):
            parents.append(parent_record(self.teacher.name, self.teacher))
        elif self.teacher is not None:
            about = {"source": self.teacher.name, "fingerprint": self.teacher.fingerprint, "license": NO_LICENSE}
            parents.append(about)
        if parents:
            found["parents"] = parents
        return {**found, **({"commit": commit} if (commit := commit_of_code()) else {})}


@cache
def commit_of_code() -> str | None:
    """Return the commit of the checkout that this code was imported from; None for an installed package.

    It ends with "-dirty" if tracked files have uncommitted changes.
    """
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", f"--dirty={DIRTY}"]  # no tags, whole hash
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


# ------------------------------------------------------------------------------ the folder


def claim(out: Path, resume: bool, ranks: Ranks, console: Console) -> None:
    """Check that the run folder is usable before any long work starts."""
    if out.is_file():
        raise NoRoom(f"--out {out} is a file; name a folder for the run.")
    held = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    ranks.wait()  # until all ranks have looked, because the first one fills it
    if held and not resume:
        raise RunExists(f"{out} is not empty; continue that run with --resume, or choose another folder with --out.")
    if held and not OURS & set(held):
        raise RunExists(f"{out} holds {held[0]}, but no run; name the folder of a run, or a new folder.")
    if ranks.first:
        if resume and CHECKPOINT not in held:
            console.print(f"{out} has no checkpoint; starting from the first step", highlight=False)
        existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
        try:
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(out)) from error


@contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    """Turn errors of a full or read-only disk into a NoRoom error; the last checkpoint stays intact."""
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


def write_run_json(run: Run, origin: Origin) -> None:
    """Write RUN/run.json, which the report shows at the end of the page."""
    recipe, where = run.recipe, run.ranks.where
    about = {
        **({"verdict": run.verdict.record} if run.verdict else {}),
        "recipe": recipe.name,
        "init": origin.init,
        "steps": run.steps,
        "data": [folder.name for folder in map(Path, origin.folders)],
        "images": len(origin.files),
        "scored_on": run.tested,
        "device": str(where) if where.type == "cpu" else torch.cuda.get_device_name(where),
        "processes": run.ranks.world,
        "threads": torch.get_num_threads(),
        "versions": versions(),
        **({"plugins": dict(origin.plugins)} if origin.plugins else {}),
        **recipe.values(),
    }
    replace_file(run.out / "run.json", json.dumps(about, indent=2) + "\n")


def export_encoder(run: Run, about: Mapping[str, Any]) -> None:
    """Write RUN/encoder/: the backbone as a model folder, with the heads.

    `about` has the lineage and, if there are scores, "metrics", "measured_on" (digests of the sets) and "splits" (names
    of their parts that score).
    """
    recipe, learner = run.recipe, run.learner
    backbone, projection = run.network
    heads = {"projection": projection, "prediction": learner.prediction}
    export_model(
        backbone,
        run.out / "encoder",
        architecture=recipe.backbone,
        model_args=recipe.model_args,
        preprocessing=recipe.preprocessing,
        heads={name: head for name, head in heads.items() if head.state_dict()},
        provenance={
            "recipe": recipe.name,
            **{name: getattr(recipe, name) for name in ("method", "encoder", "epochs", "seed", "temperature")},
            "step": run.step,
            "steps": run.steps,
            "images_seen": run.step * recipe.batch_size,
            "support_set_size": recipe.queue_size if learner.support_set is not None else 0,
            **about,
            **({"verdict": run.verdict.record} if run.verdict else {}),
        },
        graph=False,
    )


def keep_parent(run: Run, parent: Encoder) -> None:
    """Copy RUN/encoder to RUN/trained, and replace it by the encoder that the run started from, with its heads."""
    assert run.verdict is not None
    half = run.out / f"{TRAINED}.part"
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(run.out / "encoder", half)
    half.rename(run.out / TRAINED)
    heads: dict[str, dict[str, Tensor]] = {}
    folder = resolve(run.verdict.kept).folder
    if folder is not None and (folder / HEADS).is_file():
        for name, value in read_weights(folder, HEADS).items():
            head, _, key = name.partition(".")
            heads.setdefault(head, {})[key] = value
    recipe, verdict = run.recipe, dataclasses.replace(run.verdict, below_parent=False)
    export_model(
        parent.backbone,
        run.out / "encoder",
        architecture=recipe.backbone,
        model_args=recipe.model_args,
        preprocessing=recipe.preprocessing,
        heads=heads,
        provenance={"parents": [parent_record(parent.name, parent)], "verdict": verdict.record},
        graph=False,
    )


def keep_milestone(run: Run) -> None:
    """Keep the checkpoint and the encoder in RUN/kept/epoch-N, a run folder from which `--resume` continues."""
    kept, half = (run.out / "kept" / f"epoch-{round(run.epoch)}{end}" for end in ("", ".part"))
    for folder in (kept, half):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run.out / "encoder", half / "encoder")
    shutil.copyfile(run.out / CHECKPOINT, half / CHECKPOINT)
    half.rename(kept)
