"""The verbs: what they do, what they print, and how they say no."""

import json
import shutil
from pathlib import Path

import pytest
from commands import nnclr, output_of, refused

from nnclr_hub.store import open_store


@pytest.fixture
def store(tmp_path) -> Path:
    return tmp_path / "store"


def index(folder, store, *more, model):
    return json.loads(
        output_of("index", folder, "--collection", "c", "--store", store, "--model", model, "--json", *more)
    )


def test_indexing_a_folder_without_readable_images_fails_and_leaves_nothing(tmp_path, store, model, image_files):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "one.jpg").write_bytes(b"garbage")
    call = ("index", tmp_path / "broken", "--collection", "c", "--store", store, "--model", model)
    assert "None of 1 image " in refused(*call, code=1)
    assert not store.exists()
    index(image_files[0].parent, store, model=model)
    assert "None of 1 image " in refused(*call, "--collection", "d", code=1)  # the last one counts
    with open_store(str(store), read_only=True) as opened:
        assert [info.name for info in opened.list()] == ["c"]


def test_a_search_names_unreadable_images_and_answers_for_the_others(folder, store, model, image_files):
    index(folder, store, model=model)
    gone = folder / "gone.jpg"
    broken = folder / "broken.jpg"
    broken.write_bytes(b"garbage")
    code, out, err = nnclr("search", broken, image_files[3], gone, "--collection", "c", "--store", store)
    assert code == 1
    assert "astronaut/03.jpg" in out
    first, second = err.splitlines()
    assert str(broken) in first
    assert str(gone) in second


def test_a_recipe_shows_its_settings():
    out = output_of("pretrain", "small_cpu", "--settings", "--set", "epochs=3")
    assert "epochs" in out
    assert "Hardware" in out


def test_invalid_calls_are_explained_and_create_nothing(folder, store, model, tmp_path, image_files):
    empty = tmp_path / "empty"
    empty.mkdir()
    call = ("--collection", "c", "--store", store)
    assert str(empty) in refused("index", empty, *call, "--model", model, code=2)
    assert not store.exists()
    index(folder, store, model=model)
    assert "d" in refused("search", image_files[0], "--collection", "d", "--store", store, code=1)
    assert "vectors" in refused("index", folder, *call, "--model", "random:test_resnet", code=1)
    with open_store(str(store)):
        assert "Error" in refused("index", folder, *call, code=1)
        assert nnclr("search", image_files[0], *call)[0] == 0  # reading works while another process writes
    assert str(empty) in refused("pretrain", "small_cpu", "--data", empty, "--out", tmp_path / "run", code=2)
    assert not (tmp_path / "run").exists()


def test_two_folders_with_the_same_names_do_not_overwrite_each_other(folder, store, model, tmp_path):
    index(folder, store, model=model)
    other = shutil.copytree(folder, tmp_path / "other")
    sentence = refused("index", other, "--collection", "c", "--store", store, "--model", model, code=2)
    assert str(folder) in sentence
    moved = folder.rename(tmp_path / "moved")  # a moved folder may be indexed again
    assert index(moved, store, model=model)["items"] == 60
    with open_store(str(store)) as opened:  # as if a client had uploaded it
        opened.get("c").update_metadata({"root": "photos-0123abcd@laptop"}, where={"must": []})
    assert index(moved, store, model=model)["items"] == 60
    with open_store(str(store)) as opened:
        opened.get("c").update_metadata({"root": "photos-0123abcd@laptop"}, where={"must": []})
    shutil.copy(moved / "cat" / "01.jpg", moved / "cat" / "00.jpg")
    assert "laptop" in refused("index", moved, "--collection", "c", "--store", store, "--model", model, code=2)
