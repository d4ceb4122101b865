"""The report shows what a run did, and the symptoms of a run that does not learn."""

import json
import os
import re
import shutil

import pytest
from tiny_runs import recipe

from nnclr_hub.errors import InvalidRequest, UnknownSetting
from training.ablate import ablate
from training.monitor import read_lines, read_log
from training.pretrain import pretrain
from training.report import write_report
from training.verdict import symptoms

OFTEN = ("epochs=2", "checkpoint_every=1", "log_every=1")


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "nnclr <1>"
    assert pretrain(recipe(*OFTEN, "callbacks=tensorboard"), [photos], out).finished
    return out


def test_the_page_is_self_contained(run):
    page = (run / "report.html").read_text()
    for title in ("Loss", "Neighbor accuracy", "Self-match rate", "Age of the neighbor", "RankMe", "Learning rate"):
        assert f"<h3>{title}" in page, title
    assert "Evolution of the nearest neighbors" in page
    assert "nnclr &lt;1&gt;" in page
    assert "<1>" not in page
    assert not re.search(r"(src|href)=['\"]?http", page)
    assert page.count("data:image/jpeg;base64,") > 8 * 5


def test_neighbors_of_the_same_queries_are_recorded_at_each_checkpoint(run):
    lines = read_lines(run / "neighbors.jsonl")
    assert [line["epoch"] for line in lines] == [1, 2]
    assert len({tuple(line["queries"]) for line in lines}) == 1
    for line in lines:
        for query, found in zip(line["queries"], line["neighbors"], strict=True):
            assert query not in found, "not its own older embedding"
            assert all(str(one) in line["thumbnails"] for one in (query, *found) if one >= 0)
        assert all(row == sorted(row, reverse=True) for row in line["similarity"])


def test_tensorboard_has_what_the_log_has(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard")).Reload()
    logged = {line["step"]: line["loss"] for line in read_log(run) if "loss" in line}
    assert {event.step: pytest.approx(event.value, abs=1e-4) for event in events.Scalars("loss")} == logged


def test_several_runs_are_drawn_together(run, photos, tmp_path):
    other = tmp_path / "simclr"
    pretrain(recipe(*OFTEN, "method=simclr", "epochs=1"), [photos], other)
    page = write_report([run, other], tmp_path / "both.html").read_text()
    raw = shutil.copytree(other, tmp_path / os.fsdecode(b"caf\xe9"))  # the title of a report is the name of its run
    assert b"caf\xe9" in write_report([raw], tmp_path / "raw.html").read_bytes()
    assert "nnclr &lt;1&gt; and simclr" in page
    first = re.search(r"<details.*?</th></tr><tr><th>(\w+)</th>", page, re.S)
    assert first
    assert first[1] in {"method", "epochs", "steps"}, "settings that differ come first"
    with pytest.raises(InvalidRequest, match="run"):
        write_report([tmp_path / "nothing"], tmp_path / "x.html")


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "null"])
def test_the_report_shows_that_a_run_diverged(run, tmp_path, number):
    about = json.loads((run / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({key: value for key, value in about.items() if key != "verdict"}))
    (tmp_path / "log.jsonl").write_text(
        (run / "log.jsonl").read_text()
        + f'{{"step": 99, "epoch": 3, "loss": {number}, "rankme": {number}, "knn20/photos": {number}}}\n'
    )
    shown = write_report([tmp_path], tmp_path / "report.html").read_text().partition("Settings")[0]
    assert "step 99" in shown
    assert not re.search(r"\bnan\b|\binf\b|None", shown)


HEALTHY = {"loss": 3.0, "z_std": 0.98, "rankme": 60.0, "nn_distinct": 0.8, "nn_similarity": 0.9, "queue_fill": 1.0}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({}, None),
        ({"loss": 4.2, "chance": 4.16}, "nothing learned"),
        ({"z_std": 0.02}, "collapse"),
        ({"rankme": 1.1}, "few dimensions"),
        ({"nn_distinct": 0.01}, "one neighbor for all"),
        ({"nn_similarity": 0.9999}, "self-matches"),
        ({"queue_fill": 0.2, "neighbor_share": 1.0}, "queue not filled"),
    ],
)
def test_symptoms_are_found_without_labels(change, name):
    log = [{"step": step, **HEALTHY, **change} for step in range(90, 100)]
    found = symptoms(log, steps=100)
    assert list(found) == ([name] if name else [])
    assert all(sentence.endswith(".") and "{" not in sentence for sentence in found.values())
    early = [{**line, "step": 1} for line in log]
    assert symptoms(early, steps=100) == {}, "nothing is expected from the first steps"
    assert symptoms(log, steps=100, warmup=0.99) == {}, "or from the warm-up"
    assert list(symptoms(early[-1:], steps=1, final=True)) == list(found), "a finished run is judged at once"
    assert symptoms([*log[:-1], {"step": 99, **HEALTHY}], steps=100) == {}, "one line is not enough"


def test_a_loss_that_falls_late_causes_no_warning():
    """In 140 steps on groceries the loss was above chance for 20 steps, and ended far below it."""
    log = [{"step": step, **HEALTHY, "loss": 6.4, "chance": 5.55} for step in range(7, 60)]
    assert symptoms(log, steps=140) == {}
    assert "nothing learned" in symptoms([{**line, "step": line["step"] + 70} for line in log], steps=140)


def test_a_table_is_run_resumed_and_written(photos, tmp_path, capsys):
    base = recipe(*OFTEN, "epochs=1")
    own = ["tau .2: temperature=0.2 k=2"]
    results = ablate("soft", base, [photos], tmp_path, seeds=2)
    assert all(one.seeds == (0, 1) for one in results)
    folder = tmp_path / "soft"
    assert (folder / "soft-nearest-neighbor" / "seed-1" / "encoder" / "config.json").is_file()
    text = (folder / "results.md").read_text()
    assert "| soft nearest neighbor | 0, 1 |" in text
    assert "71.4" in text
    document = json.loads((folder / "results.json").read_text())
    assert [row["settings"] for row in document["rows"]] == [["pick=soft"], ["pick=nearest"]]
    assert (folder / "report.html").is_file()
    capsys.readouterr()
    results = ablate("soft", base, [photos], tmp_path, seeds=1, rows=own)
    assert [one.row.label for one in results] == ["soft nearest neighbor", "hard nearest neighbor", "tau .2"]
    assert capsys.readouterr().err.count("is finished") == 2
    assert json.loads((folder / "tau-2" / "seed-0" / "run.json").read_text())["temperature"] == 0.2
    for rows in ([], ["no settings"], ["tau: temperature"], ["a 1: k=1", "a-1: k=2"], ["猫: k=1"]):
        with pytest.raises(InvalidRequest):
            ablate("own", base, [photos], tmp_path, rows=rows)
    with pytest.raises(InvalidRequest, match="epochs"):
        ablate("soft", recipe(*OFTEN), [photos], tmp_path, seeds=2)


def test_an_unknown_callback_of_a_row_stops_a_table_before_its_first_run(photos, tmp_path):
    rows = ["good: temperature=0.2", "bad: callbacks=nope"]
    with pytest.raises(UnknownSetting, match="callbacks must be one of"):
        ablate("own", recipe(*OFTEN, "epochs=1"), [photos], tmp_path, rows=rows)
    assert not (tmp_path / "own").exists()


def test_the_report_of_a_run_without_a_score_yet_names_its_labeled_set(data, tmp_path):
    """The run is stopped before its first checkpoint, so it must not say that the data has no labels."""
    assert not pretrain(recipe(), data, tmp_path / "run", minutes=0).finished
    shown = (tmp_path / "run" / "report.html").read_text().partition("Settings")[0]
    assert f"on {data.name} at" in shown
    assert "CLASS" not in shown
