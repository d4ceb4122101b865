"""`auto` with a time limit: a run that is slower than estimated gets fewer epochs and finishes."""

import json
import time

import pytest
from tiny_runs import recipe

from nnclr_hub.hub.layout import read_config
from training.callbacks import Callback
from training.monitor import read_log
from training.pace import fits_to_time
from training.pretrain import pretrain
from training.recipes import auto, find_recipe

TINY = ("image_size=16", "pack_size=24", "eval_size=16", "channels=8,8,8,8", "batch_size=8", "log_every=2")
STEP = 0.05  # seconds
LIMIT = 12.0


class Slow(Callback):
    """Makes each step slow. Measures seconds since the call of `pretrain`: of the first step, and of the last one."""

    def __init__(self):
        self.called, self.first, self.last = time.monotonic(), 0.0, 0.0

    def on_step(self, run, result):
        time.sleep(STEP)
        self.last = time.monotonic() - self.called
        self.first = self.first or self.last


@pytest.fixture(scope="module")
def short(data, tmp_path_factory):
    """Run `auto` for a time into which few of its epochs fit; return the folder, the result and the clock."""
    out, clock = tmp_path_factory.mktemp("runs") / "short", Slow()
    return out, pretrain("auto", data, out, settings=TINY, minutes=LIMIT / 60, callbacks=[clock], device="cpu"), clock


def test_a_run_that_is_slower_than_estimated_finishes_in_its_time(short):
    out, outcome, clock = short
    about, lines = json.loads((out / "run.json").read_text()), [one for one in read_log(out) if "lr" in one]
    assert outcome.finished
    assert about["epochs"] < 100
    assert about["steps"] == outcome.step == lines[-1]["step"]
    assert clock.last < LIMIT
    assert clock.last - clock.first > 0.5 * (LIMIT - clock.first), "it uses its time"
    assert lines[-1]["lr"] < 0.05 * max(one["lr"] for one in lines), "the schedule is complete"
    assert read_config(out / "encoder").nnclr["steps"] == outcome.step


def test_a_run_with_fewer_epochs_can_be_resumed_with_more(short, data):
    out, outcome, _ = short
    again = pretrain("auto", data, out, settings=TINY, resume=True, device="cpu")
    assert (again.finished, again.step) == (True, outcome.step), "there is nothing left to do"
    more = outcome.step + 4
    epochs = json.loads((out / "run.json").read_text())["epochs"] * more / outcome.step
    longer = pretrain("auto", data, out, settings=[*TINY, f"epochs={epochs}"], resume=True, device="cpu")
    assert (longer.finished, longer.step) == (True, more)


def test_a_run_that_is_faster_than_estimated_keeps_its_epochs(data, tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "CPU_RATE", {False: 0, True: 0})
    outcome = pretrain("auto", data, tmp_path / "run", settings=TINY, minutes=60, device="cpu")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (outcome.finished, about["epochs"]) == (True, 1)


@pytest.mark.parametrize(
    ("name", "settings", "processes", "expected"),
    [
        ("auto", [], 1, True),
        ("auto", ["epochs=3"], 1, False),
        ("auto", ["early_size=32", "early_share=0.5"], 1, False),
        ("auto", [], 2, False),
        ("small_cpu", [], 1, False),
    ],
)
def test_only_auto_without_given_epochs_follows_the_time(name, settings, processes, expected):
    asked = find_recipe(name).with_settings(settings)
    assert fits_to_time(asked, recipe(*settings), processes) == expected
