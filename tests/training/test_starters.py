"""One stretch of a starter after the other: the time that is kept, what is left, and how it is put together again."""

import io
import json
import subprocess
import tarfile

import numpy as np
import pytest
import torch
from rich.console import Console

from nnclr_hub import load_encoder
from nnclr_hub.errors import InvalidRequest, WeightsMismatch
from training import interrupt, starters
from training.checkpoint import load_checkpoint
from training.parcels import send, unpacked
from training.starters import Stretch, main, run_stretch

QUIET = Console(quiet=True)
RESNET = [
    *("backbone=resnet18", "channels=4,4,8,8", "projection_hidden=16", "projection_dim=8", "queue_size=32"),
    *("image_size=32", "pack_size=32", "eval_size=32", "early_size=24", "local_size=16", "batch_size=8"),
    *("log_every=1", "precision=fp32", "warmup_epochs=1"),
]


@pytest.mark.slow
def test_a_stretch_that_is_cut_goes_on_and_leaves_the_encoder_each_time(data, pictures, tmp_path, monkeypatch):
    """The clock runs out after the third step; the plan, the schedule and the last step are those of one run."""
    with tarfile.open(tmp_path / "photos.tar.gz", "w:gz") as tar:
        tar.add(data, "photos")
    stretch = Stretch("starter_resnet50", [tmp_path / "photos.tar.gz"], tmp_path / "work", RESNET, epochs=2)
    real, steps = interrupt.threading.Timer, []

    from training import step as steps_module

    original = steps_module.measure_step

    def watched(*arguments):
        steps.append(1)
        if len(steps) == 3:
            timers[0].function()  # the time is up
        return original(*arguments)

    timers = []
    monkeypatch.setattr(interrupt.threading, "Timer", lambda *a: timers.append(real(*a)) or timers[-1])
    monkeypatch.setattr(steps_module, "measure_step", watched)
    first = run_stretch(stretch, QUIET)
    assert (first.finished, first.step) == (False, 3)
    early = load_encoder(tmp_path / "work" / "nnclr_resnet50_starter", device="cpu").embed(pictures[:4])
    second = run_stretch(stretch, QUIET)
    assert (second.finished, second.step) == (True, len(steps))
    late = load_encoder(tmp_path / "work" / "nnclr_resnet50_starter", device="cpu").embed(pictures[:4])
    assert np.abs(early - late).max() > 1e-3
    assert second.scores["knn20/photos"] > 0

    with monkeypatch.context() as patch:  # never stopped
        patch.setattr(steps_module, "measure_step", original)
        one = Stretch("starter_resnet50", [tmp_path / "work" / "data" / "photos"], tmp_path / "one", RESNET, epochs=2)
        run_stretch(one, QUIET)
    ours, theirs = (load_checkpoint(tmp_path / work / "starter_resnet50")["learner"] for work in ("work", "one"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_command_plans_trains_and_packs(data, pictures, tmp_path):
    """ViT, with a pilot; what is carried is the model folder."""
    settings = [
        *("backbone=test_vit", "projection_hidden=16", "projection_dim=8", "queue_size=32", "image_size=32"),
        *("pack_size=32", "eval_size=32", "early_size=16", "local_size=16", "batch_size=8", "precision=fp32"),
    ]
    given = ["starter_vit_small", "--data", str(data), "--out", str(tmp_path), "--device", "cpu", "--training", "0.001"]
    given += [part for one in settings for part in ("--set", one)]
    assert main([*given, "--trained-on", "crops of three photos"]) == 0
    plan = json.loads((tmp_path / "starter_vit_small.json").read_text())
    assert plan["epochs"] == 1
    assert plan["pace"]["early"] > 0
    (tmp_path / "there").mkdir()
    command = f"cat {tmp_path}/carry/nnclr_vit_small_starter.tar.* | tar x -C {tmp_path}/there"
    subprocess.run(command, shell=True, check=True)
    here, there = tmp_path / "nnclr_vit_small_starter", tmp_path / "there"
    assert (here / "model.safetensors").read_bytes() == (there / "model.safetensors").read_bytes()
    assert load_encoder(there, device="cpu").embed(pictures[:1]).shape == (1, 64)
    assert json.loads((there / "config.json").read_text())["nnclr"]["data"] == "crops of three photos"


def test_weights_that_measure_otherwise_come_back_all_the_same(data, tmp_path, monkeypatch):
    """A stretch of a GPU is not to be lost to a figure; the warning says which."""
    real = starters.export

    def export(*arguments, **rest):
        if rest["data"]:
            raise WeightsMismatch("The exported weights measure another figure.")
        return real(*arguments, **rest)

    monkeypatch.setattr(starters, "export", export)
    said = Console(file=io.StringIO(), width=200)
    settings = [*RESNET, "early_share=0", "local_crops=0"]
    assert run_stretch(Stretch("starter_resnet50", [data], tmp_path, settings, epochs=1), said).finished
    assert (tmp_path / "carry" / "nnclr_resnet50_starter.tar.00").exists()
    assert "The exported weights measure another figure." in said.file.getvalue()


def test_images_without_classes_cost_no_encoder(photos, tmp_path):
    """There is nothing to measure on, and what was trained comes back all the same."""
    said = Console(file=io.StringIO(), width=200)
    settings = [*RESNET, "early_share=0", "local_crops=0"]
    assert run_stretch(Stretch("starter_resnet50", [photos], tmp_path, settings, epochs=1), said).finished
    assert (tmp_path / "carry" / "nnclr_resnet50_starter.tar.00").exists()
    assert "cannot be measured on" in said.file.getvalue()


def test_parts_are_small_and_the_old_ones_go(tmp_path):
    content = np.random.default_rng(0).bytes(50_000)
    (tmp_path / "weights").write_bytes(content)
    assert len(send([tmp_path / "weights"], tmp_path / "carry", "w", part=10_000)) == 7
    parts = send([tmp_path / "weights"], tmp_path / "carry", "w", part=30_000)
    assert sorted((tmp_path / "carry").iterdir()) == parts
    assert all(part.stat().st_size <= 30_000 for part in parts)
    (tmp_path / "whole.tar").write_bytes(b"".join(part.read_bytes() for part in parts))
    assert (unpacked(tmp_path / "whole.tar", tmp_path / "there") / "weights").read_bytes() == content


def test_what_is_no_tar_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "x.tar").write_text("nothing")
    with pytest.raises(InvalidRequest, match="neither a folder nor a tar file"):
        unpacked(tmp_path / "x.tar", tmp_path)
