"""Checkpoints: the complete state of a run, so that a resumed run equals one that never stopped.

RUN/checkpoint.pt is written to a temporary file, synced and renamed. A full disk or a kill during the write leaves the
previous checkpoint intact.
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

from nnclr_hub.errors import CheckpointError

from .data.image_index import ImageIndex
from .recipes import Recipe

NAME = "checkpoint.pt"
EVALUATED = ("eval_size", "eval_crop", "eval_interpolation", "eval_crop_mode")  # the exported encoder's input
# settings that may change between the parts of one run. The weights do not depend on them, except for rounding, and
# except for epochs, and chunk, which sets the images that one batch norm sees
FREE = (
    *EVALUATED,
    *("epochs", "eval_images", "log_every", "checkpoint_every", "checkpoint_minutes"),
    *("keep_every", "collective_minutes", "callbacks", "residency", "workers", "channels_last", "compile"),
    *("compile_views", "graph", "chunk", "fixed", "name"),
)

SHORTENED = 10  # a warm-up of all epochs is replaced by one of a tenth of them; it changes with the epochs
LEAST_SAME = 0.5  # share of the images of a checkpoint that must be among those of the resumed run
PARTS = {"recipe", "settings", "init", "terms", "files", "steps_per_epoch", "step", "unlogged", "learner", "scaler"}


def save_checkpoint(run: Path, state: dict[str, Any]) -> None:
    """Write RUN/checkpoint.pt.

    Raises:
        CheckpointError: the disk is full or rejects the write; an older checkpoint is still intact.
    """
    half = run / (NAME + ".part")
    try:
        with half.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, run / NAME)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        half.unlink(missing_ok=True)
        raise CheckpointError(
            f"The checkpoint could not be written to {run} ({_reason(error)}). Free some disk space, then continue "
            "with --resume."
        ) from error


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "the disk accepted only a part of it"


def load_checkpoint(run: Path) -> dict[str, Any] | None:
    """Return the state passed to `save_checkpoint`, with tensors on the CPU, or None without a checkpoint.

    Raises:
        CheckpointError: the file is damaged.
    """
    if not (run / NAME).exists():
        return None
    try:
        return torch.load(run / NAME, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{run / NAME} is damaged ({type(error).__name__}). "
            "Delete it and repeat the command with --resume; training then starts from step 0."
        ) from error


def check_parts(saved: Mapping[str, Any], out: Path) -> None:
    """Reject a checkpoint that lacks parts or settings, because another version wrote it.

    Raises:
        CheckpointError: it does.
    """
    settings = {name for name, _, _ in Recipe.settings()}
    if not saved.keys() >= PARTS or not saved["settings"].keys() >= settings:
        raise CheckpointError(
            f"The checkpoint in {out} was written by another version of nnclr_hub, which has other settings. Resume it "
            "with that version, or restart with another --out."
        )


def check_same_run(saved: dict[str, Any], recipe: Recipe, files: ImageIndex, start: str | None, out: Path) -> None:
    """Reject a checkpoint that belongs to a different run.

    Raises:
        CheckpointError: lists the differences.
    """
    now = json.loads(json.dumps(dataclasses.asdict(recipe)))
    before = json.loads(json.dumps(saved["settings"]))
    done = saved["step"] / saved["steps_per_epoch"]
    if now["epochs"] < before["epochs"] and now["epochs"] <= done:
        raise CheckpointError(f"The run in {out} has done {done:.4g} epochs; choose more with --set epochs=N.")
    shortened = any(one["warmup_epochs"] == one["epochs"] / SHORTENED for one in (before, now))
    free = {*FREE, *(["warmup_epochs"] if shortened and now["epochs"] != before["epochs"] else [])}
    changed = [
        f"{key} was {before.get(key)}, is {now[key]}" for key in now if key not in free and before.get(key) != now[key]
    ]
    if saved["recipe"] != recipe.name:
        changed.insert(0, f"recipe was {saved['recipe']}, is {recipe.name}")
    if saved["init"] != start:
        changed.append(f"--init was {saved['init']}, is {start}")
    if saved["files"] != files.digest:
        same = np.isin(saved["images"].numpy(), files.fingerprints) if "images" in saved else np.zeros(1)
        if same.mean() < LEAST_SAME:
            changed.append(f"the images have changed: {same.sum():.0f} of {len(same)} are still there")
    if changed:
        raise CheckpointError(
            f"The checkpoint in {out} belongs to a different run ({'; '.join(changed)}). Resume it with its original "
            "settings, or choose another folder with --out."
        )


def evaluation_changed(saved: dict[str, Any], recipe: Recipe) -> bool:
    """Return whether the exported encoder's input size or crop differs from the checkpoint's."""
    return any(saved["settings"][name] != getattr(recipe, name) for name in EVALUATED)
