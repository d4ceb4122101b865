"""Two processes with half a batch each equal one process with the whole batch."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import recipe
from two_ranks import CASES, both_ranks, one_step, short_run
from waiting import free_port

from nnclr_hub.errors import InvalidRequest, TrainingError
from nnclr_hub.method import Gather
from training.checkpoint import load_checkpoint
from training.distributed import Ranks, joined, launch, slurm_ranks
from training.monitor import read_log
from training.pretrain import pretrain
from training.recipes import find_recipe
from training.verdict import Verdict

ROOT = Path(__file__).parents[2]
FAST = [
    *("channels=8,8,8,8", "projection_hidden=16", "projection_dim=8", "image_size=32", "pack_size=32", "eval_size=32"),
    *("batch_size=8", "epochs=12", "checkpoint_every=1", "log_every=1", "precision=fp32", "queue_size=40"),
]


@pytest.fixture(scope="module")
def both(data, finished, tmp_path_factory) -> Path:
    """Return what two gloo processes wrote; `finished` has scored what runs on these images are compared with."""
    out = tmp_path_factory.mktemp("ranks")
    assert both_ranks(data, out) == 0
    return out


@pytest.fixture(scope="module")
def two(both) -> list[dict]:
    """Return the state of each of the two processes after its steps."""
    return [torch.load(both / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("case", list(CASES))
def test_two_processes_with_n_each_are_one_with_2n(two, case):
    """Loss, gradients, weights, running statistics, momentum encoder and support set, which both have alike."""
    alone = one_step(case, Ranks(0, 1, torch.device("cpu"), Gather()))
    first, second = (rank[case] for rank in two)
    assert alone.keys() == first.keys()
    for name, want in alone.items():
        torch.testing.assert_close(first[name], want, atol=2e-5, rtol=1e-3, msg=lambda m, name=name: f"{name}: {m}")
        assert not name.startswith("support_set.") or torch.equal(first[name], second[name]), name


def test_two_processes_log_and_score_like_one(both, data, tmp_path):
    """The log has the means over both, and each computes the features of half of the labeled images."""
    short_run(data, tmp_path / "run")
    alone, shared = (read_log(run / "run") for run in (tmp_path, both))
    assert [line["step"] for line in shared] == [line["step"] for line in alone] == [4, 5, 8, 10, 10]
    for line, want in zip(shared, alone, strict=True):
        assert line.keys() == want.keys()
        for name in line.keys() & {"loss", "nn_similarity", "queue_fill", "rankme", "lr", "epoch"}:
            assert line[name] == pytest.approx(want[name], rel=2e-3), name
        if "z_std" in line:
            assert line["z_std"] == pytest.approx(want["z_std"], rel=0.2), "within half a batch"
            assert line["nn_accuracy"] == pytest.approx(want["nn_accuracy"], abs=0.1), "some rows are equally near"
    assert [{line.get("unreadable") for line in log if "loss" in line} for log in (alone, shared)] == [{2}, {3}]
    verdicts = [Verdict.read(run / "run") for run in (tmp_path, both)]
    alone_scores, shared_scores = (verdict.scores for verdict in verdicts if verdict is not None)
    assert alone_scores.keys() == shared_scores.keys() > {"the untrained network", "hog"}
    assert {name: shared_scores[name] for name in shared_scores if name != "run"} == {
        name: alone_scores[name] for name in alone_scores if name != "run"
    }


@pytest.mark.slow
def test_a_run_stopped_in_two_processes_continues_in_one(photos, tmp_path):
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
    assert pretrain(recipe, [photos], run, resume=True, device="cpu").finished
    steps = [line["step"] for line in read_log(run) if "loss" in line]
    assert steps == list(range(1, 85))
    assert np.isfinite([line["loss"] for line in read_log(run) if "loss" in line]).all()


def test_more_processes_than_gpus_are_rejected():
    with pytest.raises(InvalidRequest, match="--device cpu"):
        launch(1000, ["pretrain"], None)


def test_ranks_come_from_srun():
    step = {
        "SLURM_STEP_NUM_TASKS": "16",
        "SLURM_PROCID": "9",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_NODELIST": "gpu[07-08,11],other3",
        "SLURM_JOB_ID": "1234567",
    }
    found = slurm_ranks(step)
    assert (found["WORLD_SIZE"], found["RANK"], found["LOCAL_RANK"]) == ("16", "9", "1")
    assert found["MASTER_ADDR"] == "gpu07"
    assert slurm_ranks({**step, "SLURM_STEP_TASKS_PER_NODE": "8(x2)"})["LOCAL_WORLD_SIZE"] == "8"
    assert 20_000 <= int(found["MASTER_PORT"]) < 40_000
    assert slurm_ranks({**step, "SLURM_STEP_NODELIST": "single"})["MASTER_ADDR"] == "single"
    assert slurm_ranks({**step, "SLURM_STEP_NUM_TASKS": "1"}) == {}
    assert slurm_ranks({**step, "WORLD_SIZE": "16"}) == {}, "torchrun inside of srun"


def test_processes_of_another_launcher_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(InvalidRequest, match="LOCAL_RANK"), joined("cpu"):
        pass


def test_ranks_that_do_not_meet_are_explained(monkeypatch):
    ranks = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**ranks, "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TrainingError, match=r"127\.0"), joined("cpu", minutes=0.01):
        pass


def test_a_single_process_keeps_its_errors():
    with pytest.raises(RuntimeError, match="igloo"), joined("cpu") as ranks, ranks.losses_explained():
        raise RuntimeError("file write failed in /home/igloo")


# the second of two ranks is killed in its fourth step
KILLED = """
import os, signal, sys
from tiny_runs import recipe
from training.run import Callback
from training.pretrain import pretrain
from nnclr_hub.errors import TrainingError
class Killed(Callback):
    def on_step(self, run, result):
        if run.ranks.rank == 1 and run.step == 4:
            os.kill(os.getpid(), signal.SIGKILL)
try:
    pretrain(recipe("batch_size=8", "checkpoint_every=1"), sys.argv[1], sys.argv[2], device="cpu", callbacks=[Killed()])
except TrainingError as error:
    sys.exit(str(error))
"""


@pytest.mark.slow
def test_a_run_whose_process_was_killed_says_so_and_continues(data, tmp_path):
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    run, environment = tmp_path / "run", {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, str(data), str(run)], env=environment, capture_output=True, text=True, timeout=300)
    assert re.search(r"^Process 0 of 2 lost the others,.*--resume", done.stderr, re.M), done.stderr[-3000:]
    settings = recipe("batch_size=8", "checkpoint_every=1")
    assert pretrain(settings, data, run, resume=True, device="cpu").finished


def run_both(program: str, environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Return the exit code and the messages of a program that forks; neither process survives the call."""
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(
        command, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            err = process.communicate(timeout=120)[1]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, err


# the first rank decodes labeled images, and scores, for longer than `collective_minutes`
SCORING = """
import os, sys, time
from tiny_runs import recipe
from training import evaluation, pretrain
def slow(features):
    time.sleep(8)
    yield "slow", 1.0
def slow_crops(*arguments):
    time.sleep(8)
    return crops(*arguments)
evaluation.PROTOCOLS = (slow,)
child = os.fork()
rank = "0" if child else "1"
if child:
    crops, evaluation._crops = evaluation._crops, slow_crops
os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
settings = recipe("epochs=1", "batch_size=8", "checkpoint_every=1", "collective_minutes=0.08")
done = pretrain.pretrain(settings, sys.argv[1], sys.argv[2], device="cpu")
if child:
    assert os.waitpid(child, 0)[1] == 0
    assert done.finished and done.scores
"""


@pytest.mark.slow
def test_scoring_may_take_longer_than_other_operations(data, tmp_path):
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    ranks = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PYTHONPATH": path}
    code, err = run_both(SCORING, ranks, str(data), str(tmp_path / "run"))
    assert code == 0, err[-3000:]


@pytest.mark.parametrize(("code", "again"), [(0, False), (1, False), (130, True), (137, False), (143, True)])
def test_the_batch_script_for_slurm_requeues_a_job_that_a_signal_stopped(code, again, tmp_path):
    """With substitutes for the programs of Slurm. 130 is the exit code of a run that has saved a checkpoint."""
    page = (ROOT / "docs" / "reference" / "pretraining.md").read_text()
    (script,) = re.findall(r"```\n(#!/bin/bash\n#SBATCH.*?)```", page, re.DOTALL)
    for name, text in (("srun", f"exit {code}"), ("scontrol", 'echo "$@" > called')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "78"}
    subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, check=False)
    called = tmp_path / "called"
    assert (called.read_text() if called.exists() else "") == "requeue 78\n" * again
