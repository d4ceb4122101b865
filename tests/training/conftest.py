"""Fixtures of the training tests: a finished run, and reports without curves."""

from pathlib import Path

import pytest
from tiny_runs import recipe

from training.pretrain import pretrain


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """Leave the curves out of reports: drawing them takes longer than training so small a network."""
    monkeypatch.setattr("training.report.draw_panels", lambda logs: "")


@pytest.fixture(scope="session")
def finished(data, tmp_path_factory) -> Path:
    """Return a run that never stopped."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert pretrain(recipe(), [data], run).finished
    return run
