"""nnclr attention and attention-grid write the maps of the library and refuse invalid calls."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from nnclr_hub import Box, Point, load_encoder
from nnclr_hub.cli.app import app


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_one_map_in_a_folder(model, image_files, tmp_path):
    done = run("attention", image_files[0], "--model", model, "--opacity", 0.4, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    expected = load_encoder(model).attention(image_files[0])
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "00-attention.npy"), expected.values)
    with Image.open(tmp_path / "out" / "00-attention.png") as read:
        np.testing.assert_array_equal(np.asarray(read), np.asarray(expected.overlay(0.4)))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["00-attention.npy", "00-attention.png"]


def test_every_option_reaches_the_library(model, image_files, tmp_path):
    options = ["--box", "10,12,40,50", "--similarity", "cosine", "--max-side", 300, "--json", "--model", model]
    targets = ["--target", image_files[1], "--target", image_files[30]]
    done = run("attention", image_files[0], *options, *targets, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    expected = load_encoder(model).attention(
        image_files[0], Box(10, 12, 40, 50), target=[image_files[1], image_files[30]], similarity="cosine", max_side=300
    )
    entries = json.loads(done.stdout)
    assert [entry["image"] for entry in entries] == [str(image_files[1]), str(image_files[30])]
    for entry, one in zip(entries, expected, strict=True):
        np.testing.assert_array_equal(np.array(entry["values"], np.float32), one.values)
        assert entry["limits"] == list(one.limits)
    assert (tmp_path / "figure.png").is_file()
    assert len(list(tmp_path.glob("*-attention.npy"))) == 2


def test_one_file(model, image_files, tmp_path):
    done = run("attention", image_files[0], "--point", "5,60", "--model", model, "--out", tmp_path / "map.png")
    assert done.exit_code == 0, done.output
    expected = load_encoder(model).attention(image_files[0], Point(5, 60))
    with Image.open(tmp_path / "map.png") as read:
        np.testing.assert_array_equal(np.asarray(read), np.asarray(expected.overlay()))
    assert [path.name for path in tmp_path.iterdir()] == ["map.png"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--point", "5"], "--point"),
        (["--box", "1,2,3,x"], "X0,Y0,X1,Y1"),
        (["--box", "9,9,3,12"], "box"),
        (["--point", "1,1", "--box", "1,2,3,4"], "--box"),
        (["--point", "64,1"], "64 x 64"),
        (["--head", "0"], "ResNet"),
        (["--out", "map.jpg"], "map.png"),
        (["--threshold", "2"], "threshold"),
        (["--similarity", "l1"], "dot, cosine"),
        (["--opacity", "3"], "opacity"),
        (["--max-side", "9"], "max_side"),
    ],
)
def test_an_invalid_call_is_refused_without_a_traceback(model, image_files, tmp_path, options, words):
    done = run("attention", image_files[0], "--model", model, "--out", tmp_path / "out", *options)
    assert done.exit_code == 2
    assert words in done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "out").exists()


def test_an_input_image_is_never_overwritten(model, image_files, tmp_path):
    photo = tmp_path / "cat.png"
    Image.open(image_files[0]).save(photo)
    before = photo.read_bytes()
    done = run("attention", photo, "--model", model, "--out", photo)
    assert (done.exit_code, photo.read_bytes()) == (2, before)
    assert "overwrite" in done.output


def test_a_figure_and_a_grid_never_overwrite_an_input_image(model, image_files, tmp_path):
    photo = tmp_path / "figure.png"
    Image.open(image_files[0]).save(photo)
    before = photo.read_bytes()
    figure = run("attention", photo, "--model", model, "--point", "3,3", "--out", tmp_path)
    grid = run("attention-grid", photo, "--source", f"it={model}", "--out", photo)
    assert photo.read_bytes() == before
    for done in (figure, grid):
        assert done.exit_code == 2
        assert "overwrite" in done.output


def test_only_output_of_an_earlier_call_is_overwritten(model, image_files, tmp_path):
    """Images from an editor are kept, whether in the place of a map, a figure or a grid; older maps are replaced."""
    map_, figure = tmp_path / "00-attention.png", tmp_path / "figure.png"
    grid = ("attention-grid", image_files[0], "--source", model, "--out", tmp_path / "grid.png")
    one = ("attention", image_files[0], "--model", model, "--out")
    calls = ((map_, (*one, tmp_path)), (figure, (*one, tmp_path, "--point", "3,3")), (tmp_path / "grid.png", grid))
    for place, call in calls:
        Image.open(image_files[0]).save(place)
        before = place.read_bytes()
        done = run(*call)
        assert (done.exit_code, place.read_bytes()) == (2, before)
        assert f"overwrite {place}" in done.output
        place.unlink()
        for opacity in (1, 0.3):
            done = run(*call, "--opacity", opacity)
            assert done.exit_code == 0, done.output
    with Image.open(map_) as read:
        np.testing.assert_array_equal(
            np.asarray(read), np.asarray(load_encoder(model).attention(image_files[0], Point(3, 3)).overlay(0.3))
        )


def test_an_array_is_overwritten_only_next_to_its_map(model, image_files, tmp_path):
    notes = tmp_path / "00-attention.npy"
    notes.write_text("mine")
    call = ("attention", image_files[0], "--model", model, "--out")
    done = run(*call, tmp_path)
    assert (done.exit_code, notes.read_text()) == (2, "mine")
    assert f"overwrite {notes}" in done.output
    assert run(*call, tmp_path / "00-attention.png").exit_code == 0  # one file: no array of it is written
    assert notes.read_text() == "mine"
    assert run(*call, tmp_path).exit_code == 0
    assert np.load(notes).ndim == 2


def test_several_maps_do_not_fit_into_one_file(model, image_files, tmp_path):
    targets = ["--target", image_files[1], "--target", image_files[2]]
    done = run("attention", image_files[0], *targets, "--model", model, "--out", tmp_path / "map.png")
    assert done.exit_code == 2
    assert "2 maps" in done.output


def test_a_grid_of_encoders(model, image_files, tmp_path):
    to = tmp_path / "deep" / "grid.png"
    sources = ["--source", f"ours={model}", "--source", "gone=/nowhere/encoder"]
    done = run("attention-grid", image_files[0], image_files[25], *sources, "--out", to, "--json")
    assert done.exit_code == 0, done.output
    entries = json.loads(done.stdout)
    assert [(column["name"], len(column["maps"])) for column in entries["columns"]] == [("ours", 2), ("gone", 0)]
    assert "/nowhere/encoder" in done.stderr
    with Image.open(to) as read:
        assert read.width > read.height


def test_a_grid_needs_a_png_and_an_encoder(model, image_files, tmp_path):
    done = run("attention-grid", image_files[0], "--source", model, "--out", tmp_path / "grid.jpg")
    assert (done.exit_code, "must end in .png" in done.output) == (2, True)
    done = run("attention-grid", image_files[0], "--source", "/nowhere/encoder", "--out", tmp_path / "grid.png")
    assert (done.exit_code, "does not exist" in done.output) == (2, True)
