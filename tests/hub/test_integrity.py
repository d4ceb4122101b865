"""Files of a model folder are verified by their hashes, and copied whole and over nothing of somebody else's."""

import shutil
from pathlib import Path

import pytest

from nnclr_hub import load_encoder
from nnclr_hub.cache import cache_folder
from nnclr_hub.errors import InvalidRequest, ModelError, ModelFilesMissing, TamperedModel
from nnclr_hub.hub.layout import CONFIG, WEIGHTS, sha256_of
from nnclr_hub.hub.registry import default_model
from nnclr_hub.hub.sources import keep, resolve, verify


@pytest.mark.parametrize("harm", ["flipped", "truncated", "swapped"])
def test_harmed_weights_are_refused_before_and_after_they_were_good(model, make_model, tmp_path, harm):
    folder = shutil.copytree(model, tmp_path / "model")
    load_encoder(folder, device="cpu")
    data = (folder / WEIGHTS).read_bytes()
    harmed = {
        "flipped": data[:-1] + bytes([data[-1] ^ 1]),
        "truncated": data[:-1],
        "swapped": (make_model(seed=3) / WEIGHTS).read_bytes(),
    }[harm]
    (folder / WEIGHTS).write_bytes(harmed)
    with pytest.raises(TamperedModel):
        load_encoder(folder, device="cpu")
    with pytest.raises(TamperedModel):
        verify(str(folder))


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_an_unreadable_disk_is_reported(model, tmp_path, name):
    """Use the memory of a process, a file whose first bytes give an I/O error."""
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / name).unlink()
    (folder / name).symlink_to("/proc/self/mem")
    for load in (load_encoder, verify):
        with pytest.raises(ModelFilesMissing):
            load(str(folder))


def test_a_user_without_a_home_has_a_cache_folder(monkeypatch):
    """Run as in a container whose user id has no name."""

    def unknown(_: int) -> None:
        raise KeyError

    for name in ("HOME", "NNCLR_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert cache_folder() == Path("~/.cache/nnclr_hub")


def test_a_copy_is_the_model_and_a_second_one_writes_nothing_or_completes_it(tmp_path):
    name = default_model()
    folder = keep(resolve(name), tmp_path / "there" / "model")
    original = resolve(name).folder
    assert original is not None
    names = sorted(path.name for path in original.iterdir())
    assert sorted(path.name for path in folder.iterdir()) == names
    assert load_encoder(folder, device="cpu").fingerprint == load_encoder(name, device="cpu").fingerprint
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    keep(resolve(name), folder)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == times
    (folder / CONFIG).unlink()  # a copy that was stopped
    (folder / ".download-left").mkdir()
    assert keep(resolve(name), folder) == folder
    assert sorted(path.name for path in folder.iterdir()) == names


def test_weights_under_a_name_of_their_own_get_the_usual_one(model, tmp_path):
    """timm and transformers look for no other."""
    digest = sha256_of(model / WEIGHTS)
    shutil.copy(model / CONFIG, tmp_path)
    shutil.copy(model / WEIGHTS, tmp_path / f"encoder-{digest}.safetensors")
    folder = keep(resolve(str(tmp_path / f"encoder-{digest}.safetensors")), tmp_path / "copy")
    assert sha256_of(folder / WEIGHTS) == digest


def test_files_of_others_are_not_overwritten(model, make_model, tmp_path):
    found = resolve(str(model))
    for number, (name, text) in enumerate({"thesis.txt": "mine", CONFIG: "{}"}.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_text(text)
        with pytest.raises(InvalidRequest):
            keep(found, folder)
        assert (folder / name).read_text() == text
    with pytest.raises(InvalidRequest):
        keep(resolve("random:resnet18"), tmp_path / "random")
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError):
        keep(found, tmp_path / "file")
