"""`--resume` with more epochs, or after images were added to the folders or removed from them.

The rows of the support set, the place in the schedule and the lines of the log refer to images and steps by number.
They are converted, so the run continues at the same epoch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from nnclr_hub.file_replacement import replace_file

from .checkpoint import FREE
from .data.image_index import ImageIndex
from .monitor import LOG, read_log
from .neighbor_history import NAME as NEIGHBORS
from .recipes import Recipe
from .run import Run

# settings that depend on the number of images; those of the start hold for the whole run
FITTED = ("batch_size", "queue_size", "k", "warmup_epochs")
UNKNOWN = -1  # id and label of a row whose image was removed


def choices_of(saved: Mapping[str, Any], recipe: Recipe) -> Recipe:
    """Return the recipe `auto` with what it chose when the run began: it might choose otherwise for other images."""
    names = [name for name, _, _ in recipe.settings() if name not in (*FREE, *recipe.fixed) or name == "epochs"]
    before = {name: saved["settings"][name] for name in names}
    if "epochs" in recipe.fixed:
        del before["epochs"]
    return dataclasses.replace(recipe, **before)


def sizes_of(saved: Mapping[str, Any], asked: Recipe, fitted: Recipe, images: int) -> Recipe:
    """Return the recipe with the sizes of the run's start, if the present settings allow them.

    Args:
        asked: before its sizes were fitted to the images.
        fitted: after that.
        images: their number; a batch of the start must not be larger.
    """
    before = saved["settings"]
    most = {"batch_size": images}
    names = [name for name in FITTED if before[name] <= min(getattr(asked, name), most.get(name, before[name]))]
    return dataclasses.replace(fitted, **{name: before[name] for name in names})


def restore(run: Run, saved: Mapping[str, Any], files: ImageIndex, console: Console) -> None:
    """Load learner, optimizer, step and scores of a checkpoint, converted to the present images and epochs."""
    learner, step = dict(saved["learner"]), saved["step"]
    if (epochs := saved["settings"]["epochs"]) != run.recipe.epochs:
        text = f"epochs: {epochs:g} before, {run.recipe.epochs:g} now; the learning rate follows the new schedule"
        console.print(text, highlight=False)
    if "images" in saved and not np.array_equal(before := saved["images"].numpy(), now := files.fingerprints):
        places = dict(zip(now.tolist(), range(len(now)), strict=True))
        moved = torch.tensor([places.get(one, UNKNOWN) for one in before.tolist()])
        added, removed = len(now) - int((moved >= 0).sum()), int((moved < 0).sum())
        console.print(f"images: {added} added and {removed} removed since the checkpoint", highlight=False)
        if "support_set.ids" in learner:
            labels = torch.from_numpy(np.asarray(files.labels, np.int64))
            ids = learner["support_set.ids"]
            new = torch.where(ids >= 0, moved[ids.clamp(min=0)], UNKNOWN)
            learner["support_set.ids"] = new
            learner["support_set.labels"] = torch.where(new >= 0, labels[new.clamp(min=0)], UNKNOWN)
        step = round(step / saved["steps_per_epoch"] * run.batches.steps_per_epoch)
        if run.ranks.first and step < run.steps:
            _convert_log(run.out, run.batches.steps_per_epoch)
    run.learner.load_state_dict(learner)
    run.optimizer.load_state_dict(saved["optimizer"])
    if scaler := saved["scaler"]:
        run.scaler.load_state_dict(scaler)
    run.step, run.scores = step, saved["scores"]


def _convert_log(out: Path, steps_per_epoch: int) -> None:
    """Number the lines of the log by steps of the new length, and drop the neighbors, which refer to image numbers."""
    lines = [{**line, "step": round(line["epoch"] * steps_per_epoch)} for line in read_log(out)]
    replace_file(out / LOG, "".join(json.dumps(line) + "\n" for line in lines))
    (out / NEIGHBORS).unlink(missing_ok=True)
