"""Recorded steps on a CUDA device: equal to eager ones, also with random layers, and after a resume.

make gpu            # or, uninstalled: python -m pytest -m gpu tests/gpu
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from packed_batches import packed_batches

from nnclr_hub.method import Gather
from training.checkpoint import load_checkpoint
from training.distributed import Ranks
from training.graph import EAGER_STEPS, CudaRecorder
from training.network import build_learner, place_learner
from training.optimization import Schedule, make_optimizer
from training.pretrain import pretrain
from training.recipes import find_recipe
from training.run import Callback, Run
from training.step import Stepper

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

STEPS = 20
TINY = ["channels=16,16,32,32", "projection_hidden=32", "projection_dim=16", "image_size=64", "pack_size=64"]
TINY += ["eval_size=64", "batch_size=32", "queue_size=64", "warm_start=0.2", "ramp=0.4", "gate=1"]
KINDS = {
    "nnclr": [],
    "k": ["k=3", "prediction=paper"],
    "momentum, multicrop": ["method=momentum_nnclr", "local_crops=2", "local_size=32"],
    "two sizes": ["early_size=48", "early_share=0.5"],
    "drop path": [
        *("backbone=test_vit", "channels=", "drop_path=0.3", "optimizer=adamw", "clip=1", "image_size=160"),
        *("pack_size=160", "eval_size=160"),
    ],
    "lejepa": ["method=lejepa"],
    "swav": ["method=swav", "prototypes=8"],
}


class Eager(CudaRecorder):
    """Runs the recorded form of a step eagerly."""

    def record(self, body):
        raise RuntimeError("eager")


def trained(settings, recorder_of) -> tuple[list[float], dict[str, torch.Tensor], Stepper]:
    recipe = find_recipe("small_cpu").with_settings([*TINY, *settings])
    where = torch.device("cuda")
    pixels = np.random.default_rng(0).integers(0, 256, (128, recipe.pack_size, recipe.pack_size, 3), dtype=np.uint8)
    batches = packed_batches(
        pixels, 32, lambda step: recipe.views_at(step / STEPS), where=where, labels=np.arange(128) % 3
    )
    torch.manual_seed(0)
    ranks = Ranks(0, 1, where, Gather())
    learner = place_learner(build_learner(recipe), recipe, ranks)
    learner.train()
    optimizer = make_optimizer(learner, recipe)
    schedule = Schedule(optimizer, recipe, STEPS, 4)
    stepper = Stepper(Run(Path(), recipe, learner, optimizer, batches, ranks, STEPS), schedule, recorder_of(where))
    losses = [stepper.run(step).loss for step in range(STEPS)]
    return [loss.item() for loss in losses], learner.state_dict(), stepper


@pytest.fixture
def deterministic(full_precision):
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    yield
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_steps_in_fp32_equal_eager_ones(cuda, kind, deterministic):
    """The lookup and the gathers add in a fixed order; what differs are sums by atomic operations."""
    eager, recorded = (trained(["precision=fp32", *KINDS[kind]], one) for one in (Eager, CudaRecorder))
    assert recorded[2].eager_because is None
    assert recorded[0] == pytest.approx(eager[0], rel=1e-4)
    for name, value in eager[1].items():
        torch.testing.assert_close(recorded[1][name], value, atol=2e-3, rtol=2e-2, msg=name)


@pytest.mark.parametrize("kind", ["nnclr", "drop path"])
def test_recorded_steps_in_bf16_have_the_losses_of_eager_ones(cuda, kind):
    settings = ["precision=bf16", "method=simclr", *KINDS[kind]]
    eager, recorded = (trained(settings, one)[0] for one in (Eager, CudaRecorder))
    assert recorded == pytest.approx(eager, rel=1e-2)


def test_random_layers_are_random_in_each_replay(cuda):
    """With the same images in each step, only stochastic depth changes the loss of an untrained network."""
    settings = ["precision=fp32", "method=simclr", *KINDS["drop path"], "base_lr=1e-12"]
    losses = trained(settings, CudaRecorder)[0][EAGER_STEPS:]
    assert len({round(loss, 4) for loss in losses}) > len(losses) // 2


def test_a_recorded_step_never_makes_the_device_wait(cuda):
    _, _, stepper = trained(["precision=bf16"], CudaRecorder)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(STEPS - 3, STEPS):
            stepper.run(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Stop(Callback):
    """Stops the run after a step that was replayed."""

    def on_step(self, run, result):
        if run.step == EAGER_STEPS + 4:
            run.stop()


def test_a_run_that_was_stopped_after_recorded_steps_continues(cuda, blobs, tmp_path, deterministic):
    settings = ["channels=8,8,16,16", "projection_hidden=32", "projection_dim=16", "batch_size=8", "epochs=3"]
    chosen = find_recipe("small_cpu").with_settings([*settings, "log_every=1", "precision=fp32", "method=simclr"])
    pretrain(chosen, [blobs], tmp_path / "whole", device="cuda")
    assert not pretrain(chosen, [blobs], tmp_path / "cut", device="cuda", callbacks=[Stop()]).finished
    assert pretrain(chosen, [blobs], tmp_path / "cut", device="cuda", resume=True).finished
    whole, cut = (load_checkpoint(tmp_path / name)["learner"] for name in ("whole", "cut"))
    for name in whole:
        torch.testing.assert_close(cut[name], whole[name], atol=5e-3, rtol=5e-2, msg=name)
