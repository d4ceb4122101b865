"""Two processes with half a batch each equal one process with the whole batch."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from two_ranks import CASES, one_step

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method import Gather
from training.checkpoint import load_checkpoint
from training.distributed import Ranks
from training.launch import launch
from training.monitor import read_log
from training.pretrain import pretrain
from training.recipes import find_recipe

ROOT = Path(__file__).parents[2]
FAST = [
    *("channels=4,4,8,8", "projection_hidden=16", "projection_dim=8", "image_size=32", "pack_size=32", "eval_size=32"),
    *("batch_size=8", "epochs=12", "checkpoint_every=1", "log_every=1", "precision=fp32", "queue_size=40"),
]


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> list[dict]:
    """Return the state of each of two gloo processes after its steps."""
    out = tmp_path_factory.mktemp("ranks")
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, str(ROOT / "tests" / "two_ranks.py"), str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Warning" not in done.stderr
    return [torch.load(out / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("case", list(CASES))
def test_two_processes_with_n_each_are_one_with_2n(two, case):
    """Loss, gradients, weights, running statistics, momentum encoder and support set."""
    alone = one_step(case, Ranks(0, 1, torch.device("cpu"), Gather()))
    assert alone.keys() == two[0][case].keys()
    for name, want in alone.items():
        torch.testing.assert_close(
            two[0][case][name], want, atol=2e-5, rtol=1e-3, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize("case", list(CASES))
def test_the_support_set_is_the_same_on_all_ranks(two, case):
    for name in [name for name in two[0][case] if name.startswith("support_set.")]:
        assert torch.equal(two[0][case][name], two[1][case][name]), name


@pytest.mark.slow
def test_a_run_stopped_in_two_processes_continues_in_one(photos, tmp_path, undrawn):
    """After SIGTERM to the launcher both stop at the same step and save; one process finishes the run."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "nnclr_hub.cli", "pretrain", "small_cpu", "--data", str(photos), "--out", str(run)]
    command += [part for setting in FAST for part in ("--set", setting)]
    with subprocess.Popen(
        [*command, "--gpus", "2", "--device", "cpu"], stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        while not (run / "checkpoint.pt").exists():
            assert process.poll() is None, process.stderr.read()[-3000:]
            time.sleep(0.05)
        process.terminate()
        err = process.stderr.read()
    assert process.returncode == 130, err[-3000:]
    assert "Traceback" not in err
    assert "Warning" not in err
    step = load_checkpoint(run)["step"]
    assert 0 < step < 84
    recipe = find_recipe("small_cpu").with_settings([*FAST, "checkpoint_every=12"])
    assert pretrain("small_cpu", recipe, [photos], run, resume=True, device="cpu").finished
    steps = [line["step"] for line in read_log(run) if "loss" in line]
    assert steps == list(range(1, 85))
    assert np.isfinite([line["loss"] for line in read_log(run) if "loss" in line]).all()


def test_more_processes_than_gpus_are_rejected():
    with pytest.raises(InvalidRequest, match="--device cpu"):
        launch(1000, ["pretrain"], None)
