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
# settings that leave the weights alone, and so may differ between the parts of one run
FREE = (
    *("eval_size", "eval_crop", "eval_pictures", "log_every", "checkpoint_every", "tensorboard"),
    *("residency", "channels_last", "compile", "chunk", "fixed"),
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
            f"The checkpoint could not be written to {run} ({error}): free some space, then go on with --resume."
        ) from error


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
        changed.append("the pictures are not the same")
    if changed:
        raise CheckpointError(
            f"The checkpoint in {out} is of another run ({'; '.join(changed)}): resume it with its own settings, "
            "or name another folder with --out."
        )


def evaluation_changed(saved: dict[str, Any], recipe: Recipe) -> bool:
    """Whether the encoder is to take its pictures otherwise than the checkpoint's was."""
    return any(saved["settings"].get(name) != getattr(recipe, name) for name in ("eval_size", "eval_crop"))


def digest(files: ImageFiles) -> str:
    """A hash of the pictures' names in their order: rows of the queue carry places in that list."""
    return hashlib.sha256("\n".join(path.name for path in files.paths).encode("utf-8", "surrogateescape")).hexdigest()
