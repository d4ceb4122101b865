"""`--resume` with more epochs, with a folder that has changed, and from a checkpoint that was kept."""

import dataclasses
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from tiny_runs import StopAt, recipe, weights

from nnclr_hub.errors import CheckpointError
from training.checkpoint import check_same_run, evaluation_changed, load_checkpoint, restore, save_checkpoint
from training.data.image_index import training_files
from training.monitor import read_log
from training.pretrain import pretrain
from training.recipes import find_recipe
from training.run import Callback
from training.setup import FREE, choices_of, sizes_of


class Rates(Callback):
    """Notes the learning rate of each step."""

    def __init__(self):
        self.rates = {}

    def on_step(self, run, result):
        self.rates[run.step] = result.lr


class Layouts(Callback):
    """Notes types and strides of all tensors, and the options of the optimizer, at the start and at the end."""

    def on_start(self, run):
        self.at_start = self.of(run)

    def on_end(self, run):
        self.at_end = self.of(run)

    @staticmethod
    def of(run) -> dict:
        groups = run.optimizer.param_groups
        found = dict(run.learner.state_dict())
        for number, weight in enumerate(weight for group in groups for weight in group["params"]):
            for name, value in run.optimizer.state[weight].items():
                found[f"{name} of {number}"] = torch.as_tensor(value)
        options = [{key: value for key, value in group.items() if key not in ("params", "lr")} for group in groups]
        return {
            "tensors": {name: (value.dtype, value.stride()) for name, value in found.items()},
            "options": options,
            "threads": torch.get_num_threads(),
        }


def test_a_run_continues_with_more_epochs_on_the_longer_schedule(photos, tmp_path, capsys):
    out, rest, whole = tmp_path / "run", Rates(), Rates()
    short = pretrain(recipe("epochs=1", "warmup_epochs=0"), photos, out)
    assert short.finished
    done = pretrain(recipe("epochs=3", "warmup_epochs=0"), photos, out, resume=True, callbacks=[rest])
    assert (done.finished, done.step) == (True, 3 * short.step)
    assert "1 before, 3 now" in " ".join(capsys.readouterr().err.split())
    pretrain(recipe("epochs=3", "warmup_epochs=0"), photos, tmp_path / "whole", callbacks=[whole])
    assert rest.rates == {step: rate for step, rate in whole.rates.items() if step > short.step}
    assert [line["step"] for line in read_log(out) if "loss" in line][-1] == done.step


@pytest.mark.parametrize("optimizer", ["lars", "sgd", "adamw"])
def test_a_resumed_run_has_the_memory_layout_of_one_that_never_stopped(optimizer, photos, tmp_path):
    """Weights or momenta in another layout than the gradients would make each later step slower."""
    before, after = Layouts(), Layouts()
    settings = recipe(f"optimizer={optimizer}")
    pretrain(settings, photos, tmp_path / "run", minutes=0, callbacks=[before])
    pretrain(settings, photos, tmp_path / "run", minutes=0, resume=True, callbacks=[after])
    assert after.at_start == before.at_end == after.at_end
    strides = [stride for _, stride in after.at_start["tensors"].values() if len(stride) == 4]
    assert any(stride[1] == 1 for stride in strides), "no kernel is channels_last"


def test_a_run_ends_earlier_with_fewer_epochs_but_not_before_those_it_has_done(photos, tmp_path):
    out, rest, short = tmp_path / "run", Rates(), Rates()
    settings = ["warmup_epochs=0", "log_every=1"]
    stopped = pretrain(recipe("epochs=5", *settings), photos, out, minutes=0)
    assert not stopped.finished
    done = pretrain(recipe("epochs=2", *settings), photos, out, resume=True, callbacks=[rest])
    pretrain(recipe("epochs=2", *settings), photos, tmp_path / "short", callbacks=[short])
    assert done.finished
    assert rest.rates == {step: rate for step, rate in short.rates.items() if step > stopped.step}
    with pytest.raises(CheckpointError):
        pretrain(recipe("epochs=1", *settings), photos, out, resume=True)


def test_a_run_continues_at_its_epoch_after_images_were_added_and_removed(folder, tmp_path, capsys):
    out, settings = tmp_path / "run", recipe("epochs=4", "batch_size=8", "queue_size=1000")
    before = training_files([folder])
    first = pretrain(settings, folder, out, callbacks=[StopAt(12)])
    saved = load_checkpoint(out)
    assert saved is not None
    epoch = first.step / (len(before) // 8)
    images = sorted(folder.rglob("*.jpg"))
    images[1].unlink()  # the image of number 0 stays
    for number, image in enumerate(images[2:12]):
        shutil.copy(image, image.with_name(f"{number}-{image.name}"))
    now = training_files([folder])
    done = pretrain(settings, folder, out, resume=True, minutes=0)
    assert "10 added and 1 removed" in " ".join(capsys.readouterr().err.split())
    assert done.step == round(epoch * (len(now) // 8)) + 1
    after = load_checkpoint(out)
    assert after is not None
    assert after["settings"]["queue_size"] == saved["settings"]["queue_size"], "it was fitted to fewer images"
    rows = saved["learner"]["support_set.queue"]
    same = [
        (int(saved["learner"]["support_set.ids"][i]), int(after["learner"]["support_set.ids"][i]))
        for i in range(len(rows))
        if torch.equal(rows[i], after["learner"]["support_set.queue"][i])
        and saved["learner"]["support_set.ids"][i] >= 0
    ]
    assert len(same) >= 50, "most rows are older than the last step"
    assert 0 in dict(same), "the first image is in the queue"
    for old, new in same:
        assert before[old] == now[new] if new >= 0 else before[old] == images[1]
    ids, labels = (after["learner"][f"support_set.{name}"] for name in ("ids", "labels"))
    assert labels[ids >= 0].tolist() == now.labels[ids[ids >= 0]].tolist()
    assert (labels[ids < 0] == -1).all(), "the label of a removed image is forgotten"
    steps = [line["step"] for line in read_log(out)]
    assert steps == sorted(steps)


def test_a_small_set_loses_an_image(photos, tmp_path):
    """The queue and the batch were fitted to the images of the start."""
    out, settings = tmp_path / "run", recipe("epochs=2", "batch_size=1000", "queue_size=1000")
    folder = shutil.copytree(photos / "cat", tmp_path / "cat")  # a single class, without scores
    images = sorted(folder.glob("*.jpg"))
    pretrain(settings, folder, out, minutes=0)
    before = load_checkpoint(out)
    images[0].unlink()
    assert pretrain(settings, folder, out, resume=True).finished
    after = load_checkpoint(out)
    assert before is not None
    assert after is not None
    for name in ("batch_size", "queue_size"):
        assert after["settings"][name] == before["settings"][name]
    assert before["settings"]["queue_size"] == len(images)


def test_checkpoints_are_kept_and_written_by_minutes(photos, tmp_path):
    saves = []

    class Saves(Callback):
        def on_checkpoint(self, run):
            saves.append(run.step)

    out, settings = tmp_path / "run", recipe("epochs=3", "checkpoint_every=3", "keep_every=2")
    steps = pretrain(settings.with_settings({"checkpoint_minutes": 1e-9}), photos, out, callbacks=[Saves()]).step
    assert saves == list(range(1, steps + 1))
    assert [path.name for path in (out / "kept").iterdir()] == ["epoch-2"]
    kept = out / "kept" / "epoch-2"
    assert (kept / "encoder" / "model.safetensors").exists()
    assert pretrain(settings, photos, kept, resume=True).finished
    kept_weights = weights(kept)
    for name, value in weights(out).items():
        assert torch.equal(value, kept_weights[name]), name


# ---- what belongs to one run


def saved_of(chosen, **changes) -> dict:
    about = {"recipe": chosen.name, "settings": dataclasses.asdict(chosen), "init": None, "files": "a"}
    return {**about, "step": 3, "steps_per_epoch": 1, "learner": {}, "images": torch.arange(10), **changes}


def setup_of(chosen, digest: str = "a", first: int = 0, init=None, teacher=None) -> SimpleNamespace:
    """Return a setup of ten images, of which those from number 10 on are not in the checkpoint."""
    files = SimpleNamespace(digest=digest, fingerprints=np.arange(first, first + 10))
    return SimpleNamespace(recipe=chosen, files=files, init=init, teacher=teacher)


def test_a_checkpoint_continues_with_free_settings_and_half_of_its_images(tmp_path):
    chosen = recipe("epochs=4")
    saved = saved_of(chosen)
    check_same_run(saved, setup_of(chosen), tmp_path)
    check_same_run(saved, setup_of(recipe("epochs=9", "chunk=2", "log_every=7"), "b", 5), tmp_path)
    long, short = recipe("epochs=6", "warmup_epochs=2"), recipe("epochs=1", "warmup_epochs=0.1")
    for one, other in ((long, short), (short, long)):  # the warm-up of a single epoch was shortened, not chosen
        check_same_run(saved_of(one, step=0), setup_of(other), tmp_path)


@pytest.mark.parametrize(
    ("saved", "settings", "now", "init", "named"),
    [
        ({}, ["base_lr=0.5"], ("a", 0), None, "base_lr"),
        ({"recipe": "small"}, [], ("a", 0), None, "recipe"),
        ({"init": "starter"}, [], ("a", 0), None, "--init"),
        ({}, [], ("a", 0), "starter", "--init"),
        ({}, ["epochs=3"], ("a", 0), None, "epochs"),
        ({}, ["epochs=9", "warmup_epochs=3"], ("a", 0), None, "warmup_epochs"),
        ({}, [], ("b", 6), None, "4 of 10"),
        ({"settings": {"epochs": 4, "cut_from": "originals"}}, [], ("a", 0), None, "cut_from"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_by_name(saved, settings, now, init, named, tmp_path):
    before, chosen = recipe("epochs=4", "cut_from=pack"), recipe("epochs=4", "cut_from=pack", *settings)
    changed = saved_of(before, **saved)
    changed["settings"] = {**dataclasses.asdict(before), **changed["settings"]}
    with pytest.raises(CheckpointError, match=named):
        check_same_run(changed, setup_of(chosen, *now, init=init), tmp_path)


@pytest.mark.parametrize("name", [name for name in recipe().values() if name not in FREE])
def test_no_other_setting_may_change(name, tmp_path):
    """The weights depend on each of them."""
    saved = saved_of(recipe())
    saved["settings"] = {**saved["settings"], name: "another"}
    with pytest.raises(CheckpointError, match=f"{name} was another"):
        check_same_run(saved, setup_of(recipe()), tmp_path)


def test_the_teacher_must_be_the_same(tmp_path):
    teacher = SimpleNamespace(fingerprint="a")
    check_same_run(saved_of(recipe(), teacher="a"), setup_of(recipe(), teacher=teacher), tmp_path)
    for saved, now in (("b", teacher), ("a", None), (None, teacher)):
        with pytest.raises(CheckpointError, match="teacher"):
            check_same_run(saved_of(recipe(), teacher=saved), setup_of(recipe(), teacher=now), tmp_path)


def test_a_checkpoint_is_on_the_disk_before_it_replaces_the_last_one(tmp_path, monkeypatch):
    events, sync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (events.append("sync"), sync(file)))
    monkeypatch.setattr(os, "replace", lambda *names: (events.append("replace"), replace(*names)))
    save_checkpoint(tmp_path, {"step": 1})
    assert events == ["sync", "replace"]
    assert load_checkpoint(tmp_path) == {"step": 1}


def test_a_changed_folder_keeps_scores_and_drops_neighbors_that_name_other_images(tmp_path):
    """Image 9 was removed, and 10 was added."""
    (tmp_path / "neighbors.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "log.jsonl").write_text('{"step": 10, "epoch": 1.0}\n')
    network = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    chosen = recipe("epochs=4")
    run = SimpleNamespace(learner=network, optimizer=optimizer, recipe=chosen, out=tmp_path, steps=20, step=0)
    run.batches, run.ranks = SimpleNamespace(steps_per_epoch=5), SimpleNamespace(first=True)
    saved = saved_of(chosen, step=10, steps_per_epoch=10, scores={"knn20/a": 0.5}, scaler={})
    saved |= {"learner": network.state_dict(), "optimizer": optimizer.state_dict()}
    restore(run, saved, SimpleNamespace(fingerprints=np.arange(1, 11), labels=np.zeros(10)), Console(quiet=True))
    assert (run.step, run.scores) == (5, {"knn20/a": 0.5})
    assert not (tmp_path / "neighbors.jsonl").exists()
    assert read_log(tmp_path) == [{"step": 5, "epoch": 1.0}]


def test_a_checkpoint_without_fingerprints_needs_the_same_images(tmp_path):
    saved = saved_of(recipe())
    del saved["images"]
    check_same_run(saved, setup_of(recipe()), tmp_path)
    with pytest.raises(CheckpointError):
        check_same_run(saved, setup_of(recipe(), "b"), tmp_path)


def test_an_encoder_of_another_size_or_crop_is_exported_again():
    saved = saved_of(recipe())
    for change, expected in {"log_every=2": False, "eval_size=64": True, "eval_crop=0.5": True}.items():
        assert evaluation_changed(saved, recipe(change)) == expected


def test_auto_keeps_what_it_chose_when_the_run_began():
    before = recipe("epochs=30", "image_size=64", "pack_size=128", "batch_size=128", "eval_size=64")
    auto = find_recipe("auto")
    kept = choices_of(saved_of(before), auto.with_settings(["image_size=96"]))
    assert (kept.epochs, kept.image_size, kept.batch_size, kept.eval_size) == (30, 96, 128, auto.eval_size)
    assert choices_of(saved_of(before), auto.with_settings(["epochs=50"])).epochs == 50


@pytest.mark.parametrize(
    ("asked", "images", "expected"),
    [((64, 100), 40, (32, 50)), ((64, 100), 30, (8, 50)), ((16, 100), 40, (8, 50)), ((64, 40), 40, (32, 30))],
)
def test_sizes_of_the_start_stay_unless_they_are_too_large_now(asked, images, expected):
    """The run began with batches of 32 and 50 rows; images of today allow batches of 8 and 30 rows."""
    saved = saved_of(recipe("batch_size=32", "queue_size=50"))
    wanted = recipe(f"batch_size={asked[0]}", f"queue_size={asked[1]}")
    found = sizes_of(saved, wanted, recipe("batch_size=8", "queue_size=30"), images)
    assert (found.batch_size, found.queue_size) == expected
