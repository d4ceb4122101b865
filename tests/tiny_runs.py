"""Tiny runs: a recipe of a few steps, the weights, a signal in a step, and calls of the command line."""

import signal
from pathlib import Path
from types import ModuleType

import commands
import pytest
import torch

from training import step
from training.checkpoint import load_checkpoint
from training.recipes import find_recipe
from training.run import Callback

TINY = ["channels=8,8,8,8", "projection_hidden=16", "projection_dim=8", "image_size=32", "pack_size=32", "eval_size=32"]
FAST = [*TINY, "batch_size=16", "epochs=4", "checkpoint_every=2", "log_every=2", "precision=fp32", "queue_size=40"]


def recipe(*more):
    return find_recipe("small_cpu").with_settings([*FAST, *more])


def weights(run: Path) -> dict[str, torch.Tensor]:
    checkpoint = load_checkpoint(run)
    assert checkpoint is not None
    return checkpoint["learner"]


class StopAt(Callback):
    """Stops a run after a step, with a checkpoint."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, run, result):
        if run.step == self.step:
            run.stop()


def stop_in_step(
    number: int, patch: pytest.MonkeyPatch, program: ModuleType = step, sent: signal.Signals = signal.SIGTERM
) -> None:
    """Send a signal in the middle of that step of the next run, counted from 1; program: its module `step`."""
    original, steps = program.measure_step, []

    def stopping(*arguments):
        steps.append(1)
        if len(steps) == number:
            signal.raise_signal(sent)
        return original(*arguments)

    patch.setattr(program, "measure_step", stopping)


def nnclr(*arguments) -> tuple[int, str, str]:
    """Return the exit code, standard output, and standard error on one line."""
    code, out, err = commands.nnclr(*arguments)
    return code, out, " ".join(err.split())
