"""Checkpoints: everything that a run needs to go on as if it had never stopped.

RUN/checkpoint.pt is replaced whole (written beside it, synced, renamed), so a full disk or a kill in
the middle leaves the last good one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import torch

from nnclr_hub.errors import CheckpointError

from .data.datasets import ImageFiles
from .recipes import Recipe

NAME = "checkpoint.pt"
# settings that may differ between the parts of one run: the weights do not depend on them, but for the last digits
# (and on chunk by the batch norm of a chunk)
FREE = (
    *("eval_size", "eval_crop", "eval_images", "log_every", "checkpoint_every", "tensorboard"),
    *("residency", "channels_last", "compile", "compile_views", "chunk", "fixed"),
)


def save_checkpoint(run: Path, state: dict[str, Any]) -> None:
    """Writes RUN/checkpoint.pt.

    Raises:
        CheckpointError: the disk refused; an older checkpoint is still whole.
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
            f"The checkpoint could not be written to {run} ({_reason(error)}): free some space, then --resume."
        ) from error


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "the disk took only a part of it"


def load_checkpoint(run: Path) -> dict[str, Any] | None:
    """What `save_checkpoint` was given, or None if there is none; tensors on the CPU.

    Raises:
        CheckpointError: the file is damaged.
    """
    if not (run / NAME).exists():
        return None
    try:
        return torch.load(run / NAME, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{run / NAME} is damaged ({type(error).__name__}): move it away and start anew with --resume."
        ) from error


def check_same_run(
    saved: dict[str, Any], name: str, recipe: Recipe, files: ImageFiles, start: str | None, out: Path
) -> None:
    """Refuses a checkpoint that this call would continue as something else.

    Raises:
        CheckpointError: names what differs.
    """
    if not {"recipe", "settings", "init", "files", "step", "learner"} <= saved.keys():
        raise CheckpointError(f"The checkpoint in {out} is of an older version: start anew with another --out.")
    now = json.loads(json.dumps(dataclasses.asdict(recipe)))
    before = json.loads(json.dumps(saved["settings"]))
    changed = [
        f"{key} was {before.get(key)}, is {now[key]}" for key in now if key not in FREE and before.get(key) != now[key]
    ]
    if saved["recipe"] != name:
        changed.insert(0, f"recipe was {saved['recipe']}, is {name}")
    if saved["init"] != start:
        changed.append(f"--init was {saved['init']}, is {start}")
    if saved["files"] != digest(files):
        changed.append("the images are not the same")
    if changed:
        raise CheckpointError(
            f"The checkpoint in {out} is of another run ({'; '.join(changed)}): call it with its own settings again, "
            "or name another folder with --out."
        )


def evaluation_changed(saved: dict[str, Any], recipe: Recipe) -> bool:
    """Whether the encoder is to take its images otherwise than the checkpoint's was."""
    return any(saved["settings"].get(name) != getattr(recipe, name) for name in ("eval_size", "eval_crop"))


def digest(files: ImageFiles) -> str:
    """A hash of the images in their order, by folder, name and size: rows of the queue carry places in that list."""
    lines = (f"{path.parent.name}/{path.name} {path.stat().st_size}" for path in files.paths)
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
