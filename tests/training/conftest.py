"""Fixtures of the training tests: a finished run, and reports without curves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_runs import leave_out_curves, recipe

from training import report
from training.pretrain import pretrain

DRAW_PANELS = report.draw_panels


@pytest.fixture(autouse=True, scope="module")
def no_curves() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        leave_out_curves(patch)
        yield


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """Draw no curves in a module that draws them."""
    leave_out_curves(monkeypatch)


@pytest.fixture(scope="session")
def finished(data, tmp_path_factory) -> Path:
    """Return a run that never stopped, with a report that has its curves."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "draw_panels", DRAW_PANELS)
        assert pretrain(recipe(), [data], run).finished
    return run
