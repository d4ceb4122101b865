"""A model is copied whole, once, and over nothing of somebody else's."""

import shutil

import pytest

from nnclr_hub import load_encoder
from nnclr_hub.errors import InvalidRequest, ModelError
from nnclr_hub.hub.copies import keep
from nnclr_hub.hub.layout import CONFIG, WEIGHTS, sha256_of
from nnclr_hub.hub.registry import default_model
from nnclr_hub.hub.sources import resolve


def test_a_copy_is_the_model_and_a_second_one_writes_nothing(tmp_path):
    name = default_model()
    folder = keep(resolve(name), tmp_path / "there" / "model")
    original = resolve(name).folder
    assert original is not None
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in original.iterdir())
    assert load_encoder(folder, device="cpu").fingerprint == load_encoder(name, device="cpu").fingerprint
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    keep(resolve(name), folder)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == times


def test_a_copy_that_was_stopped_is_completed(model, tmp_path):
    folder = keep(resolve(str(model)), tmp_path / "model")
    (folder / CONFIG).unlink()
    (folder / ".download-left").mkdir()
    assert keep(resolve(str(model)), folder) == folder
    assert resolve(str(folder)).folder == folder
    assert not (folder / ".download-left").exists()


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
