"""The runs in a folder are listed with their state, step and metrics."""

import os
import time

import pytest
from fake_runs import write_run

from nnclr_hub.errors import RunNotFound
from nnclr_hub.workbench.runs import SILENT_S, list_runs, read_report


def silent(run, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(run / "log.jsonl", (at, at))


def test_the_state_of_a_run_is_read_from_its_files(tmp_path):
    write_run(tmp_path / "photos", step=40)
    silent(write_run(tmp_path / "sets" / "done", step=100, report="<h1>done</h1>"), 1000)
    silent(write_run(tmp_path / "old", step=20, report=""), SILENT_S + 5)
    (tmp_path / "no run").mkdir()
    found = {run.name: run for run in list_runs(tmp_path)}
    assert list(found) == ["photos", "old", "sets/done"]
    assert [run.state for run in found.values()] == ["running", "stopped", "done"]
    assert (found["photos"].step, found["photos"].steps, found["photos"].recipe) == (40, 100, "small")
    assert found["photos"].figures == {"loss": pytest.approx(4.2), "knn/val": 0.4}
    assert found["old"].report is None
    assert read_report(tmp_path, "sets/done") == b"<h1>done</h1>"


def test_unfinished_and_damaged_runs_are_listed(tmp_path):
    run = write_run(tmp_path / "r", step=30)
    with (run / "log.jsonl").open("a") as log:
        log.write('[1]\nnull\n{"step": 40, "loss": NaN, "knn/x": 1e999}\n{"step": 50, "lo')
    (run / "run.json").write_text("{")
    [found] = list_runs(tmp_path)
    assert (found.step, found.steps, found.recipe) == (40, 0, "")
    assert found.figures == {"loss": pytest.approx(4.4), "knn/val": 0.4}


@pytest.mark.parametrize("name", ["", "..", "../r", "/etc", "r/..", "r/", "link", "x" * 5000, "r\0"])
def test_a_name_outside_the_folder_is_not_found(tmp_path, name):
    write_run(tmp_path / "outside")
    write_run(tmp_path / "runs" / "r")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "outside")
    assert [run.name for run in list_runs(tmp_path / "runs")] == ["r"]
    with pytest.raises(RunNotFound):
        read_report(tmp_path / "runs", name)


def test_a_missing_folder_has_no_runs(tmp_path):
    assert list_runs(tmp_path / "none") == []


def test_reading_a_missing_report_raises_run_not_found(tmp_path):
    write_run(tmp_path / "r", report="")
    with pytest.raises(RunNotFound):
        read_report(tmp_path, "r")
