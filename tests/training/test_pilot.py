"""The pilot's arithmetic, and that it measures what the run will do."""

import pytest

from training import step as steps_module
from training.pilot import Pace, measure_pace
from training.recipes import find_recipe

TINY = [
    *("channels=4,4,8,8", "projection_hidden=16", "projection_dim=8", "image_size=32", "pack_size=32", "eval_size=32"),
    *("batch_size=8", "precision=fp32", "queue_size=32", "early_size=24"),
]


def recipe(*more):
    return find_recipe("small_cpu").with_settings([*TINY, *more])


@pytest.mark.parametrize(("early", "late", "share"), [(0.1, 0.3, 0.75), (0.2, 0.2, 0.0), (0.5, 0.1, 1.0)])
def test_the_epochs_take_the_time_and_one_more_would_not_fit(early, late, share):
    pace, chosen = Pace(60, early, late, 5.0), recipe(f"early_share={share}")
    epochs = pace.epochs_within(480, chosen)

    def seconds(epochs):
        steps = epochs * 60
        return sum(late if chosen.size_at(i / steps) == 32 else early for i in range(steps))

    assert seconds(epochs) <= 480 + early + late < seconds(epochs + 1) + early + late


def test_at_least_one_epoch_is_run():
    assert Pace(60, 10.0, 10.0, 0.0).epochs_within(1, recipe()) == 1


def test_both_sizes_are_measured(photos, monkeypatch):
    seen, original = [], steps_module.make_views

    def watched(*arguments):
        views = original(*arguments)
        seen.append(views[0].shape[-1])
        return views

    monkeypatch.setattr(steps_module, "make_views", watched)
    pace = measure_pace(recipe("early_share=0.5"), [photos], steps=2, device="cpu")
    assert seen == [32] * 5 + [24] * 5
    assert pace.steps_per_epoch == 60 // 8
    assert 0 < pace.early + pace.late < pace.start
