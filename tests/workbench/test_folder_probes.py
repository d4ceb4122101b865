"""Probes of folders whose classes differ from those of the probe: unreadable images, and classes in one split only."""

import csv
import json
import shutil

import numpy as np
import pytest
from commands import nnclr, refused

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.workbench.probes import FitOptions, evaluate_probe, fit_on_folder

L2 = FitOptions(l2=1e-3)


def break_class(folder) -> None:
    for path in folder.iterdir():
        path.write_bytes(b"no image")


def table(folder, path, extra: dict[str, str]):
    """Write a table with several labels an image: its folder, and the extra label of that folder."""
    with path.open("w", newline="") as file:
        rows = [
            (one, ";".join([one.parent.name, *extra.get(one.parent.name, "").split()])) for one in folder.rglob("*.jpg")
        ]
        csv.writer(file).writerows([("path", "labels"), *sorted(rows)])
    return path


def test_held_out_scores_are_those_of_the_classes_that_the_probe_has(encoder, folder):
    """`cat` is between the others, so its loss would move the numbers of the last class."""
    break_class(folder / "cat")
    fitted = fit_on_folder(encoder, folder, L2)
    assert fitted.without_images == ("cat",)
    shutil.rmtree(folder / "cat")
    alone = fit_on_folder(encoder, folder, L2)
    assert fitted.probe.classes == alone.probe.classes == ("astronaut", "coffee")
    assert fitted.held_out == alone.held_out
    assert alone.without_images == ()


def test_json_of_a_fit_has_the_scores_that_a_person_sees(model, folder, tmp_path):
    words = ("probe", "fit", folder, "--out", tmp_path / "p", "--model", model)
    (code, shown, _), (same, out, _) = nnclr(*words), nnclr(*words, "--json")
    assert (code, same) == (0, 0)
    fitted = json.loads(out)
    assert [one["label"] for one in fitted["per_class"]] == ["astronaut", "cat", "coffee"]
    assert f"3 classes from {fitted['rows']} images" in shown
    assert f"top1 {fitted['scores']['top1']:.3f}" in shown


def test_classes_that_lack_images_to_fit_on_are_named(encoder, data, tmp_path):
    folder = shutil.copytree(data, tmp_path / "data")
    (folder / "test").rename(folder / "val")
    break_class(folder / "train" / "cat")
    fitted = fit_on_folder(encoder, folder)
    assert (fitted.without_images, fitted.rows) == (("cat",), 28)
    shutil.rmtree(folder / "train" / "cat")
    fitted = fit_on_folder(encoder, folder)
    assert (fitted.without_images, fitted.probe.classes) == (("cat",), ("astronaut", "coffee"))
    break_class(folder / "train" / "coffee")
    with pytest.raises(InvalidRequest, match="14 images that cannot be read"):
        fit_on_folder(encoder, folder)


def test_images_of_classes_that_the_probe_lacks_count_as_wrong(model, encoder, folder, tmp_path):
    fewer = shutil.copytree(folder, tmp_path / "fewer")
    shutil.rmtree(fewer / "cat")
    nnclr("probe", "fit", fewer, "--out", tmp_path / "p", "--model", model, "--l2", "1e-3")
    probe = fit_on_folder(encoder, fewer, L2).probe
    known, every = (evaluate_probe(probe, encoder, one) for one in (fewer, folder))
    assert (known.unknown, every.unknown, every.images) == ({}, {"cat": 20}, 60)
    assert every.scores["top1"] == pytest.approx(known.scores["top1"] * 40 / 60)
    assert every.per_class == {**known.per_class, "cat": 0.0}
    code, _, err = nnclr("probe", "eval", folder, "--probe", tmp_path / "p")
    assert code == 0
    assert "20 images (cat)" in err
    shutil.rmtree(folder / "astronaut")
    shutil.rmtree(folder / "coffee")
    refused("probe", "eval", folder, "--probe", tmp_path / "p", code=2)


def test_several_labels_that_the_probe_lacks_have_no_precision(encoder, folder, tmp_path):
    probe = fit_on_folder(encoder, folder, L2, labels=table(folder, tmp_path / "a.csv", {})).probe
    known = evaluate_probe(probe, encoder, folder, labels=tmp_path / "a.csv")
    every = evaluate_probe(probe, encoder, folder, labels=table(folder, tmp_path / "b.csv", {"cat": "animal"}))
    assert every.unknown == {"animal": 20}
    assert every.scores["map11"] == pytest.approx(known.scores["map11"] * 3 / 4)
    assert np.mean(list(known.per_class.values())) == pytest.approx(known.scores["map11"])


def test_an_evaluation_on_images_of_the_fit_is_reported(model, folder, tmp_path):
    nnclr("probe", "fit", folder, "--out", tmp_path / "p", "--model", model, "--l2", "1e-3")
    evaluate = ("probe", "eval", "--probe", tmp_path / "p")
    count = len(list(folder.rglob("*.jpg")))
    assert f"fitted on {count} of {count} images" in nnclr(*evaluate, folder)[2]
    others = shutil.copytree(folder, tmp_path / "others")
    for path in others.rglob("*.jpg"):
        path.write_bytes(path.read_bytes() + b" ")
    answer = nnclr(*evaluate, others)
    assert answer[0] == 0
    assert "fit the probe" not in answer[2]
