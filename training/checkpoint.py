"""Checkpoints: everything that a run needs to go on as if it had never stopped.

RUN/checkpoint.pt is replaced whole (written beside it, synced, renamed), so a full disk or a kill in
the middle leaves the last good one.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from nnclr_hub.errors import CheckpointError

NAME = "checkpoint.pt"


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
