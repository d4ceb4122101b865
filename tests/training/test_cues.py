"""`auto` keeps colors in the views if the user's labels differ in color, and not otherwise."""

import csv
import json

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from tiny_runs import TINY

from training.ablate import for_data
from training.evals.task import Part, table_set
from training.pretrain import pretrain
from training.recipes import find_recipe
from training.recipes.auto import AUTO, Cues, Situation
from training.situation import measure_cues

QUIET = Console(quiet=True)
IMAGES = 40


def draw(folder, cue):
    """Write images of two classes, which differ in `cue` alone: red or green, a horizontal or a vertical bar."""
    folder.mkdir()
    random = np.random.default_rng(0)
    rows = []
    for number in range(IMAGES):
        kind = number % 2
        red, upright = {"color": (kind, random.integers(2)), "shape": (random.integers(2), kind)}[cue]
        pixels = random.integers(0, 60, (48, 48, 3), np.uint8)
        bar = np.s_[:, 18:30] if upright else np.s_[18:30, :]
        pixels[bar][..., 0 if red else 1] += 150 if red else 76  # as bright, so that gradients do not tell colors
        Image.fromarray(pixels).save(folder / f"{number}.png")
        rows.append((f"{number}.png", f"kind{kind}"))
    table = folder.parent / f"{cue}-labels.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    return folder, table


@pytest.mark.parametrize(("cue", "augmentation"), [("color", "keep_color"), ("shape", "byol")])
def test_auto_keeps_colors_where_they_tell_the_labels_apart(tmp_path, cue, augmentation, monkeypatch):
    folder, table = draw(tmp_path / "images", cue)
    labeled = table_set(table, [folder]).train
    found = measure_cues(labeled, QUIET)
    assert found.color_wins == (cue == "color")
    assert {"color": found.color, "shape": found.shape}[cue] > 0.9
    chosen = for_data(find_recipe("auto"), [folder], "cpu", QUIET, labeled)
    assert chosen.augmentation == augmentation
    given = find_recipe("auto").with_settings(["augmentation=simclr"])
    with monkeypatch.context() as patch:
        patch.setattr("training.situation.measure_cues", None)  # is not needed
        assert for_data(given, [folder], "cpu", QUIET, labeled).augmentation == "simclr"
    assert for_data(find_recipe("auto"), [folder], "cpu", QUIET).augmentation == "byol", "without labels"


@pytest.mark.parametrize("side", [32, 200])
def test_auto_keeps_colors_on_a_gpu(side):
    situation = Situation(5000, side, on_gpu=True, cues=Cues(0.9, 0.5, color_wins=True))
    assert AUTO.recipe.choose(situation)[0].augmentation == "keep_color"


def test_labels_that_allow_no_comparison_change_nothing(tmp_path):
    folder, _ = draw(tmp_path / "images", "color")
    paths = tuple(sorted(folder.iterdir()))
    for labels in (np.zeros(IMAGES, np.int64), np.full(IMAGES, -1), np.r_[0, 1, np.full(IMAGES - 2, -1)]):
        assert measure_cues(Part(paths, labels), QUIET) is None
    for path in paths[1:]:
        path.write_bytes(b"")
    assert measure_cues(Part(paths, np.arange(IMAGES) % 2), QUIET) is None, "one is readable"


def test_a_run_with_labels_uses_the_choice_and_keeps_it_when_resumed(tmp_path):
    folder, table = draw(tmp_path / "images", "color")
    auto, out = find_recipe("auto").with_settings([*TINY, "epochs=1"]), tmp_path / "run"
    for options in ({"labels": table}, {"resume": True}):
        assert not pretrain(auto, [folder], out, minutes=0, **options).finished
        assert json.loads((out / "run.json").read_text())["augmentation"] == "keep_color"
