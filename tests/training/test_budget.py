"""`nnclr ablate budget`: methods at equal CPU time."""

import json

import pytest
from rich.console import Console
from tiny_runs import nnclr, recipe

from nnclr_hub.errors import InvalidRequest
from training.budget import ROWS, compare_at_budgets
from training.monitor import read_log
from training.recipes import find_recipe

ROW_LABELS = ("NNCLR", "LeJEPA")


def test_every_row_is_a_valid_recipe():
    for settings in ROWS.values():
        find_recipe("small_cpu").with_settings(settings.split())


def test_runs_get_the_steps_that_fit_their_budget(data, tmp_path, undrawn):
    calls = {"rows": ROW_LABELS, "calibration": 0.01, "console": Console(quiet=True)}
    runs = compare_at_budgets(recipe(), [data], tmp_path, minutes=[0.02, 0.005], **calls)
    assert runs is not None
    assert [(run.label, run.minutes) for run in runs] == [(row, one) for one in (0.005, 0.02) for row in ROW_LABELS]
    for run in runs:
        stored = tmp_path / "budget" / run.label.lower() / "calibration" / "cost.json"
        cost = json.loads(stored.read_text())["cpu_s"]
        folder = tmp_path / "budget" / run.label.lower() / f"{run.minutes:g}-minutes" / "seed-0"
        end = read_log(folder)[-1]
        assert end["step"] == max(1, round(60 * run.minutes / cost))
        assert run.epochs == pytest.approx(end["epoch"], abs=1e-4)
        assert run.spent > 0
    assert runs[2].epochs > runs[0].epochs
    page = (tmp_path / "budget" / "results.md").read_text()
    assert all(f"| {row} |" in page for row in ROW_LABELS)
    assert (tmp_path / "budget" / "results.png").stat().st_size > 5000
    again = compare_at_budgets(recipe(), [data], tmp_path, minutes=[0.02, 0.005], **calls)
    assert again == runs, "existing runs are not trained again"
    other = compare_at_budgets(recipe(), [data], tmp_path, minutes=[0.005], **calls | {"rows": ("SimCLR",)})
    stored = json.loads((tmp_path / "budget" / "results.json").read_text())["runs"]
    assert {(run["label"], run["minutes"]) for run in stored} == {(run.label, run.minutes) for run in [*runs, *other]}


def test_a_resolution_schedule_costs_the_mean_over_its_steps(data, tmp_path, undrawn):
    base = recipe("backbone=test_vit", "channels=", "early_size=16", "early_share=0.75")
    calls = {"rows": ("SimCLR",), "calibration": 0.01, "console": Console(quiet=True)}
    runs = compare_at_budgets(base, [data], tmp_path, minutes=[0.01], **calls)
    assert runs is not None
    early, late = (
        json.loads((tmp_path / "budget" / "simclr" / name / "cost.json").read_text())["cpu_s"]
        for name in ("calibration-early", "calibration")
    )
    end = read_log(tmp_path / "budget" / "simclr" / "0.01-minutes" / "seed-0")[-1]
    assert end["step"] == max(1, round(0.6 / (0.75 * early + 0.25 * late)))


@pytest.mark.parametrize("options", [{"minutes": [0.0]}, {"minutes": []}, {"minutes": [1.0], "rows": ["NNCLR 2"]}])
def test_impossible_comparisons_are_refused(options, data, tmp_path):
    with pytest.raises(InvalidRequest):
        compare_at_budgets(recipe(), [data], tmp_path, console=Console(quiet=True), **options)
    assert not (tmp_path / "budget").exists()


def test_a_setting_that_a_row_replaces_is_refused(data, tmp_path):
    with pytest.raises(InvalidRequest):
        compare_at_budgets(
            recipe("method=queue_nnclr"), [data], tmp_path, minutes=[1.0], rows=["NNCLR"], console=Console(quiet=True)
        )


def test_the_command_refuses_budgets_that_are_not_numbers_and_data_without_labels(photos, data, tmp_path):
    for arguments in (("--data", data, "--minutes", "ten"), ("--data", photos / "cat", "--minutes", "1")):
        code, _, err = nnclr("ablate", "budget", *arguments, "--out", tmp_path)
        assert code == 2
        assert "Traceback" not in err
