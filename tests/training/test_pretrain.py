"""The program: exact resume, and its files."""

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import FAST, TINY, nnclr, recipe, stop_in_step, weights

from nnclr_hub import load_encoder
from nnclr_hub.cli.programs import load_program
from training import setup
from training.checkpoint import load_checkpoint, save_checkpoint
from training.data.image_pack import build_pack
from training.evaluation import encoder_of
from training.monitor import read_log
from training.pretrain import pretrain
from training.recipes import find_recipe


def logged(run: Path) -> list[dict]:
    """Return the log without time and memory."""
    measured = {"images_per_s", "data_wait", "peak_memory_mb"}
    return [{name: value for name, value in line.items() if name not in measured} for line in read_log(run)]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGUSR1])
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(data, finished, tmp_path, monkeypatch, sent):
    """Stopped by a signal at the end of an epoch; weights, queue, optimizer and log are equal."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_in_step(5, patch, sent=sent)
        outcome = pretrain(recipe(), [data], run)
    assert not outcome.finished
    assert outcome.step == 5
    assert pretrain(recipe(), [data], run, resume=True).finished
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
    assert logged(run) == logged(finished)


def test_a_run_writes_a_log_an_encoder_and_a_report(finished, data):
    log = read_log(finished)
    needed = {
        *("loss", "nn_similarity", "self_match_rate", "nn_age", "queue_fill", "nn_distinct", "z_std", "rankme", "lr"),
        *("images_per_s", "data_wait", "peak_memory_mb", "nn_accuracy", "neighbor_share"),
    }
    lines = [line for line in log if "loss" in line]
    assert needed <= lines[-1].keys()
    assert lines[-1]["queue_fill"] == 1
    assert lines[0]["neighbor_share"] == 0  # the warm start
    assert lines[-1]["neighbor_share"] == 0.5  # the gate
    assert (finished / "report.html").read_text().count("<svg") >= 10
    assert json.loads((finished / "run.json").read_text())["epochs"] == 4


def test_the_speed_excludes_evaluations_and_checkpoints(data, tmp_path, monkeypatch):
    """On a clock that a reading moves by a second, and scoring or saving by a thousand."""
    now = 0.0

    def tick(seconds=1.0):
        nonlocal now
        now += seconds
        return now

    for function in (encoder_of, save_checkpoint):
        slow = lambda *arguments, function=function: (tick(1000.0), function(*arguments))[1]  # noqa: E731
        monkeypatch.setattr(f"training.recorder.{function.__name__}", slow)
    monkeypatch.setattr("training.recorder.time.perf_counter", tick)
    pretrain(recipe("epochs=2", "log_every=1", "checkpoint_every=1"), [data], tmp_path / "run")
    log = read_log(tmp_path / "run")
    assert sum(f"knn20/{data.name}" in line for line in log) == 2
    assert min(line["images_per_s"] for line in log if "loss" in line) > recipe().batch_size / 1000


def test_the_logged_20nn_is_that_of_the_exported_encoder(finished, data):
    """Compute it from the files with the exported encoder and scikit-learn's neighbors."""
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
    assert encoder.config.nnclr["splits"] == {data.name: "test"}


def test_the_loss_falls(data, tmp_path):
    outcome = pretrain(
        recipe("epochs=12", "method=simclr", "checkpoint_every=12", "log_every=1", "base_lr=0.5"),
        [data],
        tmp_path / "run",
    )
    losses = [line["loss"] for line in read_log(tmp_path / "run") if "loss" in line]
    assert outcome.finished
    assert np.mean(losses[-9:]) < np.mean(losses[:9]) - 3


def test_auto_prints_its_choice_before_decoding_and_then_the_reduced_sizes(data, tmp_path, capsys, monkeypatch):
    printed = []

    def decode(*arguments, **options):
        printed.append(capsys.readouterr().err)
        return build_pack(*arguments, **options)

    monkeypatch.setattr(setup, "build_pack", decode)
    pretrain(find_recipe("auto").with_settings([*TINY, "epochs=1"]), [data], tmp_path / "run")
    before, after = (" ".join(text.split()) for text in (*printed, capsys.readouterr().err))
    assert re.search(r"auto: simclr, resnet18 at 32 pixels, batch 8, epochs 1\b", before), before
    assert "batch_size" not in after
    assert "warmup_epochs: 1.0" in after
    assert "auto: " not in after
    assert json.loads((tmp_path / "run" / "run.json").read_text())["batch_size"] == 8


def test_the_command_line_saves_at_sigterm_and_says_how_to_continue(data, tmp_path, monkeypatch):
    stop_in_step(3, monkeypatch, load_program("training", "step"))  # a verb imports the program under another name
    settings = [part for setting in FAST for part in ("--set", setting)]
    code, _, err = nnclr("pretrain", "small_cpu", "--data", data, "--out", tmp_path / "run", *settings)
    assert (code, "--resume" in err) == (130, True)
    assert load_checkpoint(tmp_path / "run")["step"] == 3


def test_a_time_limit_stops_a_run_like_a_signal(data, finished, tmp_path):
    """Each call runs at least one step; together they equal a run that never stopped, in the middle of an epoch."""
    run = tmp_path / "run"
    for step in (1, 2):
        outcome = pretrain(recipe(), [data], run, resume=step > 1, minutes=0)
        assert (outcome.finished, outcome.step) == (False, step)
        assert (run / "encoder" / "model.safetensors").exists()
    assert pretrain(recipe(), [data], run, resume=True, minutes=60).finished
    ours, theirs = weights(run), weights(finished)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_json_for_programs_has_the_scores_and_the_verdict(data, tmp_path):
    settings = [part for setting in FAST for part in ("--set", setting)]
    words = ("pretrain", "small_cpu", "--data", data, "--out", tmp_path / "run", *settings, "--json")
    code, out, _ = nnclr(*words, "--minutes", "0")
    assert (code, json.loads(out)["finished"]) == (130, False)
    code, out, err = nnclr(*words, "--resume")
    assert code == 0, err
    result = json.loads(out)
    assert (result["run"], result["finished"]) == (str(tmp_path / "run"), True)
    assert result["step"] == load_checkpoint(tmp_path / "run")["step"]
    assert result["scores"].items() <= read_log(tmp_path / "run")[-1].items()
    assert result["verdict"] == json.loads((tmp_path / "run" / "run.json").read_text())["verdict"]
