"""Checkpoints: the complete state of a run, so that a resumed run equals one that never stopped.

RUN/checkpoint.pt is written to a temporary file, synced and renamed. A full disk or a kill during the write leaves the
previous checkpoint intact.

A run may also continue with more epochs, or after images were added to its folders or removed from them. The rows of
the support set, the place in the schedule and the lines of the log refer to images and steps by number; they are
converted, so the run continues at the same epoch.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from nnclr_hub.errors import CheckpointError
from nnclr_hub.file_replacement import replace_file

from .data.image_index import ImageIndex
from .monitor import LOG, NEIGHBORS, Metrics, read_log
from .recipes import Recipe
from .run import CHECKPOINT, Run
from .setup import EVALUATED, FREE, SHORTENED, Setup

LEAST_SAME = 0.5  # share of the images of a checkpoint that must be among those of the resumed run
UNKNOWN = -1  # id and label of a row whose image was removed
PARTS = {"recipe", "settings", "init", "terms", "files", "steps_per_epoch", "step", "unlogged", "learner", "scaler"}


def state_of(run: Run, setup: Setup, unlogged: Metrics, references: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a run for `save_checkpoint`."""
    files = setup.files
    return {
        "recipe": run.recipe.name,
        "settings": dataclasses.asdict(run.recipe),
        "init": setup.init,
        "terms": run.terms,
        "teacher": setup.teacher.fingerprint if setup.teacher else None,
        "files": files.digest,
        **({"images": torch.from_numpy(files.fingerprints)} if len(files.fingerprints) else {}),
        "steps_per_epoch": run.batches.steps_per_epoch,
        "step": run.step,
        "scores": run.scores,
        "references": references,
        "unlogged": unlogged,
        "learner": run.learner.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "scaler": run.scaler.state_dict(),
    }


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write FOLDER/checkpoint.pt."""
    half = folder / (CHECKPOINT + ".part")
    try:
        with half.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, folder / CHECKPOINT)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        half.unlink(missing_ok=True)
        reason = (error.strerror if isinstance(error, OSError) else None) or "the disk accepted only a part of it"
        raise CheckpointError(
            f"The checkpoint could not be written to {folder} ({reason}). Free some disk space, then continue with "
            "--resume."
        ) from error


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return the state passed to `save_checkpoint`, with tensors on the CPU, or None without a checkpoint."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{path} is damaged ({type(error).__name__}). "
            "Delete it and repeat the command with --resume; training then starts from step 0."
        ) from error


# ------------------------------------------------------------------------------ --resume


def check_parts(saved: Mapping[str, Any], out: Path) -> None:
    """Reject a checkpoint that lacks parts or settings, because another version wrote it."""
    if not saved.keys() >= PARTS or not saved["settings"].keys() >= {name for name, _, _ in Recipe.settings()}:
        raise CheckpointError(
            f"The checkpoint in {out} was written by another version of nnclr_hub, which has other settings. Resume it "
            "with that version, or restart with another --out."
        )


def check_same_run(saved: Mapping[str, Any], setup: Setup, out: Path) -> None:
    """Reject a checkpoint that belongs to a different run."""
    recipe, files, teacher = setup.recipe, setup.files, setup.teacher
    now = json.loads(json.dumps(dataclasses.asdict(recipe)))
    before = json.loads(json.dumps(saved["settings"]))
    done = saved["step"] / saved["steps_per_epoch"]
    if now["epochs"] < before["epochs"] and now["epochs"] <= done:
        raise CheckpointError(f"The run in {out} is at epoch {done:.4g} already; choose more with --set epochs=N.")
    shortened = any(one["warmup_epochs"] == one["epochs"] / SHORTENED for one in (before, now))
    free = {*FREE, *(["warmup_epochs"] if shortened and now["epochs"] != before["epochs"] else [])}
    changed = [
        f"{key} was {before.get(key)}, is {now[key]}" for key in now if key not in free and before.get(key) != now[key]
    ]
    if saved["recipe"] != recipe.name:
        changed.insert(0, f"recipe was {saved['recipe']}, is {recipe.name}")
    if saved["init"] != setup.init:
        changed.append(f"--init was {saved['init']}, is {setup.init}")
    if saved.get("teacher") != (teacher.fingerprint if teacher else None):
        changed.append("the weights of the teacher have changed")
    if saved["files"] != files.digest:
        same = np.isin(saved["images"].numpy(), files.fingerprints) if "images" in saved else np.zeros(1)
        if same.mean() < LEAST_SAME:
            changed.append(f"the images have changed: {same.sum():.0f} of {len(same)} are still there")
    if changed:
        raise CheckpointError(
            f"The checkpoint in {out} belongs to a different run ({'; '.join(changed)}). Resume it with its original "
            "settings, or choose another folder with --out."
        )


def evaluation_changed(saved: Mapping[str, Any], recipe: Recipe) -> bool:
    """Return whether the exported encoder's input or network differs from the checkpoint's."""
    return any(saved["settings"][name] != getattr(recipe, name) for name in EVALUATED)


def restore(run: Run, saved: Mapping[str, Any], files: ImageIndex, console: Console) -> None:
    """Load learner, optimizer, step and scores of a checkpoint, converted to the present images and epochs."""
    learner, step = dict(saved["learner"]), saved["step"]
    if (epochs := saved["settings"]["epochs"]) != run.recipe.epochs:
        text = f"epochs: {epochs:g} before, {run.recipe.epochs:g} now; the learning rate follows the new schedule"
        console.print(text)
    if "images" in saved and not np.array_equal(before := saved["images"].numpy(), now := files.fingerprints):
        places = dict(zip(now.tolist(), range(len(now)), strict=True))
        moved = torch.tensor([places.get(one, UNKNOWN) for one in before.tolist()])
        added, removed = len(now) - int((moved >= 0).sum()), int((moved < 0).sum())
        console.print(f"images: {added} added and {removed} removed since the checkpoint")
        if "support_set.ids" in learner:
            labels = torch.from_numpy(np.asarray(files.labels, np.int64))
            ids = learner["support_set.ids"]
            new = torch.where(ids >= 0, moved[ids.clamp(min=0)], UNKNOWN)
            learner["support_set.ids"] = new
            learner["support_set.labels"] = torch.where(new >= 0, labels[new.clamp(min=0)], UNKNOWN)
        step = round(step / saved["steps_per_epoch"] * run.batches.steps_per_epoch)
        if run.ranks.first and step < run.steps:
            per_epoch = run.batches.steps_per_epoch
            lines = [{**line, "step": round(line["epoch"] * per_epoch)} for line in read_log(run.out)]
            replace_file(run.out / LOG, "".join(json.dumps(line) + "\n" for line in lines))
            (run.out / NEIGHBORS).unlink(missing_ok=True)
    run.learner.load_state_dict(learner)
    run.optimizer.load_state_dict(saved["optimizer"])
    if scaler := saved["scaler"]:
        run.scaler.load_state_dict(scaler)
    run.step, run.scores = step, saved["scores"]
