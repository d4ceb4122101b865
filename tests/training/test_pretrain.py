"""The program: exact resume, and what it writes."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import FAST, TINY, recipe, weights

from nnclr_hub import load_encoder
from training import prepare
from training import step as steps_module
from training.checkpoint import load_checkpoint
from training.data.datasets import evaluation_sets, training_files
from training.data.image_pack import build_pack
from training.monitor import read_log
from training.pretrain import pretrain
from training.recipes import find_recipe

pytestmark = pytest.mark.usefixtures("undrawn")


class StopAfter:
    """Stands for a signal that arrives in the middle of the given step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def install(self, monkeypatch) -> None:
        original, steps = steps_module.measure_step, []

        def counted(*arguments):
            steps.append(1)
            if len(steps) == self.step:
                signal.raise_signal(signal.SIGTERM)
            return original(*arguments)

        monkeypatch.setattr(steps_module, "measure_step", counted)


def logged(run: Path) -> list[dict]:
    """The log without what the clock and the memory say."""
    measured = {"images_per_s", "data_wait", "peak_memory_mb"}
    return [{name: value for name, value in line.items() if name not in measured} for line in read_log(run)]


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(data, finished, tmp_path, monkeypatch, stop):
    """Stopped by SIGTERM in the middle of an epoch and at its end; weights, queue, optimizer and log are equal."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        StopAfter(stop).install(patch)
        outcome = pretrain("small_cpu", recipe(), [data], run)
    assert not outcome.finished
    assert outcome.step == stop
    assert pretrain("small_cpu", recipe(), [data], run, resume=True).finished
    ours, theirs = weights(run), weights(finished)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    optimizers = [load_checkpoint(one)["optimizer"]["state"] for one in (run, finished)]
    assert all(
        torch.equal(optimizers[0][k]["momentum_buffer"], optimizers[1][k]["momentum_buffer"]) for k in optimizers[1]
    )
    assert (run / "encoder" / "model.safetensors").read_bytes() == (
        finished / "encoder" / "model.safetensors"
    ).read_bytes()
    clock = {"images_per_s", "data_wait", "peak_memory_mb"}
    ours, theirs = (
        [{k: v for k, v in line.items() if k not in clock} for line in read_log(one)] for one in (run, finished)
    )
    assert ours == theirs


def test_a_run_leaves_a_log_an_encoder_and_a_report(finished, data):
    log = read_log(finished)
    needed = {
        "loss",
        "nn_similarity",
        "self_match_rate",
        "nn_age",
        "queue_fill",
        "nn_distinct",
        "z_std",
        "rankme",
        "lr",
    }
    needed |= {"images_per_s", "data_wait", "peak_memory_mb", "nn_accuracy", "neighbor_share"}
    lines = [line for line in log if "loss" in line]
    assert needed <= lines[-1].keys()
    assert lines[-1]["queue_fill"] == 1
    assert lines[0]["neighbor_share"] == 0  # the warm start
    assert lines[-1]["neighbor_share"] == 0.5  # the gate
    assert (finished / "report.html").read_text().count("<img") >= 10
    assert json.loads((finished / "run.json").read_text())["epochs"] == 4


def test_the_logged_20nn_is_that_of_the_exported_encoder(finished, data):
    """From the files, through the exported encoder, with scikit-learn's neighbors."""
    from sklearn.neighbors import KNeighborsClassifier

    encoder = load_encoder(finished / "encoder", device="cpu")
    parts = [sorted((data / split).rglob("*.jpg")) for split in ("train", "test")]
    train, test = (encoder.embed(paths) for paths in parts)
    reference = KNeighborsClassifier(20, weights=lambda d: np.exp((1 - d) / 0.07), metric="cosine", algorithm="brute")
    reference.fit(train, [path.parent.name for path in parts[0]])
    want = reference.score(test, [path.parent.name for path in parts[1]])
    logged = [line[f"knn20/{data.name}"] for line in read_log(finished) if f"knn20/{data.name}" in line]
    assert logged[-1] == pytest.approx(want, abs=1e-6)
    assert encoder.config.nnclr["metrics"][f"knn20/{data.name}"] == round(want, 4)


def test_the_loss_falls(data, tmp_path):
    outcome = pretrain(
        "small_cpu", recipe("epochs=30", "method=simclr", "checkpoint_every=30"), [data], tmp_path / "run"
    )
    losses = [line["loss"] for line in read_log(tmp_path / "run") if "loss" in line]
    assert outcome.finished
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.2


@pytest.mark.parametrize(
    "settings",
    [
        ["method=simclr"],
        ["prediction=paper"],
        ["optimizer=lars", "weight_decay=1e-6"],
        ["optimizer=adamw", "base_lr=1e-3"],
        ["augmentation=crop_only"],
        ["precision=bf16"],
    ],
)
def test_every_choice_trains(data, tmp_path, settings):
    assert pretrain("small_cpu", recipe("epochs=1", *settings), [data], tmp_path / "run").finished


def test_a_small_set_shrinks_the_batch_and_says_so(data, tmp_path, capsys):
    pretrain("small_cpu", find_recipe("small_cpu").with_settings([*TINY, "epochs=1"]), [data], tmp_path / "run")
    said = " ".join(capsys.readouterr().err.split())
    assert "batch_size: 256 is too much for 42 images, using 8" in said
    assert "queue_size: 8192 is too much for 42 images, using 42" in said


def test_auto_tells_what_it_chose_before_decoding_and_then_the_batch_that_is_used(data, tmp_path, capsys, monkeypatch):
    told = []

    def decode(*arguments, **options):
        told.append(capsys.readouterr().err)
        return build_pack(*arguments, **options)

    monkeypatch.setattr(prepare, "build_pack", decode)
    pretrain("auto", find_recipe("auto").with_settings([*TINY, "epochs=1"]), [data], tmp_path / "run")
    before, after = (" ".join(text.split()) for text in (*told, capsys.readouterr().err))
    assert re.search(r"auto: nnclr, resnet18 at 32 pixels, batch 256, 1(\.0)? epochs", before), before
    assert "batch_size: 256 is too much for 42 images, using 8" in after
    assert "auto: " not in after
    assert json.loads((tmp_path / "run" / "run.json").read_text())["batch_size"] == 8


def test_only_train_and_unlabelled_are_trained_on(data, tmp_path):
    folder = shutil.copytree(data, tmp_path / "data")
    shutil.copytree(folder / "test" / "cat", folder / "unlabelled")
    files = training_files([folder])
    assert {path.relative_to(folder).parts[0] for path in files.paths} == {"train", "unlabelled"}
    assert set(files.labels) == {-1, 0, 1, 2}
    assert all(
        (label == -1) == ("unlabelled" in path.parts) for path, label in zip(files.paths, files.labels, strict=True)
    )
    one = evaluation_sets([folder])[0]
    assert (len(one.train.paths), len(one.test.paths)) == (42, 18)


def test_sigterm_saves_and_resume_finishes_from_the_command_line(data, finished, tmp_path):
    """A process of its own, stopped by the signal that schedulers send."""
    command = [
        sys.executable,
        "-m",
        "nnclr_hub.cli",
        "pretrain",
        "small_cpu",
        "--data",
        str(data),
        "--out",
        str(tmp_path / "run"),
    ]
    command += [part for setting in [*FAST, "epochs=400"] for part in ("--set", setting)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "run" / "checkpoint.pt").exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.terminate()
        err = process.stderr.read()
    assert process.returncode == 130
    assert "go on with --resume" in " ".join(err.split())
    step = load_checkpoint(tmp_path / "run")["step"]
    assert 0 < step < 800


def test_time_that_is_up_ends_a_run_as_a_signal_does(data, finished, tmp_path):
    """After a step; the parts together are the run that was never stopped."""
    run = tmp_path / "run"
    for step in (1, 2):
        outcome = pretrain("small_cpu", recipe(), [data], run, resume=step > 1, minutes=0)
        assert (outcome.finished, outcome.step) == (False, step)
        assert (run / "encoder" / "model.safetensors").exists()
    assert pretrain("small_cpu", recipe(), [data], run, resume=True, minutes=60).finished
    ours, theirs = weights(run), weights(finished)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
