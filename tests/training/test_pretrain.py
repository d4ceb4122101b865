"""The program: exact resume, what it writes, and how it refuses."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nnclr_hub import load_encoder
from nnclr_hub.errors import (
    CheckpointError,
    InvalidRequest,
    NoImages,
    NoRoom,
    RunExists,
    TrainingDiverged,
    UnknownModel,
    UnknownSetting,
)
from training import step as steps_module
from training.checkpoint import load_checkpoint, save_checkpoint
from training.data.datasets import evaluation_sets, training_files
from training.monitor import Monitor, read_log
from training.pretrain import pretrain
from training.recipes import RECIPES, find_recipe

pytestmark = pytest.mark.usefixtures("undrawn")

TINY = ["channels=4,4,8,8", "projection_hidden=16", "projection_dim=8", "image_size=32", "pack_size=32", "eval_size=32"]
FAST = [*TINY, "batch_size=16", "epochs=4", "checkpoint_every=2", "log_every=2", "precision=fp32", "queue_size=40"]


def recipe(*more):
    return find_recipe("small_cpu").with_settings([*FAST, *more])


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory) -> Path:
    """A run from the first step to the last, without a stop."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert pretrain("small_cpu", recipe(), [data], run).finished
    return run


def weights(run: Path) -> dict[str, torch.Tensor]:
    checkpoint = load_checkpoint(run)
    assert checkpoint is not None
    return checkpoint["learner"]


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
    assert [line["step"] for line in read_log(run)] == sorted(line["step"] for line in read_log(run))


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
    needed |= {"images_per_s", "data_wait", "peak_memory_mb", "nn_accuracy", "neighbour_share"}
    lines = [line for line in log if "loss" in line]
    assert needed <= lines[-1].keys()
    assert lines[-1]["queue_fill"] == 1
    assert lines[0]["neighbour_share"] == 0  # the warm start
    assert lines[-1]["neighbour_share"] == 0.5  # the gate
    assert (finished / "report.html").read_text().count("<img") >= 10
    assert json.loads((finished / "run.json").read_text())["epochs"] == 4


def test_the_logged_20nn_is_that_of_the_exported_encoder(finished, data):
    """From the files, through the exported encoder, with scikit-learn's neighbours."""
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
    assert "batch_size: 256 is too much for 42 pictures, using 8" in said
    assert "queue_size: 8192 is too much for 42 pictures, using 42" in said


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


# ---- refusals


def test_runs_are_never_overwritten_and_a_finished_one_stays_finished(data, finished, tmp_path):
    with pytest.raises(RunExists, match="--resume"):
        pretrain("small_cpu", recipe(), [data], finished)
    before = (finished / "checkpoint.pt").read_bytes()
    assert pretrain("small_cpu", recipe(), [data], finished, resume=True).finished
    assert (finished / "checkpoint.pt").read_bytes() == before
    fresh = tmp_path / "fresh"
    assert pretrain("small_cpu", recipe("epochs=1"), [data], fresh, resume=True).finished  # nothing there: anew


def test_a_checkpoint_of_another_run_is_refused(data, photos, finished):
    with pytest.raises(CheckpointError, match=r"temperature was 0\.1, is 0\.2"):
        pretrain("small_cpu", recipe("temperature=0.2"), [data], finished, resume=True)
    with pytest.raises(CheckpointError, match="pictures are not the same"):
        pretrain("small_cpu", recipe(), [photos], finished, resume=True)


def test_a_damaged_checkpoint_is_refused_and_a_full_disk_keeps_the_last(finished, tmp_path, monkeypatch):
    (tmp_path / "checkpoint.pt").write_bytes((finished / "checkpoint.pt").read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, {"step": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left"):
        save_checkpoint(tmp_path, {"step": 2})
    assert load_checkpoint(tmp_path) == {"step": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_too_few_or_broken_pictures_are_explained(tmp_path, pictures, capsys):
    folder = tmp_path / "few"
    folder.mkdir()
    (folder / "bad.jpg").write_bytes(b"garbage")
    with pytest.raises(NoImages, match="None of the 1 pictures could be read"):
        pretrain("small_cpu", recipe(), [folder], tmp_path / "run")
    for path in pictures[:3]:
        shutil.copy(path, folder)
    with pytest.raises(NoImages, match="too few"):
        pretrain("small_cpu", recipe(), [folder], tmp_path / "run")
    assert "skipped" in capsys.readouterr().err


def test_a_loss_that_is_no_number_stops_the_run(data, tmp_path):
    with pytest.raises(TrainingDiverged, match="lower base_lr"):
        pretrain("small_cpu", recipe("base_lr=1e30", "epochs=8", "warmup_epochs=0"), [data], tmp_path / "run")


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("epoch=3", "did you mean 'epochs'"),
        ("epochs=x", "whole number"),
        ("method=byoll", "is none of"),
        ("optimizer=adam", "is none of"),
        ("gate=2", "between 0 and 1"),
        ("mask_own=maybe", "true or false"),
        ("channels=a,b", "comma-separated"),
        ("batch_size=1", "at least 2"),
    ],
)
def test_a_setting_that_cannot_be_is_explained(assignment, sentence):
    with pytest.raises(UnknownSetting, match=sentence):
        find_recipe("small_cpu").with_settings([assignment])


def test_lars_without_weight_decay_is_refused():
    """timm's LARS would turn into plain SGD without a word."""
    with pytest.raises(UnknownSetting, match="lars"):
        find_recipe("resnet50_imagenet").with_settings(["weight_decay=0"])


def test_every_recipe_promises_what_it_costs():
    for kind in RECIPES.values():
        assert all(word in (kind.__doc__ or "") for word in ("Command:", "Hardware:", "Time:", "Expected:"))
        assert all(help for _, _, help in kind.settings())


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


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_folder_that_cannot_be_written_is_refused_before_anything_is_decoded(data, tmp_path, monkeypatch, resume):
    monkeypatch.setattr("training.prepare.build_pack", lambda *a, **k: pytest.fail("decoding was begun"))
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(NoRoom, match="cannot be written"):
            pretrain("small_cpu", recipe(), [data], out, resume=resume)


def test_a_network_that_cannot_be_is_refused_before_anything_is_decoded(data, tmp_path, monkeypatch):
    monkeypatch.setattr("training.prepare.build_pack", lambda *a, **k: pytest.fail("decoding was begun"))
    with pytest.raises(UnknownModel, match="resnet18"):
        pretrain("small_cpu", recipe("backbone=resnet19"), [data], tmp_path / "run")
    with pytest.raises(InvalidRequest, match="--set channels="):
        pretrain("small_cpu", recipe("backbone=vit_small"), [data], tmp_path / "run")
    settings = recipe("backbone=vit_small", "channels=", "image_size=40", "pack_size=40", "eval_size=40")
    with pytest.raises(InvalidRequest, match="multiple"):
        pretrain("small_cpu", settings, [data], tmp_path / "run")
    with pytest.raises(UnknownSetting, match="all four stages"):
        recipe("channels=16,32")
    with pytest.raises(UnknownSetting, match="image_size=64"):
        recipe("image_size=64")
    assert not (tmp_path / "run").exists()


def test_resume_neither_takes_a_strange_folder_nor_other_pictures_under_the_same_names(
    data, finished, tmp_path, capsys
):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("mine")
    with pytest.raises(RunExists, match=r"holds no run, but thesis\.txt"):
        pretrain("small_cpu", recipe(), [data], tmp_path / "thesis", resume=True)
    run = shutil.copytree(finished, tmp_path / "whole")
    other = shutil.copytree(data, tmp_path / "data" / data.name)
    for path in other.rglob("*.jpg"):
        Image.new("RGB", (64, 64), "grey").save(path)
    with pytest.raises(CheckpointError, match="the pictures are not the same"):
        pretrain("small_cpu", recipe(), [other], run, resume=True)


def test_a_full_disk_ends_the_run_with_a_sentence(data, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device", "report.html")

    monkeypatch.setattr("training.pretrain.write_report", full)
    with pytest.raises(NoRoom, match=r"report\.html cannot be written"):
        pretrain("small_cpu", recipe(), [data], tmp_path / "run")
    assert load_checkpoint(tmp_path / "run")["step"] > 0


def test_training_time_is_counted_without_what_happens_in_between(tmp_path):
    monitor = Monitor(tmp_path, 0)
    for _ in range(4):
        time.sleep(0.05)
        monitor.add({}, 100, 0.0)
        with monitor.paused():
            time.sleep(0.2)
    line = monitor.log(4, 1.0)
    assert 400 / 0.5 < line["images_per_s"] < 400 / 0.2


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
