"""nnclr attention and attention-grid write the maps of the library and refuse invalid calls."""

import json
import shutil

import numpy as np
import pytest
from commands import nnclr, output_of, refused
from PIL import Image

from nnclr_hub import Box, Point, load_encoder


def test_one_map_in_a_folder(model, image_files, tmp_path):
    output_of("attention", image_files[0], "--model", model, "--opacity", 0.4, "--out", tmp_path / "out")
    expected = load_encoder(model).attention(image_files[0])
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "00-attention.npy"), expected.values)
    with Image.open(tmp_path / "out" / "00-attention.png") as read:
        np.testing.assert_array_equal(np.asarray(read), np.asarray(expected.overlay(0.4)))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["00-attention.npy", "00-attention.png"]


def test_every_option_reaches_the_library(model, image_files, tmp_path):
    options = ["--box", "10,12,40,50", "--similarity", "cosine", "--max-side", 300, "--json", "--model", model]
    targets = ["--target", image_files[1], "--target", image_files[30]]
    out = output_of("attention", image_files[0], *options, *targets, "--out", tmp_path)
    expected = load_encoder(model).attention(
        image_files[0], Box(10, 12, 40, 50), target=[image_files[1], image_files[30]], similarity="cosine", max_side=300
    )
    entries = json.loads(out)
    assert [entry["image"] for entry in entries] == [str(image_files[1]), str(image_files[30])]
    for entry, one in zip(entries, expected, strict=True):
        np.testing.assert_array_equal(np.array(entry["values"], np.float32), one.values)
        assert entry["limits"] == list(one.limits)
    assert (tmp_path / "figure.png").is_file()
    assert len(list(tmp_path.glob("*-attention.npy"))) == 2


def test_one_file(model, image_files, tmp_path):
    output_of("attention", image_files[0], "--point", "5,60", "--model", model, "--out", tmp_path / "map.png")
    expected = load_encoder(model).attention(image_files[0], Point(5, 60))
    with Image.open(tmp_path / "map.png") as read:
        np.testing.assert_array_equal(np.asarray(read), np.asarray(expected.overlay()))
    assert [path.name for path in tmp_path.iterdir()] == ["map.png"]


@pytest.mark.parametrize("call", ["map", "figure", "grid"])
def test_an_input_image_is_never_overwritten(model, image_files, tmp_path, call):
    photo = tmp_path / "figure.png"
    Image.open(image_files[0]).save(photo)
    before = photo.read_bytes()
    words = {
        "map": ("attention", photo, "--model", model, "--out", photo),
        "figure": ("attention", photo, "--model", model, "--point", "3,3", "--out", tmp_path),
        "grid": ("attention-grid", photo, "--source", f"it={model}", "--out", photo),
    }[call]
    assert "--out" in refused(*words, code=2)
    assert photo.read_bytes() == before


def test_only_output_of_an_earlier_call_is_overwritten(model, image_files, tmp_path):
    """Images from an editor are kept, whether in the place of a map, a figure or a grid; older maps are replaced."""
    map_, figure = tmp_path / "00-attention.png", tmp_path / "figure.png"
    grid = ("attention-grid", image_files[0], "--source", model, "--out", tmp_path / "grid.png")
    one = ("attention", image_files[0], "--model", model, "--out")
    calls = ((map_, (*one, tmp_path)), (figure, (*one, tmp_path, "--point", "3,3")), (tmp_path / "grid.png", grid))
    for place, call in calls:
        Image.open(image_files[0]).save(place)
        before = place.read_bytes()
        assert f"overwrite {place}" in refused(*call, code=2)
        assert place.read_bytes() == before
        place.unlink()
        for opacity in (1, 0.3):
            output_of(*call, "--opacity", opacity)
    with Image.open(map_) as read:
        np.testing.assert_array_equal(
            np.asarray(read), np.asarray(load_encoder(model).attention(image_files[0], Point(3, 3)).overlay(0.3))
        )


def test_an_array_is_overwritten_only_next_to_its_map(model, image_files, tmp_path):
    notes = tmp_path / "00-attention.npy"
    notes.write_text("mine")
    call = ("attention", image_files[0], "--model", model, "--out")
    assert f"overwrite {notes}" in refused(*call, tmp_path, code=2)
    output_of(*call, tmp_path / "00-attention.png")  # one file: no array of it is written
    assert notes.read_text() == "mine"
    output_of(*call, tmp_path)
    assert np.load(notes).ndim == 2


def test_a_grid_of_encoders(model, image_files, tmp_path):
    to = tmp_path / "deep" / "grid.png"
    sources = ["--source", f"ours={model}", "--source", "gone=/nowhere/encoder"]
    code, out, err = nnclr("attention-grid", image_files[0], image_files[25], *sources, "--out", to, "--json")
    assert code == 0, err
    entries = json.loads(out)
    assert [(column["name"], len(column["maps"])) for column in entries["columns"]] == [("ours", 2), ("gone", 0)]
    assert "/nowhere/encoder" in err
    with Image.open(to) as read:
        assert read.width > read.height


REFUSED = [  # TARGET is an image, and the error line has these parts
    ("--target TARGET --target TARGET --out map.png", ["2 maps"]),
    ("--head 0", ["ResNet"]),
    ("--max-side 9", ["max_side"]),
    ("--center-prior --point 3,3", ["center_prior", "point"]),
    ("--center-prior --box 3,3,9,9", ["center_prior", "box"]),
    ("--center-prior --threshold 0.5", ["center_prior", "threshold"]),
    ("--center-prior --target TARGET", ["center_prior", "target"]),
]


def test_invalid_options_are_refused(model, image_files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options, parts in REFUSED:
        words = options.replace("TARGET", str(image_files[1])).split()
        line = refused("attention", image_files[0], "--model", model, *words, code=2)
        assert [part for part in parts if part not in line] == [], line
    grid = ("attention-grid", image_files[0], "--source")
    assert "must end in .png" in refused(*grid, model, "--out", "grid.jpg", code=2)
    assert "does not exist" in refused(*grid, "/nowhere/encoder", "--out", "grid.png", code=2)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_images_is_no_place_for_maps(model, image_files, tmp_path):
    for folder, number in (("a", 0), ("b", 1)):
        (tmp_path / folder).mkdir()
        shutil.copy(image_files[number], tmp_path / folder)
    here, other = tmp_path / "a" / image_files[0].name, tmp_path / "b" / image_files[1].name
    for words in ((here, "--out", here.parent), (here, "--out", other.parent), (here, "--target", other)):
        more = ("--out", other.parent) if "--target" in words else ()
        assert "--out" in refused("attention", *words, *more, "--model", model, code=2)
    assert [one.name for one in other.parent.iterdir()] == [other.name]
    output_of("attention", here, "--model", model, "--out", here.parent / "maps")
    output_of("attention", here, "--model", model, "--out", here.parent / "maps")
