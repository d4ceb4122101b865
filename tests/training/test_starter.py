"""`--labels` in pretrain and ablate: a held-out curve, and whether the run is better than a starter."""

import csv
import json
import shutil

import numpy as np
import pytest
from rich.console import Console
from tiny_runs import recipe

from nnclr_hub.encoder.hand_crafted import FLOORS
from nnclr_hub.errors import InvalidRequest, ModelError
from training import ablate, starter
from training.evaluation import table_set
from training.monitor import read_log
from training.pretrain import pretrain

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def flat(photos, tmp_path_factory):
    """Copy the photos into one folder, and list the labels of 45 of them in a table next to it."""
    folder = tmp_path_factory.mktemp("flat") / "photos"
    folder.mkdir()
    rows = []
    for path in sorted(photos.rglob("*.jpg")):
        name = f"{path.parent.name}-{path.name}"
        shutil.copy(path, folder / name)
        if int(path.stem) < 15:
            rows.append((name, path.parent.name))
    table = folder.parent / "known.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    return folder, table


class Noise:
    """Vectors that say nothing about an image."""

    embed_dim = 16

    def __init__(self, seed):
        self.seed, self.name, self.fingerprint = seed, f"noise {seed}", f"noise {seed}"

    def features_each(self, images):
        random = np.random.default_rng(self.seed)
        return [random.normal(size=16).astype(np.float32) for _ in images]


def test_a_run_with_a_table_has_a_held_out_curve_and_an_answer(flat, model, tmp_path):
    folder, table = flat
    out = tmp_path / "run"
    done = pretrain(recipe("channels=8,16,24,32"), [folder], out, labels=table, init=str(model))
    assert {"knn20/known", "linear/known"} <= set(done.scores)
    curve = [line["knn20/known"] for line in read_log(out) if "knn20/known" in line]
    assert len(curve) == 3  # at the start, and at both checkpoints
    assert curve[-1] == done.scores["knn20/known"]
    about = json.loads((out / "starter.json").read_text())
    assert (about["starter"], about["labels"]) == (str(model), 45)
    assert about["low"] <= about["difference"] <= about["high"]
    assert about["difference"] == pytest.approx(about["accuracy"] - about["starter_accuracy"])
    assert starter.sentence(about).split(":")[0] in (out / "report.html").read_text().split("<details")[-1]


@pytest.mark.parametrize(
    ("run", "other", "answer"),
    [("color", "noise", "yes"), ("noise", "color", "no"), ("noise", "other noise", "cannot tell")],
)
def test_the_answer_is_that_of_a_paired_interval(flat, tmp_path, monkeypatch, run, other, answer):
    folder, table = flat
    sources = {"noise": Noise(0), "other noise": Noise(1), "color": FLOORS["color"]}
    monkeypatch.setattr(
        starter, "load_encoder", lambda source: sources[run if source == tmp_path / "encoder" else other]
    )
    said = starter.compare_with_starter(tmp_path, table_set(table, folder, [folder]), "other", QUIET)
    about = starter.read_comparison(tmp_path)
    assert about["better"] == answer
    assert about["difference"] != 0
    assert said == starter.sentence(about)
    assert (about["low"] > 0, about["high"] < 0) == (answer == "yes", answer == "no")


def test_an_unavailable_starter_is_left_out(flat, tmp_path, monkeypatch):
    def missing(source):
        raise ModelError("unavailable")

    monkeypatch.setattr(starter, "load_encoder", missing)
    assert starter.compare_with_starter(tmp_path, table_set(flat[1], flat[0], [flat[0]]), None, QUIET) is None
    assert starter.read_comparison(tmp_path) is None


def test_a_wrong_table_stops_before_the_images_are_read(flat, tmp_path):
    folder, table = flat
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("path,label\nnowhere.jpg,a\n")
    same = tmp_path / "photos.csv"
    shutil.copy(table, same)
    for one in (wrong, same):
        with pytest.raises(InvalidRequest):
            pretrain(recipe(), [folder], tmp_path / "run", labels=one)
    assert not (tmp_path / "run").exists()


def test_missing_files_of_a_table_are_named_and_left_out(flat, tmp_path, capsys):
    folder, table = flat
    longer = tmp_path / "longer.csv"
    longer.write_text(table.read_text() + "lost-1.jpg,cat\nlost-2.jpg,cat\n")
    found = table_set(longer, folder, [folder])
    assert len(found.train.paths) + len(found.test.paths) == 45
    done = pretrain(recipe("epochs=1"), [folder], tmp_path / "run", labels=longer, root=folder)
    assert "knn20/longer" in done.scores
    assert "lost-1.jpg" in capsys.readouterr().err


def test_the_rows_of_a_table_are_scored_by_labels(flat, tmp_path, monkeypatch):
    folder, table = flat
    monkeypatch.setattr(starter, "default_model", lambda: str(tmp_path / "missing"))
    base = recipe("epochs=1", "checkpoint_every=1")
    own = ["warmer: temperature=0.2"]
    [row] = ablate.ablate("own", base, [folder], tmp_path / "tables", rows=own, labels=table, console=QUIET)
    assert "knn20/known" in row.scores
