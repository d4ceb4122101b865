"""Pretraining runs that cannot go on."""

from __future__ import annotations

from nnclr_hub.errors.root import NNCLRHubError


class TrainingError(NNCLRHubError):
    """A pretraining run cannot start or go on."""

    code = "training_error"


class RunExists(TrainingError):
    """The run folder holds a run already."""

    code = "run_exists"


class CheckpointError(TrainingError):
    """A checkpoint is damaged, or belongs to another recipe."""

    code = "checkpoint_error"


class TrainingDiverged(TrainingError):
    """The loss is no longer a number."""

    code = "training_diverged"


class OutOfMemory(TrainingError):
    """A step needs more memory than the device has; the message names a batch that fits."""

    code = "out_of_memory"


class NoRoom(TrainingError):
    """The disk cannot hold the decoded images."""

    code = "no_room"
