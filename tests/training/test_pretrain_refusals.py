"""Errors of the program: foreign folders, other runs and images, invalid networks, and full disks."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from tiny_runs import recipe

from nnclr_hub.errors import (
    CheckpointError,
    ImageError,
    InvalidRequest,
    NoImages,
    NoRoom,
    RunExists,
    UnknownModel,
    UnknownSetting,
)
from training.checkpoint import load_checkpoint, save_checkpoint
from training.pretrain import pretrain


def test_runs_are_never_overwritten_and_a_finished_one_stays_finished(data, finished, tmp_path):
    with pytest.raises(RunExists, match="--resume"):
        pretrain(recipe(), [data], finished)
    before = (finished / "checkpoint.pt").read_bytes()
    assert pretrain(recipe(), [data], finished, resume=True).finished
    assert (finished / "checkpoint.pt").read_bytes() == before
    fresh = tmp_path / "fresh"
    assert pretrain(recipe("epochs=1"), [data], fresh, resume=True).finished  # without a checkpoint it starts


def test_a_checkpoint_of_another_run_is_rejected(data, image_files, finished, tmp_path):
    for image in image_files:
        shutil.copy(image, tmp_path / f"other-{image.name}")
    with pytest.raises(CheckpointError, match=r"temperature was 0\.1, is 0\.2"):
        pretrain(recipe("temperature=0.2"), [data], finished, resume=True)
    with pytest.raises(CheckpointError, match="images have changed"):
        pretrain(recipe(), tmp_path, finished, resume=True)


@pytest.mark.parametrize("lacking", ["scaler", "clip"])
def test_a_checkpoint_of_another_version_is_rejected(data, finished, tmp_path, lacking):
    run = shutil.copytree(finished, tmp_path / "run")
    saved = load_checkpoint(run)
    del (saved["settings"] if lacking in saved["settings"] else saved)[lacking]
    save_checkpoint(run, saved)
    with pytest.raises(CheckpointError, match="another version"):
        pretrain(recipe("epochs=9"), [data], run, resume=True)


def test_a_damaged_checkpoint_is_rejected_and_a_full_disk_keeps_the_last(finished, tmp_path, monkeypatch):
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


def test_too_few_or_broken_images_are_explained(tmp_path, image_files, capsys):
    folder = tmp_path / "few"
    folder.mkdir()
    for i in range(8):
        (folder / f"bad{i}.jpg").write_bytes(b"garbage")
    with pytest.raises(NoImages, match="No image can be read"):
        pretrain(recipe(), [folder], tmp_path / "run")
    for path in image_files[:3]:
        shutil.copy(path, folder)
    with pytest.raises(NoImages, match="at least 8"):
        pretrain(recipe(), [folder], tmp_path / "run")
    assert "skipped" in capsys.readouterr().err


def test_too_few_images_are_rejected_before_anything_is_said_of_their_size(tmp_path, image_files, monkeypatch, capsys):
    monkeypatch.setattr("training.setup.build_pack", lambda *a, **k: pytest.fail("decoding started"))
    for path in image_files[:3]:
        shutil.copy(path, tmp_path)
    with pytest.raises(NoImages):
        pretrain(recipe(), [tmp_path], tmp_path / "run")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_folder_that_is_not_writable_is_rejected_before_decoding(data, tmp_path, monkeypatch, resume):
    monkeypatch.setattr("training.setup.build_pack", lambda *a, **k: pytest.fail("decoding started"))
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(NoRoom):
            pretrain(recipe(), [data], out, resume=resume)


def test_an_invalid_network_is_rejected_before_decoding(data, tmp_path, monkeypatch):
    monkeypatch.setattr("training.setup.build_pack", lambda *a, **k: pytest.fail("decoding started"))
    with pytest.raises(UnknownModel, match="resnet18"):
        pretrain(recipe("backbone=resnet19"), [data], tmp_path / "run")
    with pytest.raises(InvalidRequest, match="--set channels="):
        pretrain(recipe("backbone=vit_small"), [data], tmp_path / "run")
    settings = recipe("backbone=vit_small", "channels=", "image_size=40", "pack_size=40", "eval_size=40")
    with pytest.raises(InvalidRequest, match="multiple"):
        pretrain(settings, [data], tmp_path / "run")
    with pytest.raises(UnknownSetting, match="all four stages"):
        recipe("channels=16,32")
    with pytest.raises(UnknownSetting, match="pack_size"):
        recipe("image_size=64")
    assert not (tmp_path / "run").exists()


def test_resume_rejects_a_foreign_folder(data, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("mine")
    with pytest.raises(RunExists, match=r"thesis\.txt"):
        pretrain(recipe(), [data], tmp_path / "thesis", resume=True)


def test_a_full_disk_ends_the_run_with_an_error(data, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device", "report.html")

    monkeypatch.setattr("training.recorder.write_report", full)
    with pytest.raises(NoRoom, match=r"report\.html cannot be written"):
        pretrain(recipe(), [data], tmp_path / "run")
    assert load_checkpoint(tmp_path / "run")["step"] > 0


def test_a_lost_image_is_no_failure_to_write(data, tmp_path, monkeypatch):
    def lost(*arguments):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(tmp_path / "photos" / "a.jpg"))

    monkeypatch.setattr("training.recorder.write_report", lost)
    with pytest.raises(ImageError, match=r"a\.jpg"):
        pretrain(recipe(), [data], tmp_path / "run")
