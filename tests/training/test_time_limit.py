"""`auto` with a time limit: its epochs follow the speed, on a clock on which every step takes a known time.

Most runs train in their first step alone, because the clock does not depend on the steps.
"""

import json
from dataclasses import replace

import pytest
from tiny_runs import StopAt, stop_in_step

from nnclr_hub.errors import CheckpointError, InvalidRequest
from training import pretrain as program
from training.monitor import read_log
from training.pretrain import pretrain
from training.recipes import auto, find_recipe
from training.run import Callback
from training.step import Stepper
from training.time_limit import TimedEpochs, epochs_follow_time

SMALL = ("image_size=16", "pack_size=24", "eval_size=16", "batch_size=8", "log_every=2", "checkpoint_every=100")
NARROW = ("channels=8,8,8,8", "projection_hidden=16", "projection_dim=8")
LIMIT = 100.0  # seconds on the clock of the tests


class Idle(Stepper):
    """Repeats the result of its first step."""

    first = None

    def run(self, step):
        self.first = self.first or super().run(step)
        return replace(self.first, lr=self._schedule.set(step))


class Clock(Callback):
    """A clock that a step moves by the seconds that `cost` returns for it, and an evaluation by `evaluation`."""

    def __init__(self, cost=lambda step: 1.0, evaluation=0.0):
        self.now, self._cost, self._evaluation = 0.0, cost, evaluation

    def on_step(self, run, result):
        self.now += self._cost(run.step)

    def on_evaluation(self, run, scores):
        self.now += self._evaluation


@pytest.fixture
def timed(data, tmp_path, monkeypatch):
    """Return a function that runs `auto` with a time limit on a Clock, and returns folder, result and run.json."""

    def run(clock, *settings, also=(), stepper=Idle, **more):
        monkeypatch.setattr(program, "Stepper", stepper)
        timing = lambda until, *rest: TimedEpochs(LIMIT, *rest, clock=lambda: clock.now)  # noqa: E731
        monkeypatch.setattr(program, "TimedEpochs", timing)
        out, more = tmp_path / "run", {"minutes": 60, "device": "cpu", **more}
        given = [*SMALL, *(() if "init" in more else NARROW), *settings]
        outcome = pretrain("auto", data, out, settings=given, callbacks=[*also, clock], **more)
        return out, outcome, json.loads((out / "run.json").read_text())

    return run


def rates(out):
    return [line["lr"] for line in read_log(out) if "lr" in line]


def test_a_slow_run_has_a_complete_schedule_in_its_time(timed):
    clock = Clock()
    out, outcome, about = timed(clock, stepper=Stepper)
    assert outcome.finished
    assert 0.9 * LIMIT < clock.now <= LIMIT
    assert about["steps"] == outcome.step == read_log(out)[-1]["step"]
    assert about["epochs"] < 100
    assert rates(out)[-1] < 0.01 * max(rates(out))


@pytest.mark.parametrize(
    ("cost", "evaluation", "settings"),
    [
        (lambda step: 4.0 if step < 10 else 1.0, 0.0, []),  # another program runs at the start
        (lambda step: 1.0 if step < 50 else 3.0, 0.0, []),  # or later
        (lambda step: 6.0, 0.0, ["log_every=10"]),  # steps are slower than log lines
        (lambda step: 1.0, 5.0, ["checkpoint_every=5"]),  # evaluations are part of the speed
        (lambda step: 1.0, 12.0, ["checkpoint_every=3"]),  # and leave time for the last steps
    ],
)
def test_epochs_follow_the_speed(timed, cost, evaluation, settings):
    clock = Clock(cost, evaluation)
    out, outcome, _ = timed(clock, *settings)
    assert outcome.finished
    assert 0.8 * LIMIT < clock.now <= LIMIT + evaluation, "the last evaluation is after the last step"
    assert rates(out)[-1] < 0.1 * max(rates(out))


def test_a_run_too_slow_for_any_plan_ends_at_the_limit_with_a_verdict(timed):
    _, outcome, about = timed(Clock(lambda step: 0.6 * LIMIT))
    assert (outcome.finished, outcome.step, about["steps"]) == (True, 2, 2)
    assert about["verdict"]["sentence"] == outcome.verdict.sentence


def test_a_fast_run_keeps_its_epochs(timed, monkeypatch):
    monkeypatch.setattr(auto, "CPU_RATE", {False: 0, True: 0})
    _, outcome, about = timed(Clock(lambda step: 0.1))
    assert (outcome.finished, about["epochs"]) == (True, 1)


def test_an_initial_encoder_is_evaluated_before_the_speed_is_measured(timed, model):
    """Its scores are a line of the log, long before the first step if floors are computed."""
    _, outcome, about = timed(Clock(evaluation=40.0), init=str(model))
    assert outcome.finished
    assert about["steps"] > 0.8 * (LIMIT - 40)


@pytest.mark.parametrize("settings", [[], ["warmup_epochs=90"]])
def test_a_run_with_fewer_epochs_is_resumed_like_any_other(timed, settings):
    out, outcome, about = timed(Clock(), *settings, also=[StopAt(30)])
    assert (outcome.finished, outcome.step) == (False, 30)
    assert about["steps"] < 200
    _, again, _ = timed(Clock(), *settings, resume=True, minutes=None)
    assert (again.finished, again.step) == (True, about["steps"])
    with pytest.raises(CheckpointError):
        timed(Clock(), *settings, "epochs=2", resume=True)
    longer = about["epochs"] + 1
    _, more, _ = timed(Clock(), *settings, f"epochs={longer}", resume=True)
    assert (more.finished, more.step > again.step) == (True, True)
    assert out.is_dir()


def test_the_time_of_a_resumed_run_only_stops_it(timed):
    with pytest.MonkeyPatch.context() as patch:
        stop_in_step(4, patch)
        _, _, before = timed(Clock(), stepper=Stepper)
    _, outcome, about = timed(Clock(lambda step: 100.0), resume=True)
    assert (outcome.finished, about["steps"]) == (True, before["steps"])


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("auto", [], True),
        ("auto", ["epochs=3"], False),
        ("auto", ["epochs=fit"], True),
        ("small_cpu", [], False),
        ("small_cpu", ["epochs=fit"], True),
    ],
)
def test_auto_and_fitted_epochs_follow_the_time(name, settings, expected):
    assert epochs_follow_time(find_recipe(name).with_settings(settings)) == expected


FIT = ("epochs=fit", "early_size=12", "early_share=0.6", "warmup_epochs=1")


def test_fitted_epochs_end_in_time_with_views_of_two_sizes(timed):
    """The later steps take 1.78 times as long, as many times as their views have pixels."""
    sizes = []

    class Sizes(Callback):
        def on_step(self, run, result):
            sizes.append(run.recipe.size_at((run.step - 1) / run.steps))

    seen = Sizes()
    clock = Clock(lambda step: 16**2 / 12**2 if sizes[-1:] == [16] else 1.0)
    out, outcome, about = timed(clock, *FIT, also=[seen])
    assert outcome.finished
    assert 0.85 * LIMIT < clock.now <= LIMIT
    assert sizes == sorted(sizes), "small views first, then large ones"
    assert sizes.count(12) / len(sizes) == pytest.approx(0.6, abs=0.1)
    assert rates(out)[-1] < 0.02 * max(rates(out))
    assert about["steps"] == outcome.step


def test_a_resumed_run_with_fitted_epochs_follows_its_new_time(timed):
    timed(Clock(), "epochs=fit", also=[StopAt(30)])
    clock = Clock(lambda step: 0.5)
    _, outcome, _ = timed(clock, "epochs=fit", resume=True)
    assert outcome.finished
    assert 0.85 * LIMIT < clock.now <= LIMIT


def test_fitted_epochs_need_a_time_limit(timed):
    with pytest.raises(InvalidRequest):
        timed(Clock(), "epochs=fit", minutes=None)
