"""A run with a frozen teacher, and one whose neighbors follow the columns of a table."""

import csv
import json

import numpy as np
import pytest
import torch
from rich.console import Console
from tiny_runs import FAST, nnclr, recipe

from nnclr_hub import load_encoder, wrap_encoder
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest, UnknownSetting
from nnclr_hub.hub.layout import read_config
from nnclr_hub.method import Gather
from training.data.image_index import metadata_numbers, training_files
from training.data.views import IMAGENET_MEAN, IMAGENET_STD
from training.distributed import Ranks
from training.monitor import read_log
from training.pretrain import pretrain
from training.run import Callback
from training.setup import Setup

QUIET = Console(quiet=True)


class Tables(Callback):
    """Keeps the learner's tables."""

    def on_start(self, run):
        self.teacher, self.support_set, self.files = run.learner.teacher, run.learner.support_set, len(run.batches)


def test_the_targets_are_the_teachers_centered_vectors_by_image(data, model):
    ranks = Ranks(0, 1, torch.device("cpu"), Gather())
    setup = Setup.of(recipe("method=teacher", f"teacher={model}"), [data], ranks, QUIET)
    encoder = load_encoder(model, device="cpu")
    raw = np.stack(encoder.features_each([setup.files[row] for row in range(len(setup.files))]))
    centered = raw - raw.mean(axis=0)
    want = centered / np.linalg.norm(centered, axis=1, keepdims=True)
    np.testing.assert_allclose(setup.tables.teacher, want, atol=1e-5)


def test_a_run_with_a_teacher_records_it_and_says_what_it_keeps(data, model, tmp_path):
    words = [word for one in (*FAST, "method=teacher", f"teacher={model}") for word in ("--set", one)]
    call = ("pretrain", "small_cpu", "--data", data, "--out", tmp_path / "run", "--device", "cpu", *words)
    code, _, err = nnclr(*call)
    assert code == 0, err
    about = read_config(tmp_path / "run" / "encoder").nnclr
    assert about["parents"][0]["source"] == str(model)
    assert about["parents"][0]["fingerprint"] == load_encoder(model, device="cpu").fingerprint
    written = json.loads((tmp_path / "run" / "run.json").read_text())
    assert written["teacher"] == str(model)
    scores = written["verdict"]["scores"]
    kept = f"{scores['run'] / scores[str(model)]:.1%} of the accuracy of its teacher"
    assert kept in written["verdict"]["sentence"]
    assert read_log(tmp_path / "run")[-2]["loss"] < read_log(tmp_path / "run")[0]["loss"]


@pytest.mark.parametrize("method", ["teacher_cosine", "teacher_nnclr"])
def test_a_wrapped_network_is_a_teacher_and_a_run_resumes_with_it(data, tmp_path, method):
    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
    teacher = wrap_encoder(network, Preprocessing(32, 1.0, IMAGENET_MEAN, IMAGENET_STD), name="means", dim=12)
    seen = Tables()
    settings = recipe().with_settings(["epochs=2"])
    for epochs in (2, 4):
        given = [f"method={method}", "teacher=means", f"epochs={epochs}"]
        done = pretrain(
            settings.with_settings(given), [data], tmp_path / "run", teacher=teacher, resume=True, callbacks=[seen]
        )
        assert done.finished
    assert seen.teacher.shape == (seen.files, 12)
    torch.testing.assert_close(seen.teacher.norm(dim=1), torch.ones(seen.files))
    if method == "teacher_nnclr":
        rows = seen.support_set.ids >= 0
        torch.testing.assert_close(seen.support_set.queue[rows], seen.teacher[seen.support_set.ids[rows]])


def test_a_method_and_its_teacher_belong_together():
    for settings in (["method=teacher"], ["teacher=nnclr_resnet18_starter"], ["method=simclr", "same=patient"]):
        with pytest.raises(UnknownSetting):
            recipe(*settings)


# ---- metadata


@pytest.fixture
def table(photos, tmp_path):
    """Return a table of 40 photos without labels: patients of two photos each, and three scanners."""
    paths = sorted(photos.rglob("*.jpg"))[:40]
    with (tmp_path / "scans.csv").open("w", newline="") as file:
        rows = [(path.relative_to(photos), f"p{i // 2}", "abc"[i % 3]) for i, path in enumerate(paths)]
        csv.writer(file).writerows([("path", "patient", "scanner"), *rows])
    return tmp_path / "scans.csv"


def test_columns_become_numbers_by_image(photos, table):
    from nnclr_hub.table_rows import LabelTable

    files = training_files([photos])
    numbers = metadata_numbers(files, [photos], LabelTable(table, photos), ["scanner", "patient"])
    assert (numbers >= 0).sum(axis=0).tolist() == [40, 40]
    named = {files[row].relative_to(photos): tuple(numbers[row]) for row in range(len(files))}
    with table.open() as file:
        groups = {}
        for row in csv.DictReader(file):
            groups.setdefault((row["scanner"], row["patient"]), set()).add(named[type(photos)(row["path"])])
    assert all(len(values) == 1 for values in groups.values())
    assert len({value for values in groups.values() for value in values}) == len(groups)
    with pytest.raises(InvalidRequest, match="site"):
        metadata_numbers(files, [photos], LabelTable(table, photos), ["site"])


@pytest.mark.parametrize("forgets", [True, False])
def test_a_run_follows_the_columns_of_a_table_without_labels(photos, table, tmp_path, monkeypatch, forgets):
    """It forgets the three scanners if a batch of 8 has enough images of each; unknown ones are not a fourth."""
    monkeypatch.setattr("nnclr_hub.training.setup.LEAST_OF_GROUP", 2.5 if forgets else 4)
    words = [word for one in (*FAST, "warm_start=0", "ramp=0", "gate=1") for word in ("--set", one)]
    tables = ("--labels", table, "--root", photos, "--same", "patient", "--not-same", "scanner")
    call = ("pretrain", "small_cpu", "--data", photos, "--out", tmp_path / "run", "--device", "cpu", *words, *tables)
    code, _, err = nnclr(*call)
    assert code == 0, err
    assert "scanner: 3 values, known for 40 of 60 images" in err
    lines = [line for line in read_log(tmp_path / "run") if "nn_allowed" in line]
    assert all(0 <= line["nn_allowed"] < 0.7 for line in lines)
    assert all(("forgetting" in line) == forgets for line in lines)
    assert any(line["nn_allowed"] > 0 for line in lines)
    written = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (written["same"], written["not_same"]) == (["patient"], ["scanner"])
